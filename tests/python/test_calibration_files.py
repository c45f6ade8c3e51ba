"""Calibration files made in Python: what is written, what is refused, and that a server serves them."""

import hashlib
import json

import numpy as np
import pytest
import service
from test_client import MODEL, TEXT

DEFAULT = service.SOURCE / "models" / MODEL / "calibrations/default.safetensors"


@pytest.fixture(scope="module")
def made(gh, client, tmp_path_factory):
    """Files of our own: {name: Calibration}, and the folder that holds them as a state directory does."""
    calibration = gh.calibration
    model = client.model(MODEL)
    random = np.random.default_rng(0)

    def layers(gate_bias):
        return [calibration.Layer(random.normal(0, 0.02, (model.d_model, model.d_model)),
                                  random.normal(0, 0.1, model.d_model), gate_bias=gate_bias)
                for _ in range(model.layers)]

    # Always linear, everywhere and from the first token on.
    always = calibration.Calibration(layers(calibration.ALWAYS), model.fingerprint,
                                     {"name": "what it was", "sink_positions": 0, "corpus": "Straße"})
    # Never, but at an operating point that sends layer 4 linear and layer 3 to a ladder of all neurons.
    never = calibration.Calibration(layers(calibration.NEVER), model.fingerprint, {"sink_positions": 0})
    never.layers[3].ladder = calibration.Ladder(np.zeros((model.d_model, model.d_model)), np.zeros(model.d_model),
                                                np.arange(model.d_mlp))
    never.layers[2].neuron_mean = random.normal(size=model.d_mlp)
    never.layers[2].about = {"gateable": False, "consensus": [{"neuron": 7}], "linear_cost": 0.2}
    never.operating_points = [calibration.OperatingPoint(
        "mine", [-1.0 if i == 4 else 1.0 for i in range(model.layers)],
        [-1.0 if i == 3 else 1.0 for i in range(model.layers)], {"budget": 0.5})]
    folder = tmp_path_factory.mktemp("served") / "state" / "calibrations" / MODEL
    folder.mkdir(parents=True)
    made = {"always": always, "never": never}
    fingerprints = {name: found.save(folder / f"{name}.safetensors", model) for name, found in made.items()}
    return made, fingerprints, folder


@pytest.fixture(scope="module")
def served(gh, made):
    """A client of a server that found these files."""
    with service.Server(made[2].parents[2]) as server, gh.connect(server.address) as connected:
        yield connected


def test_the_server_takes_them_and_tells_of_them_what_was_written(served, made):
    _, fingerprints, folder = made
    found = {entry.name: entry.fingerprint for entry in served.model(MODEL).calibrations}
    assert fingerprints.items() <= found.items()
    file = (folder / "always.safetensors").read_bytes()
    assert fingerprints["always"] == "sha256:" + hashlib.sha256(file).hexdigest()
    served.select_calibration(MODEL, "never")
    told = served.model(MODEL).calibration
    assert told.layers["gateable"].tolist() == [True, True, False, True, True, True]
    assert told.layers["ladder_neurons"][3] == served.model(MODEL).d_mlp
    assert told.consensus[2][0].neuron == 7
    assert told.operating_points["mine"].linear_thresholds.tolist() == [1, 1, 1, 1, -1, 1]
    served.select_calibration(MODEL, "always")
    assert served.model(MODEL).calibration.corpus == "Straße"


def test_gates_that_always_say_linear_give_a_fraction_of_one(served, gh):
    result = served.score(MODEL, TEXT, gating=gh.Gated(calibration="always"), record="gate")
    assert result.routing.linear_fraction == 1.0
    assert (result.trace.gate_probability == 1).all()
    never = served.score(MODEL, TEXT, gating=gh.Gated(calibration="never"))
    assert never.routing.linear_fraction == 0.0
    linear = served.score(MODEL, TEXT, gating=gh.Linear(calibration="always"))
    np.testing.assert_array_equal(result.logprobs, linear.logprobs)


