"""Operations through Envoy: each is asked for at the replica that runs it."""

import base64
import json

import pytest
from fleet import MODEL, ask
from service import SOURCE, gatehouse

CORPUS = SOURCE / "tests/data/corpus/treasure_island.txt"


def start_experiment(fleet, *arguments, corpora=(CORPUS,)):
    """Starts one through Envoy and leaves it; its name."""
    texts = [part for corpus in corpora for part in ("--corpus", corpus)]
    ran = gatehouse("experiment", *arguments, "-m", MODEL, *texts, "--fit-tokens", 1000, "--gate-tokens", 500,
                    "--select-tokens", 500, "--report-tokens", 500, "--window-tokens", 64, "--detach",
                    server=fleet.envoy.address)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def operations(fleet, verb, name, *arguments):
    return gatehouse("operations", verb, name, *arguments, server=fleet.envoy.address)


@pytest.mark.parametrize("replica", ["127.0.0.1", "127.0.0.2"])
def test_an_operation_is_watched_and_fetched_at_its_replica(fleet, replica, tmp_path):
    name = start_experiment(fleet, "cost", "--layers", "2", "--replica", replica)
    assert name.startswith(f"operations/{replica}/")
    watched = operations(fleet, "watch", name)
    assert watched.returncode == 0, watched.stderr
    # Would fail every other time if chance decided: the replicas share nothing.
    for _ in range(4):
        status, text = ask(fleet.envoy.address, f"/v1/{name}")
        assert status == 200 and json.loads(text)["operation"]["state"] == "OPERATION_STATE_SUCCEEDED"
        assert operations(fleet, "get", name).returncode == 0
    assert "What linear layers cost" in operations(fleet, "report", name).stdout
    assert operations(fleet, "fetch", name, "--file", "report.json", "-o", tmp_path / "report.json").returncode == 0
    status, text = ask(fleet.envoy.address, f"/v1/{name}:fetch?file=report.json")
    assert status == 200
    fetched = b"".join(base64.b64decode(json.loads(line)["data"]) for line in text.splitlines())
    assert fetched == (tmp_path / "report.json").read_bytes()

    # Without Envoy, the wrong replica says whom to ask.
    other = next(server for host, server in fleet.servers.items() if host != replica)
    wrong = gatehouse("operations", "get", name, server=other.address)
    assert wrong.returncode == 1 and f"ask replica {replica}" in wrong.stderr


@pytest.mark.parametrize("replica", ["127.0.0.1", "127.0.0.2"])
def test_an_operation_is_cancelled_at_its_replica(fleet, replica):
    training = ("train", "--schedule", "two-phase", "--final-steps", 100000)
    by_client = start_experiment(fleet, *training, "--replica", replica)
    by_json = start_experiment(fleet, *training, "--replica", replica)
    assert operations(fleet, "cancel", by_client).returncode == 0
    assert ask(fleet.envoy.address, f"/v1/{by_json}:cancel", {})[0] == 200
    for name in (by_client, by_json):
        status, text = ask(fleet.envoy.address, f"/v1/{name}:watch")
        last = json.loads(text.splitlines()[-1])["operation"]
        assert status == 200 and last["state"] == "OPERATION_STATE_CANCELLED", last


def test_an_operation_is_started_where_its_texts_are(fleet, tmp_path):
    """The client sends every text, and then the start, to the replica that took the first."""
    for attempt in range(4):
        texts = [CORPUS]
        for number in range(2):
            texts.append(tmp_path / f"{attempt}-{number}.txt")
            texts[-1].write_text(f"{attempt} {number} The captain walked slowly up the hill. " * 50)
        name = start_experiment(fleet, "cost", "--layers", "2", corpora=texts)
        assert operations(fleet, "cancel", name).returncode == 0
