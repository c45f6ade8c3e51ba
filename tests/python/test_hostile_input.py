"""What a caller gets wrong: each is refused with the field's name, at once, and nothing is taken for something else."""

import math

import numpy as np
import pytest

NOWHERE = "127.0.0.1:1"


def refused(gh, call, field):
    with pytest.raises(gh.errors.InvalidArgumentError) as caught:
        call()
    assert caught.value.field == field and caught.value.reason == "INVALID_FIELD" and field in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, 1e12, "5", [5]])
def test_a_timeout_that_is_none(gh, timeout):
    """gRPC would let the clock overflow, and the call with it."""
    with gh.connect(NOWHERE, attempts=1) as client:
        refused(gh, lambda: client.models(timeout=timeout), "timeout")
        refused(gh, lambda: client.generate("m", "x", timeout=timeout), "timeout")


@pytest.mark.parametrize("options, field", [
    ({"timeout": math.inf}, "timeout"), ({"stream_timeout": "9"}, "stream_timeout"), ({"attempts": 2.5}, "attempts"),
    ({"attempts": "3"}, "attempts"), ({"attempts": True}, "attempts"),
    ({"max_message_bytes": 1e6}, "max_message_bytes"),
    ({"keepalive": math.nan}, "keepalive"), ({"replica": "ü"}, "replica"), ({"replica": "a\nb"}, "replica"),
    ({"replica": 5}, "replica")])
def test_options(gh, options, field):
    refused(gh, lambda: gh.connect(NOWHERE, **options), field)


