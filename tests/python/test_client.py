"""The waiting client against a real server: what it returns, and what it raises."""

import dataclasses
import inspect
import json
import re
import urllib.request

import numpy as np
import pytest
import service

MODEL = "novella-neox-4m"
TEXT = "The captain walked slowly up the hill.\nHe said “naïve”, and smiled 🙂."


def cli(server, *arguments):
    done = service.gatehouse(*arguments, "--json", server=server.address)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def metric(server, pattern):
    """The value of the series of /metrics that a regular expression names."""
    page = urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=10).read().decode()
    found = re.search(rf"^{pattern} ([0-9.e+-]+)$", page, re.M)
    return float(found[1]) if found else 0.0


def cancelled(server):
    return metric(server, rf'gatehouse_requests_total\{{code="CANCELLED",method="generate",model="{MODEL}"\}}')


def test_models_are_described_as_the_command_line_describes_them(client, server):
    described = cli(server, "models", MODEL)["models"][0]
    model = client.model(MODEL)
    assert [entry.name for entry in client.models()] == [MODEL]
    assert client.replica() == cli(server, "models")["replica"]
    assert (model.fingerprint, model.d_model, model.d_mlp, model.layers) == (
        described["fingerprint"], described["d_model"], described["d_mlp"], described["layer_count"])
    calibration = model.calibration
    assert calibration.layers["linear_cost"].tolist() == [layer["linear_cost"] for layer in described["layers"]]
    assert calibration.layers["gateable"].dtype == bool
    assert [[found.neuron for found in layer] for layer in calibration.consensus] == [
        layer["consensus"] for layer in described["layers"]]
    assert list(calibration.operating_points) == [
        point["name"] for point in described["calibration"]["operating_points"]]
    assert list(calibration.to_frame().index) == list(range(model.layers))


def test_generation_is_that_of_the_command_line(client, server, gh):
    wanted = cli(server, "generate", "-m", MODEL, "--prompt", TEXT, "-n", 12, "--temperature", 0.8, "--seed", 7,
                 "--gating", "gated", "--threshold", 0.3, "--record", "routing,nonlinearity,consensus,gate",
                 "--record-prompt", "--top-logprobs", 3)
    result = client.generate(MODEL, TEXT, max_tokens=12, temperature=0.8, seed=7, gating=gh.Gated(0.3),
                             record=["routing", "nonlinearity", "consensus", "gate"], record_prompt=True,
                             top_logprobs=3).result()
    assert result.text == wanted["text"]
    assert result.token_ids.tolist() == [token["id"] for token in wanted["tokens"]]
    np.testing.assert_allclose(result.logprobs, [token["logprob"] for token in wanted["tokens"]], rtol=1e-6)
    assert [[entry.id for entry in token.alternatives] for token in result.tokens] == [
        [entry["id"] for entry in token["top"]] for token in wanted["tokens"]]
    assert (result.seed, result.finish_reason, result.prompt_tokens) == (7, "length", wanted["prompt_tokens"])
    rows = wanted["prompt"] + [token["insight"] for token in wanted["tokens"] if "insight" in token]
    trace = result.trace
    assert trace.positions.tolist() == [row["position"] for row in rows]
    assert trace.paths.tolist() == [row["paths"] for row in rows]
    for name in ("gate_margin", "gate_probability", "nonlinearity", "output_norm"):
        expected = np.array([row[name] for row in rows], dtype=float)  # null is NaN
        np.testing.assert_allclose(getattr(trace, name), expected, rtol=1e-6)
    assert trace.fired == [[tuple(layer["fired"]) for layer in row["consensus"]] for row in rows]
    assert result.routing.linear_decisions == (trace.paths == "linear").sum() > 0
    assert result.routing.counts.sum() == result.routing.decisions
    assert result.routing.linear_fraction == pytest.approx(wanted["routing"]["linear_fraction"])
    assert len(trace.to_frame()) == len(rows) * trace.layers
    assert result.tokens[-1].insight is None and result.tokens[0].insight.paths.shape == (1, trace.layers)


def test_scores_are_those_of_the_command_line(client, server, gh):
    for policy, flags in ((gh.Full(), ["full"]), (gh.Linear(), ["linear"]), (gh.Gated(operating_point="1%"),
                          ["gated", "--operating-point", "1%"]), (gh.Quorum(1, "skip"),
                          ["quorum", "--quorum", 1, "--quorum-path", "skip"])):
        wanted = cli(server, "score", "-m", MODEL, "--text", TEXT, "--gating", *flags)
        result = client.score(MODEL, TEXT, gating=policy)
        assert result.token_ids.tolist() == wanted["token_ids"]
        assert np.isnan(result.logprobs[0])
        np.testing.assert_allclose(result.logprobs[1:], wanted["logprobs"], rtol=1e-6)
        assert result.perplexity == pytest.approx(wanted["perplexity"])
        assert result.routing.linear_fraction == pytest.approx(wanted["routing"]["linear_fraction"])
    assert "".join(result.texts) == TEXT
    frame = result.to_frame()
    assert list(frame.columns) == ["id", "text", "logprob"] and len(frame) == result.token_count
    assert client.score(MODEL, result.token_ids).perplexity == pytest.approx(client.score(MODEL, TEXT).perplexity)
    summary = client.score(MODEL, TEXT, summary_only=True)
    assert len(summary.logprobs) == 0 and summary.scored_tokens == result.token_count - 1