def test_the_server_computes_the_surrogates_that_were_written(served, gh, made):
    layers = made[0]["always"].layers
    captures = [gh.Capture(site) for site in ("mlp_in", "mlp_out")]
    taken = served.score(MODEL, TEXT, gating=gh.Linear(calibration="always"), captures=captures).activations
    for index, layer in enumerate(layers):
        x, y = (taken[site, index].values for site in ("mlp_in", "mlp_out"))
        np.testing.assert_allclose(y, x @ layer.surrogate_weight.T + layer.surrogate_bias, rtol=1e-4, atol=1e-4)


def test_an_operating_point_uses_its_surrogate_and_its_ladder(served, gh):
    result = served.score(MODEL, TEXT, gating=gh.Gated(calibration="never", operating_point="mine"), record="routing")
    assert (result.trace.paths[:, 4] == "linear").all() and (result.trace.paths[:, 3] == "ladder").all()
    assert (result.trace.paths[:, [0, 1, 2, 5]] == "full").all()


def test_a_surrogate_that_is_fitted_in_numpy_serves(served, gh, tmp_path):
    captures = [gh.Capture(site, layers=4) for site in ("mlp_in", "mlp_out")]
    text = (service.SOURCE / "tests/data/corpus/treasure_island.txt").read_text()[:1500]
    taken = served.score(MODEL, text, captures=captures).activations
    x, y = (taken[site, 4].values[4:] for site in ("mlp_in", "mlp_out"))
    weight, bias = gh.calibration.fit_surrogate(x, y)
    assert (weight.shape, weight.dtype) == ((x.shape[1], x.shape[1]), np.float32)
    residual = y - (x @ weight.T + bias)
    assert np.square(residual).sum() < 0.5 * np.square(y - y.mean(axis=0)).sum()
    # Where its gradient is zero: X_c' (Y - XW' - b) = λ W'.
    np.testing.assert_allclose((x - x.mean(axis=0)).T @ residual, 0.01 * weight.T, atol=2e-3)
    np.testing.assert_allclose(residual.mean(axis=0), 0, atol=1e-5)


def test_a_file_that_is_read_and_written_again_is_the_same(gh, client, tmp_path, made):
    load = gh.calibration.Calibration.load
    for path in (DEFAULT, made[2] / "never.safetensors"):
        first = load(path)
        first.check(client.model(MODEL))
        fingerprint = first.save(tmp_path / path.name)
        second = load(tmp_path / path.name)
        assert second.save(tmp_path / path.name) == fingerprint
        assert second.description() == first.description()
        for one, other in zip(first.layers, second.layers, strict=True):
            np.testing.assert_array_equal(one.surrogate_weight, other.surrogate_weight)
            assert (one.ladder is None, one.neuron_mean is None, one.gate_bias) == (
                other.ladder is None, other.neuron_mean is None, other.gate_bias)
    assert not list(tmp_path.glob("*.part"))


def test_other_readers_read_it(gh, made):
    from gatehouse import safetensors
    theirs = pytest.importorskip("safetensors.numpy").load_file(made[2] / "never.safetensors")
    ours, metadata = safetensors.read(made[2] / "never.safetensors")
    assert set(ours) == set(theirs) and metadata["format"] == "gatehouse.calibration"
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array)