@pytest.mark.parametrize("server", ["", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", None, 50151])
def test_servers(gh, server):
    """Of 99999 gRPC would make 34463."""
    assert "[1, 65535]" in refused(gh, lambda: gh.connect(server), "server")
    refused(gh, lambda: gh.AsyncClient(server), "server")


def test_operations_whose_replica_no_header_can_carry(gh):
    with gh.connect(NOWHERE, attempts=1) as client:
        refused(gh, lambda: client.operation("operations/ü/1"), "replica")


@pytest.mark.parametrize("text", [
    b"text", bytearray(b"text"), {"a": 1}, None, 5, [1.5], [math.nan], ["a"], np.array([1.5]), np.array(["a"]),
    np.array(5), np.zeros((2, 3), int)])
def test_texts(gh, text):
    """Bytes are no token ids, and half a token is none."""
    refused(gh, lambda: gh.calls.score("m", text), "input")
    refused(gh, lambda: gh.calls.generate("m", text), "prompt")


@pytest.mark.parametrize("texts, field", [(b"text", "input"), ([b"text"], "inputs[0]"), ([[1], [1.5]], "inputs[1]"),
                                          (None, "inputs"), (["a", None], "inputs[1]")])
def test_several_texts(gh, texts, field):
    refused(gh, lambda: gh.calls.nonlinearity("m", texts), field)
    refused(gh, lambda: gh.calls.consensus("m", texts), field)


def test_texts_in_every_form_that_is_one(gh):
    for ids in ([1, 2], (1, 2), range(1, 3), np.array([1, 2]), np.array([1, 2], np.uint8), [np.int64(1), 2],
                iter([1, 2])):
        assert list(gh.calls.score("m", ids).request.input.token_ids.ids) == [1, 2]
    assert len(gh.calls.nonlinearity("m", [np.array([1, 2]), "x"]).request.inputs) == 2


@pytest.mark.parametrize("policy", ["linear", 0.5, ["linear"]])
def test_policies_that_are_none(gh, policy):
    assert "gatehouse.gating" in refused(gh, lambda: gh.calls.generate("m", "x", gating=policy), "gating")


def test_policies(gh):
    for policy in (gh.Quorum(1, "sikp"), gh.Quorum("5"), gh.Gated(layers=5), gh.Gated(layers="12"), gh.Gated):
        refused(gh, lambda policy=policy: gh.calls.score("m", "x", gating=policy), "gating")


def test_changes(gh):
    def generate(*changes):
        return lambda: gh.calls.generate("m", "x", interventions=changes)

    for change in (gh.Zero(1.7, 2), gh.Zero("1", 2), gh.Zero(1, [2.0]), gh.ForcePath(1, "fast"), gh.ForcePath(1, None),
                   gh.Patch(1, "mlp_out", "abc"), gh.Patch(1, "mlp_out", [1j]), gh.Patch(1, "mlp_out", [[1], [1, 2]]),
                   gh.Patch(1, "here", [1.0]), "zero"):
        refused(gh, generate(gh.Zero(0, 0), change), "interventions[1]")
    refused(gh, lambda: gh.calls.generate("m", "x", interventions=gh.Zero(1, 2)), "interventions")
    refused(gh, lambda: gh.calls.generate("m", "x", captures=gh.Capture("mlp_in")), "captures")
    message = generate(gh.Zero(np.int64(1), np.array([2, 3])))().request.interventions[0]
    assert (list(message.layers), list(message.neurons.neurons)) == ([1], [2, 3])


@pytest.mark.parametrize("name, value", [("stop", None), ("stop", 5), ("stop_token_ids", 5), ("record", 5),
                                         ("logit_bias", [1, 2]), ("seed", -1), ("max_tokens", 1.5)])
def test_arguments_of_other_kinds(gh, name, value):
    with pytest.raises(gh.errors.InvalidArgumentError, match=name):
        gh.calls.generate("m", "x", **{name: value})


def test_numbers_that_are_not_finite_are_the_servers_to_refuse(gh, client):
    model = "novella-neox-4m"
    for gating in (gh.Gated(math.nan), gh.Gated(layer_thresholds={1: math.nan}),
                   gh.Gated(0.5, ladder_threshold=math.inf)):
        with pytest.raises(gh.errors.InvalidArgumentError, match="gating|threshold"):
            client.score(model, "x y", gating=gating)
    for change in (gh.Set(1, 2, math.nan), gh.Scale(1, 2, math.inf), gh.Patch(1, "mlp_out", np.full(192, 1e300))):
        with pytest.raises(gh.errors.InvalidArgumentError, match=r"interventions\[0\]"):
            client.score(model, "x y", interventions=[change])
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        with pytest.raises(gh.errors.InvalidArgumentError, match=name):
            client.generate(model, "x", **{name: math.nan}).result()
    with pytest.raises(gh.errors.InvalidArgumentError, match="logit_bias"):
        client.generate(model, "x", logit_bias={1: math.nan}).result()


def test_a_text_that_is_too_long_for_a_message(gh, client):
    """The server's bound is 8 MiB."""
    for text in ("x" * (9 << 20), np.full(3 << 20, 50_000)):
        with pytest.raises(gh.errors.ResourceExhaustedError):
            client.score("novella-neox-4m", text)
    assert client.models()


def test_messages_whose_numbers_are_none_give_no_bounds(gh):
    class Failed:
        def __init__(self, text):
            self.text = text

        def code(self):
            from grpc import StatusCode
            return StatusCode.INVALID_ARGUMENT

        def details(self):
            return self.text

        def trailing_metadata(self):
            return None

    from gatehouse.v1 import generation_pb2
    for text, bounds in [("model is odd, must be in [2026-11-30, 1.2.3]", (None, None)),
                         ("model is odd, must be at least 1.2.3", (None, None)), ("model is odd", None)]:
        error = gh.errors.from_rpc(Failed(text), generation_pb2.GenerateRequest())
        assert (error.field, error.bounds) == ("model", bounds)


def test_values_that_only_a_newer_server_knows(gh):
    from gatehouse import folds
    from gatehouse.v1 import common_pb2, generation_pb2
    fold = folds.GenerationFold("m")
    insight = common_pb2.TokenInsight(paths=[1, 99])
    fold.add(generation_pb2.GenerateResponse(token=generation_pb2.GeneratedToken(id=1, insight=insight)))
    fold.add(generation_pb2.GenerateResponse(summary=generation_pb2.GenerationSummary(finish_reason=99)))
    result = fold.result()
    assert result.finish_reason == "99" and result.trace.paths.tolist() == [["full", ""]]


def test_a_client_that_is_closed(gh):
    client = gh.connect(NOWHERE)
    client.close()
    for call in (client.models, lambda: client.generate("m", "x"), lambda: client.upload(b"x"),
                 lambda: client.wait_until_ready(5)):
        with pytest.raises(gh.errors.FailedPreconditionError, match="the client is closed"):
            call()
    client.close()


def test_a_wait_that_never_ends(gh):
    with gh.connect(NOWHERE) as client:
        refused(gh, lambda: client.wait_until_ready(math.nan), "timeout")
        with pytest.raises(gh.errors.DeadlineExceededError):
            client.wait_until_ready(-1)