def test_analyses_are_those_of_the_command_line(client, server):
    wanted = cli(server, "nonlinearity", "-m", MODEL, "--text", TEXT, "--text", "It was")
    result = client.nonlinearity(MODEL, [TEXT, "It was"])
    assert [len(trace) for trace in result.texts] == [len(text["tokens"]) for text in wanted["texts"]]
    np.testing.assert_allclose(result.texts[0].nonlinearity,
                               [token["nonlinearity"] for token in wanted["texts"][0]["tokens"]], rtol=1e-6)
    np.testing.assert_allclose(result.percentiles, [[layer[p] for p in ("p25", "p50", "p70", "p95")]
                                                    for layer in wanted["layers"]])
    with pytest.raises(ValueError, match="2 texts"):
        _ = result.scores
    assert set(result.to_frame()["input"]) == {0, 1}
    one = client.nonlinearity(MODEL, "It was")
    assert one.scores.shape == (len(one.trace), client.model(MODEL).layers)
    ranks = one.ranks()
    assert ((ranks >= 0) & (ranks <= 1)).all()
    assert ((one.scores >= one.percentiles[:, 3]) == (ranks >= 0.95)).all()

    wanted = cli(server, "consensus", "-m", MODEL, "--text", TEXT)
    result = client.consensus(MODEL, TEXT)
    levels = [[layer["level"] for layer in token["consensus"]] for token in wanted["texts"][0]["tokens"]]
    np.testing.assert_array_equal(result.levels, np.array(levels, dtype=float))
    assert [list(layer) for layer in result.consensus] == [layer["consensus"] for layer in wanted["layers"]]


def test_text_is_whole_characters_however_tokens_cut_them(client):
    pieces = client.score(MODEL, "🙂é—")
    assert any(not raw.isascii() and "\ufffd" in raw.decode("utf-8", "replace") for raw in pieces.raw)
    # Nothing but these tokens, in any order: whole characters, and bytes that make none.
    bias = {int(token): 100.0 for token in pieces.token_ids}
    stream = client.generate(MODEL, "It", max_tokens=60, seed=3, logit_bias=bias)
    chunks = list(stream.texts())
    result = stream.result()
    raw = b"".join(token.raw for token in result.tokens)
    assert "".join(chunks) == result.text == raw.decode("utf-8", "replace")
    assert {"🙂", "\ufffd"} & set(result.text)
    assert "".join(result.to_frame()["text"]) == result.text


def test_text_that_a_stop_string_held_back_comes_at_the_end(client):
    text = client.generate(MODEL, "It was", max_tokens=8, temperature=0).result().text
    stream = client.generate(MODEL, "It was", max_tokens=8, temperature=0, stop=text[-2:] + "@@")
    assert "".join(stream.texts()) == text
    assert "".join(token.text for token in stream.result().tokens) != text
    stopped = client.generate(MODEL, "It was", max_tokens=8, temperature=0, stop=[text[-2:]]).result()
    assert (stopped.finish_reason, stopped.matched_stop) == ("stop_string", text[-2:])


@pytest.mark.parametrize("leave", ["close", "with", "break", "drop"])
def test_leaving_a_stream_ends_the_generation_at_the_server(client, server, gh, leave):
    before = cancelled(server)

    def generate():
        return client.generate(MODEL, "It was", max_tokens=480, ignore_eos=True)

    if leave == "close":
        stream = generate()
        next(stream)
        stream.close()
        assert list(stream) == []
        with pytest.raises(gh.errors.CancelledError):
            stream.result()
    elif leave == "with":
        with generate() as stream:
            next(stream)
    elif leave == "break":
        for _ in generate():
            break
    else:
        next(generate())
    service.wait_until(lambda: cancelled(server) == before + 1, "the end of the call at the server")


def test_interventions_and_captures_are_those_of_the_command_line(client, server, gh, tmp_path):
    arrays = tmp_path / "captured.npz"
    wanted = cli(server, "score", "-m", MODEL, "--text", TEXT, "--intervene", "zero:L3:n12,55", "--intervene",
                 "scale=0.5:L2:n7@0-4", "--intervene", "mean:L1:n3", "--intervene", "set=1.5:L1:n4", "--intervene",
                 "path=linear:L4", "--intervene", "mlp-zero:L5@2", "--capture", "mlp-out:L3,5", "--capture",
                 "residual-post:L5@1,3", "--capture-out", arrays)
    changes = [gh.Zero(3, [12, 55]), gh.Scale(2, 7, 0.5, positions=range(5)), gh.Mean(1, 3), gh.Set(1, 4, 1.5),
               gh.ForcePath([4], "linear"), gh.ZeroMlp(5, positions=2)]
    result = client.score(MODEL, TEXT, interventions=changes, captures=[
        gh.Capture("mlp_out", layers=[3, 5]), gh.Capture("residual_post", layers=5, positions=[1, 3])])
    np.testing.assert_allclose(result.logprobs[1:], wanted["logprobs"], rtol=1e-6)
    saved = np.load(arrays)
    assert set(result.activations) == {("mlp_out", 3), ("mlp_out", 5), ("residual_post", 5)}
    for (site, layer), activation in result.activations.items():
        name = f"{site.replace('_', '-')}.{layer}"
        np.testing.assert_array_equal(activation.values, saved[name])
        np.testing.assert_array_equal(activation.positions, saved[f"{name}.positions"])
    assert not result.activations["mlp_out", 5].values[2].any()


