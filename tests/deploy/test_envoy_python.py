"""The Python client through Envoy: streams, scores, and operations that are followed while a replica dies."""

import asyncio

import numpy as np
import pytest
from fleet import MODEL
from service import SOURCE

CORPUS = SOURCE / "tests/data/corpus/treasure_island.txt"
TEXT = "It was a cold night, and nobody had slept."
QUICK = {"layers": [2], "fit_tokens": 1000, "gate_tokens": 500, "select_tokens": 500, "report_tokens": 500,
         "window_tokens": 64}


@pytest.fixture(scope="module")
def client(gh, fleet):
    with gh.connect(fleet.envoy.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone(gh, fleet):
    """A client of one replica, without Envoy."""
    with gh.connect(fleet.servers["127.0.0.2"].address) as connected:
        yield connected


def test_answers_are_those_of_a_replica(gh, client, alone):
    gating = gh.Gated(0.5)
    through, direct = (list(c.generate(MODEL, "The captain", max_tokens=40, temperature=0, gating=gating))
                       for c in (client, alone))
    assert [token.id for token in through] == [token.id for token in direct] and len(through) == 40
    scores = [c.score(MODEL, TEXT, gating=gating, record="routing") for c in (client, alone)]
    np.testing.assert_array_equal(scores[0].logprobs, scores[1].logprobs)
    assert (scores[0].trace.paths == scores[1].trace.paths).all()
    maps = [c.nonlinearity(MODEL, [TEXT, "Nobody had slept."]) for c in (client, alone)]
    assert len(maps[0].texts) == 2
    for one, other in zip(maps[0].texts, maps[1].texts):
        np.testing.assert_array_equal(one.nonlinearity, other.nonlinearity)
    with pytest.raises(gh.errors.InvalidArgumentError) as caught:
        client.generate(MODEL, "x", temperature=-1).result()
    assert (caught.value.reason, caught.value.field) == ("INVALID_FIELD", "sampling.temperature")


def test_many_calls_at_once_are_spread(gh, fleet):
    before = {host: fleet.generations(host) for host in fleet.servers}

    async def run():
        async with gh.AsyncClient(fleet.envoy.address) as other:
            async def generate():
                stream = other.generate(MODEL, TEXT, max_tokens=8, temperature=0)
                return "".join([text async for text in stream.texts()])
            texts, scores, scored = await asyncio.gather(
                asyncio.gather(*(generate() for _ in range(16))),
                asyncio.gather(*(other.score(MODEL, TEXT) for _ in range(8))), other.nonlinearity(MODEL, TEXT))
            return texts, scores, scored

    texts, scores, scored = asyncio.run(run())
    assert len(set(texts)) == 1 and texts[0]
    assert len({score.total_logprob for score in scores}) == 1
    assert scored.scores.shape[0] == scores[0].token_count
    shares = [fleet.generations(host) - before[host] for host in fleet.servers]
    assert sum(shares) == 16 and min(shares) >= 4, shares


@pytest.mark.parametrize("replica", ["127.0.0.1", "127.0.0.2"])
def test_an_operation_is_followed_at_its_replica(gh, client, fleet, replica, tmp_path):
    heard = []
    corpus = client.upload(CORPUS, replica=replica)
    assert corpus.replica == replica
    operation = client.experiment(MODEL, corpus, gh.experiments.LinearizationCost(), **QUICK)
    assert operation.name.startswith(f"operations/{replica}/")
    assert operation.wait(heard.append, timeout=120).done and heard[-1].state == "succeeded"
    # Would fail every other time if chance decided: the replicas share nothing.
    for _ in range(4):
        assert client.operation(operation.name).state == "succeeded"
    assert set(operation.report().tables) and operation.arrays()
    operation.save(tmp_path / "report.json", "report.json")

    async def follow():
        async with gh.AsyncClient(fleet.envoy.address) as other:
            training = gh.experiments.Training(schedule="two_phase", final_steps=100000)
            started = await other.experiment(MODEL, CORPUS, training, **QUICK)
            async for state in started.watch(timeout=120):
                if state.state == "running":
                    await started.cancel()
            return started

    assert asyncio.run(follow()).state == "cancelled"


def test_an_operation_is_followed_past_the_death_of_its_replica(gh, client, fleet):
    corpus = client.upload(CORPUS, replica="127.0.0.1")
    operation = client.experiment(MODEL, corpus, gh.experiments.Training(schedule="two_phase", final_steps=100000),
                                  **QUICK)

    def restart_once(state):
        if state.state == "running" and not restarted:
            fleet.servers["127.0.0.1"].kill()
            # Another replica answers for it now, and does not know it: that is no end.
            restarted.append(pytest.raises(gh.GatehouseError, operation.refresh).value.reason)
            fleet.start(1)

    restarted = []
    with pytest.raises(gh.errors.OperationError) as caught:
        operation.wait(restart_once, timeout=120)
    assert restarted == ["OPERATION_NOT_FOUND"] and caught.value.state == "interrupted"
    fleet.wait_for_all()


def test_a_stream_of_a_replica_that_dies_fails_and_those_of_others_end(gh, fleet):
    """And the same client's next calls succeed at once."""
    async def run():
        async with gh.AsyncClient(fleet.envoy.address) as other:
            streams = [other.generate(MODEL, "The captain", max_tokens=500, temperature=0) for _ in range(8)]
            await asyncio.gather(*(stream.__anext__() for stream in streams))
            running = fleet.metric("127.0.0.2", "gatehouse_requests_running")
            fleet.servers["127.0.0.1"].kill()
            scores = [await other.score(MODEL, TEXT) for _ in range(4)]
            return running, scores, await asyncio.gather(*(stream.result() for stream in streams),
                                                         return_exceptions=True)

    running, scores, results = asyncio.run(run())
    assert len({score.total_logprob for score in scores}) == 1
    failed = [result for result in results if isinstance(result, Exception)]
    assert all(isinstance(error, gh.errors.UnavailableError) for error in failed), failed
    assert 0 < running < 8 and len(results) - len(failed) == running
    fleet.start(1)
    fleet.wait_for_all()