def test_half_precision_is_read(gh, tmp_path):
    from gatehouse import safetensors
    values = np.array([[1.5, -2.25], [1e-3, 3e38]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    header = json.dumps({"b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + halves.tobytes())
    arrays, _ = safetensors.read(path)
    assert arrays["b"].dtype == np.float32
    np.testing.assert_allclose(arrays["b"], values, rtol=2**-7)
    safetensors.write(path, {"h": values[:1].astype(np.float16)}, {})
    np.testing.assert_array_equal(safetensors.read(path)[0]["h"], values[:1])


# What is done to the file, and what the error names.
BAD = {
    "shape": (lambda c: setattr(c.layers[1], "surrogate_bias", np.zeros(3)), r"layers\[1\].*shape \[3\]"),
    "not finite": (lambda c: c.layers[0].surrogate_weight.__setitem__((0, 0), np.nan), r"layers\[0\].*not finite"),
    "too large for float32": (lambda c: setattr(c.layers[0], "gate_bias", 1e39), "not finite in float32"),
    "neurons": (lambda c: setattr(c.layers[3].ladder, "neurons", np.array([3, 3])), "ascending, each once"),
    "neurons of another model": (lambda c: setattr(c.layers[3].ladder, "neurons", np.array([10**6])), "ladder.neurons"),
    "a missing layer": (lambda c: c.layers.pop(), r"calibration.operating_points\[0\].layers"),
    "another model": (lambda c: setattr(c, "model_fingerprint", "sha256:0"), "model_fingerprint is sha256:0"),
    "an unknown key": (lambda c: c.about.update(corpuss="x"), "calibration.corpuss is not a key"),
    "an unknown key of a layer": (lambda c: c.layers[0].about.update(cost=1), r"layers\[0\].cost is not a key"),
    "a number": (lambda c: c.about.update(sink_positions=-1), r"sink_positions is -1, must be an integer in \[0"),
    "a text": (lambda c: c.about.update(corpus="x" * 257), "corpus is 'xxx.*256 bytes"),
    "a finding": (lambda c: c.layers[0].about.update(gateway=[{"neuron": 1}, {"neuron": 1}]), "neuron twice"),
    "a neuron": (lambda c: c.layers[0].about.update(gateway=[{"neuron": 10**6}]), "names neuron 1000000"),
    "a threshold": (lambda c: c.operating_points[0].linear_thresholds.__setitem__(0, 2.0), "linear_threshold is 2.0"),
    "a ladder that is not there": (lambda c: setattr(c.layers[3], "ladder", None), "layer 3, which has no ladder"),
    "complex numbers": (lambda c: setattr(c.layers[0], "surrogate_weight", c.layers[0].surrogate_weight * 1j),
                        "surrogate.weight has dtype complex"),
    "text": (lambda c: setattr(c.layers[0], "surrogate_bias", "abc"), "surrogate.bias has dtype"),
    "rows of several lengths": (lambda c: setattr(c.layers[1], "surrogate_bias", [[1], [1, 2]]),
                                "surrogate.bias is no array"),
    "nothing": (lambda c: setattr(c.layers[0], "gate_bias", None), "gate.bias has dtype object"),
    "no fingerprint": (lambda c: setattr(c, "model_fingerprint", None), "model_fingerprint is None"),
    # Where the difference of two is below zero, it is above.
    "unsigned neurons that fall": (lambda c: setattr(c.layers[3].ladder, "neurons", np.array([5, 1], np.uint64)),
                                   "ascending, each once"),
    "no number of this world": (lambda c: c.layers[0].about.update(p25=10**400), "p25 is 1000"),
    "half a character": (lambda c: c.about.update(corpus="\ud800"), "corpus is"),
    "thresholds that are none": (lambda c: setattr(c.operating_points[0], "linear_thresholds", None),
                                 "operating_points"),
    "an array of ladder thresholds": (lambda c: setattr(c.operating_points[0], "ladder_thresholds", np.zeros(6)),
                                      "which has no ladder"),
    "points of one name": (lambda c: c.operating_points.append(c.operating_points[0]), "name twice"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_the_server_would_refuse_is_refused_before_it_is_written(gh, client, made, tmp_path, what):
    calibration = gh.calibration.Calibration.load(made[2] / "never.safetensors")
    for layer in calibration.layers:
        layer.surrogate_weight = layer.surrogate_weight.copy()
    change, message = BAD[what]
    change(calibration)
    with pytest.raises(gh.calibration.CalibrationError, match=message):
        calibration.save(tmp_path / "bad.safetensors", client.model(MODEL))
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_file_is_one_the_server_takes(gh, made, tmp_path):
    for name in ("mine", ".mine.safetensors", "mi ne.safetensors", "x" * 65 + ".safetensors"):
        with pytest.raises(gh.calibration.CalibrationError, match="must be NAME.safetensors"):
            made[0]["never"].save(tmp_path / name)


def test_numbers_of_numpy_are_numbers(gh, tmp_path):
    calibration = gh.calibration
    layer = calibration.Layer(np.eye(3), np.zeros(3), about={
        "gateable": np.bool_(True), "linear_cost": np.float32(0.5), "consensus": [{"neuron": np.int64(3)}]})
    point = calibration.OperatingPoint("mine", np.ones(1), np.ones(1), {"budget": np.float64(0.5)})
    made = calibration.Calibration([layer], "sha256:0", {"fit_tokens": np.int32(7)}, [point])
    made.save(tmp_path / "mine.safetensors")
    read = calibration.Calibration.load(tmp_path / "mine.safetensors")
    assert read.layers[0].about == {"gateable": True, "linear_cost": 0.5, "consensus": [{"neuron": 3}]}
    assert read.about["fit_tokens"] == 7 and read.operating_points[0].about == {"budget": 0.5}


@pytest.mark.parametrize("x, y, ridge, message", [
    (np.zeros((5, 3)), np.zeros((4, 3)), 0.01, r"shapes \[5, 3\] and \[4, 3\]"),
    (np.zeros((0, 3)), np.zeros((0, 3)), 0.01, "a token or more"), (np.zeros(3), np.zeros(3), 0.01, "must both have"),
    (np.full((5, 3), np.nan), np.zeros((5, 3)), 0.01, "not finite"), ("x", "y", 0.01, "x has dtype"),
    (np.zeros((5, 3)), np.zeros((5, 3)), 0, "ridge is 0"),
    (np.zeros((5, 3)), np.zeros((5, 3)), np.nan, "ridge is nan")])
def test_a_surrogate_of_what_cannot_be_fitted(gh, x, y, ridge, message):
    with pytest.raises(gh.calibration.CalibrationError, match=message):
        gh.calibration.fit_surrogate(x, y, ridge)


@pytest.mark.parametrize("entry", [
    {"shape": [-1, -1]}, {"shape": [1.0]}, {"shape": ["1"]}, {"shape": [True]}, {"shape": 5}, {"shape": [[1]]},
    {"shape": [1] * 40}, {"shape": [0, 2**60], "data_offsets": [0, 0]}, {"dtype": ["F32"]}, {"dtype": "Q8"},
    {"data_offsets": [0]}, {"data_offsets": ["0", 4]}, {"data_offsets": [0, 2**70]}, {"data_offsets": [-4, 0]}])
def test_a_header_that_no_tensor_has(gh, tmp_path, entry):
    path = tmp_path / "x.safetensors"
    described = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **entry}
    for header in ({"layers.0.gate.bias": described}, {"__metadata__": [5], "x": described}, [described]):
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
        with pytest.raises(gh.calibration.CalibrationError):
            gh.calibration.Calibration.load(path)


def test_a_disk_that_is_full_leaves_nothing(gh, made, tmp_path):
    (tmp_path / "full.safetensors.part").symlink_to("/dev/full")
    with pytest.raises(OSError):
        made[0]["never"].save(tmp_path / "full.safetensors")
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_errors(gh, made, tmp_path):
    from gatehouse import safetensors
    whole = (made[2] / "never.safetensors").read_bytes()
    arrays, metadata = safetensors.read(made[2] / "never.safetensors")
    damaged = tmp_path / "damaged.safetensors"

    def refuse(message):
        with pytest.raises(gh.calibration.CalibrationError, match=message):
            gh.calibration.Calibration.load(damaged)

    for cut in (4, 100, len(whole) - 1):
        damaged.write_bytes(whole[:cut])
        refuse("damaged.safetensors")
    damaged.write_bytes(whole[:8] + b"x" + whole[9:])
    refuse("the header is not")
    for name, message in (("layers.0.gate.bias", "layers.0.gate.bias is missing"),
                          ("layers.3.ladder.bias", "layers.3.ladder.bias is missing")):
        safetensors.write(damaged, {key: array for key, array in arrays.items() if key != name}, metadata)
        refuse(message)
    safetensors.write(damaged, {**arrays, "layers.00.gate.bias": np.zeros(1)}, metadata)
    refuse("layers.00.gate.bias is not one of this format")
    # As many layers as would not fit into memory.
    safetensors.write(damaged, {**arrays, "layers.99999999999.gate.bias": np.zeros(1)}, metadata)
    refuse("tensor layers.6.surrogate.weight is missing")
    safetensors.write(damaged, arrays, {**metadata, "calibration": 5})
    refuse("not JSON")
    for key, value, message in (("format", "x", "format is 'x'"), ("version", "2", "version is '2'"),
                                ("calibration", "{", "not JSON"), ("calibration", '{"seed": -1}', "seed is -1")):
        safetensors.write(damaged, arrays, {**metadata, key: value})
        refuse(message)