def test_a_patch_puts_a_captured_vector_where_the_models_own_would_be(client, gh):
    captured = client.score(MODEL, TEXT, captures=[gh.Capture("residual_post", layers=4)]).activations
    vectors = captured["residual_post", 4].values
    other = "Nobody spoke of the " + TEXT  # as long at least
    patched = client.score(MODEL, other, interventions=[gh.Patch(4, "residual_post", vectors[:3], positions=[0, 1, 2])],
                           captures=[gh.Capture("residual_post", layers=4, positions=[0, 1, 2, 3])])
    seen = patched.activations["residual_post", 4].values
    np.testing.assert_array_equal(seen[:3], vectors[:3])
    assert not np.array_equal(seen[3], vectors[3])


def test_errors_say_what_is_wrong(client, gh):
    def failure(**options):
        with pytest.raises(gh.GatehouseError) as caught:
            client.generate(options.pop("model", MODEL), options.pop("prompt", "It"), max_tokens=4, **options).result()
        return caught.value

    error = failure(gating=gh.Gated(1.5))
    assert isinstance(error, gh.errors.InvalidArgumentError) and isinstance(error, ValueError)
    assert (error.code, error.reason, error.field, error.bounds) == (
        "INVALID_ARGUMENT", "INVALID_FIELD", "gating.threshold", (0, 1))
    assert "1.5" in str(error) and "INVALID_FIELD" in str(error)
    error = failure(temperature=-1)
    assert (error.field, error.bounds) == ("sampling.temperature", (0, None))
    error = failure(stop="x" * 257)
    assert (error.field, error.bounds) == ("stop.strings", (1, 256))
    error = failure(gating=gh.Linear(layers=[99]))
    assert (error.reason, error.field) == ("LAYER_OUT_OF_RANGE", "gating.layers")
    error = failure(captures=[gh.Capture("mlp_out", layers=[0], positions=[-1 % 2**32])])
    assert error.field.startswith("captures[0].positions")
    error = failure(model="nobody")
    assert isinstance(error, gh.errors.NotFoundError) and error.reason == "MODEL_NOT_FOUND" and error.field is None
    assert failure(prompt="").reason == "EMPTY_INPUT"
    assert failure(gating=gh.Linear(calibration="none")).reason == "CALIBRATION_NOT_FOUND"
    # Before the server hears of it.
    assert failure(top_k=-1).field == "sampling.top_k"
    assert failure(prompt="\ud800").reason == "INVALID_UTF8"
    with pytest.raises(ValueError, match="record has 'routes'"):
        client.score(MODEL, "It", record="routes")
    with pytest.raises(ValueError, match="mlp_in"):
        client.score(MODEL, "It", captures=[gh.Capture("mlp")])
    with pytest.raises(TypeError, match="temprature"):
        client.generate(MODEL, "It", temprature=1)


def test_a_call_ends_at_its_deadline_and_so_does_the_server(client, server, gh):
    def ended():
        return metric(server, rf'gatehouse_requests_total\{{code="DEADLINE_EXCEEDED",method="score",model="{MODEL}"\}}')

    before = ended()
    with pytest.raises(TimeoutError) as caught:
        client.score(MODEL, "It was. " * 20000, timeout=0.2, stride=64)
    assert isinstance(caught.value, gh.errors.DeadlineExceededError)
    service.wait_until(lambda: ended() == before + 1, "the end of the call at the server")


def test_methods_tell_their_arguments(gh):
    assert "temperature" in inspect.signature(gh.Client.generate).parameters
    assert "a stop string is not part of the text" in gh.Client.generate.__doc__
    returned = {name: inspect.signature(getattr(gh.Client, name)).return_annotation
                for name in ("generate", "score", "models", "calibrate")}
    assert returned == {"generate": "Generation", "score": "ScoreResult", "models": "list[ModelSummary]",
                        "calibrate": "Operation"}
    assert {field.name for field in dataclasses.fields(gh.Options)} == set(gh.channel.OptionValues.__annotations__)


def test_options_are_checked(gh):
    with pytest.raises(ValueError, match=r"attempts is 9, must be a whole number in \[1, 5\]"):
        gh.connect(attempts=9)
    with pytest.raises(ValueError, match="keepalive is 1, must be in"):
        gh.connect(keepalive=1)
    with gh.connect(f"127.0.0.1:{service.free_port()}", attempts=1) as nobody:
        with pytest.raises(gh.errors.UnavailableError):
            nobody.models()
        with pytest.raises(TimeoutError, match="no server answered"):
            nobody.wait_until_ready(0.3)
