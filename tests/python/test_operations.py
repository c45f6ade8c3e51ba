"""Operations through the Python client: corpora, a calibration, an experiment, and the other ends they can have."""

import io

import numpy as np
import pytest
import service
from test_client import MODEL, cli

BOOK = service.SOURCE / "tests/data/corpus/treasure_island.txt"
SMALL = {"fit_tokens": 700, "gate_tokens": 700, "select_tokens": 300, "report_tokens": 300, "window_tokens": 128}
# Long enough to be cancelled while it runs.
LONG = {"fit_tokens": 4000, "bootstrap_resamples": 1_000_000}


@pytest.fixture(scope="module")
def book(client):
    return client.upload(BOOK)


def test_a_corpus_is_streamed_and_checked(client, gh, book, tmp_path):
    assert (book.size_bytes, book.replica) == (BOOK.stat().st_size, client.replica())
    with open(BOOK, "rb") as opened:
        assert client.upload(opened, name=BOOK.name) == book
    with pytest.raises(TypeError, match="pathlib.Path"):
        client.upload(str(BOOK))
    # A character is cut where two messages meet, and is whole; then one is cut at the end.
    cut = ("x" * ((256 << 10) - 1) + "é").encode()
    assert client.upload(cut).size_bytes == len(cut)
    for odd, at in ((cut[:-1], len(cut) - 2), (cut[:-1] + b"x", len(cut) - 2), (b"ok\xff", 2)):
        with pytest.raises(gh.errors.InvalidArgumentError, match=f"not valid UTF-8 at byte {at} "):
            client.upload(odd)
    with pytest.raises(gh.errors.InvalidArgumentError) as caught:
        client.upload(io.BytesIO())
    assert caught.value.reason == "EMPTY_INPUT"


def test_an_experiment_ends_in_frames_and_arrays(client, server, gh, book, tmp_path):
    states = []
    operation = client.experiment(MODEL, book, gh.experiments.LinearizationCost(), layers=[1, 2],
                                  bootstrap_resamples=100, **SMALL)
    assert operation.wait(states.append, timeout=300) is operation
    assert states[-1].state == "succeeded" and states[-1].kind == "linearization_cost"
    assert [state.progress for state in states] == sorted(state.progress for state in states)
    report, wanted = operation.report(), cli(server, "operations", "report", operation.name)
    assert (report.title, report.model, report.summary) == (wanted["title"], MODEL, wanted["summary"])
    assert report.corpora == ((BOOK.name, book.name.split("/")[1], report.corpora[0][2]),)
    assert report.settings == {setting["name"]: setting["value"] for setting in wanted["settings"]}
    frames = report.frames()
    assert list(frames) == [table["name"] for table in wanted["tables"]]
    for table in wanted["tables"]:
        assert list(frames[table["name"]].columns) == [column["name"] for column in table["columns"]]
        for column in table["columns"]:
            cells = frames[table["name"]][column["name"]]
            if cells.dtype == float:
                np.testing.assert_allclose(cells, np.array(column["values"], dtype=float), rtol=1e-12)
            else:
                assert list(cells) == column["values"]
    name, table = next(iter(report.tables.items()))
    number = next(column for column, cells in table.columns.items() if cells.dtype == float)
    np.testing.assert_array_equal(operation.arrays()[f"{name}.{number}"], table.columns[number])
    assert "report.json" in operation.info.files
    operation.save(tmp_path / "report.json")
    assert (tmp_path / "report.json").read_bytes() == operation.fetch() and len(operation.fetch()) > 100
    assert report._repr_html_().count("<table>") == len(frames)
    # By its ID alone, and in the list.
    again = client.operation(operation.name.split("/")[2])
    assert again.info == operation.refresh()
    assert [found.name for found in client.operations(1)] == [operation.name]


def test_a_calibration_serves_when_it_is_done(client, gh, book):
    small = {"fit_tokens": 500, "gate_tokens": 300, "select_tokens": 128, "report_tokens": 128, "window_tokens": 64}
    operation = client.calibrate(MODEL, BOOK, name="from-python", activate=False, max_consensus=3, seed=5, **small)
    operation.wait(timeout=300)
    assert operation.info.result == "from-python"
    assert "from-python" in [entry.name for entry in client.model(MODEL).calibrations]
    linear = client.score(MODEL, "The captain walked slowly.", gating=gh.Linear(calibration="from-python"))
    assert linear.routing.calibration == "from-python" and linear.routing.linear_fraction > 0
    assert client.select_calibration(MODEL, "from-python").active
    try:
        assert client.model(MODEL).calibration.seed == 5
    finally:
        client.select_calibration(MODEL, "default")
    with pytest.raises(gh.errors.AlreadyExistsError):
        client.calibrate(MODEL, book, name="from-python")
    with pytest.raises(gh.errors.FailedPreconditionError):
        operation.report()  # a calibration leaves none


def test_one_that_is_cancelled_is_no_success(client, gh, book):
    operation = client.experiment(MODEL, book, gh.experiments.GateSweep(thresholds=[0.2, 0.5]), **LONG)
    with pytest.raises(gh.errors.FailedPreconditionError) as caught:
        operation.report()
    assert caught.value.reason == "NO_RESULT"
    with pytest.raises(gh.errors.DeadlineExceededError):
        operation.wait(timeout=0.3)
    assert not operation.refresh().done
    operation.cancel()
    with pytest.raises(gh.errors.OperationError, match="cancelled") as ended:
        operation.wait(timeout=300)
    assert (ended.value.operation, ended.value.state) == (operation.name, "cancelled") and operation.done


def test_what_is_wrong_with_a_specification_is_named(client, gh, book):
    def failure(method, **settings):
        with pytest.raises(gh.GatehouseError) as caught:
            client.experiment(MODEL, settings.pop("corpora", book), method, **settings)
        return caught.value

    error = failure(gh.experiments.Consensus(max_consensus=65))
    assert (error.field, error.bounds) == ("experiment.consensus.max_consensus", (1, 64))
    error = failure(gh.experiments.Consensus(), bootstrap_resamples=3)
    assert error.field == "experiment.bootstrap_resamples" and error.bounds[0] == 100
    assert failure(gh.experiments.NoFly()).field == "experiment.corpora"
    assert failure(gh.experiments.Consensus(), corpora="corpora/" + "0" * 64).reason == "CORPUS_NOT_FOUND"
    assert failure(gh.experiments.Training(schedule="never")).field == "training.schedule"
    assert failure(gh.experiments.Consensus(max_consensus=-1)).field == "consensus.max_consensus"
    assert failure("consensus").field == "method"
    with pytest.raises(ValueError, match="must be 1"):
        client.calibrate(MODEL, [book, book])
    with pytest.raises(gh.errors.InvalidArgumentError) as caught:
        client.calibrate(MODEL, book, budgets=[11])
    assert caught.value.bounds == (0, 10)


def test_every_method_has_the_fields_of_its_message(gh):
    from dataclasses import fields

    from gatehouse.v1 import operations_pb2
    spec = operations_pb2.ExperimentSpec.DESCRIPTOR
    methods = gh.experiments.Method.__subclasses__()
    assert {kind.field for kind in methods} == {field.name for field in spec.oneofs_by_name["method"].fields}
    for kind in methods:
        message = spec.fields_by_name[kind.field].message_type
        assert [entry.name for entry in fields(kind)] == [field.name for field in message.fields]
        kind().message()
