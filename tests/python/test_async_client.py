"""The client for asyncio against a real server: the same answers as the waiting one."""

import asyncio
import inspect

import numpy as np
import pytest
import service
from test_client import MODEL, TEXT, cancelled

# Every coroutine below runs in a loop of its own.


def run(gh, server, body):
    async def main():
        async with gh.AsyncClient(server.address) as client:
            return await asyncio.wait_for(body(client), 60)
    return asyncio.run(main())


def test_both_clients_have_the_same_methods_and_arguments(gh):
    public = [name for name in dir(gh.Client) if not name.startswith("_")]
    assert public == [name for name in dir(gh.AsyncClient) if not name.startswith("_")]
    for name in public:
        waiting, awaited = (inspect.signature(getattr(kind, name)) for kind in (gh.Client, gh.AsyncClient))
        assert list(waiting.parameters.values()) == list(awaited.parameters.values()), name
    for kind, other in ((gh.Operation, gh.AsyncOperation), (gh.Generation, gh.AsyncGeneration)):
        assert {name for name in dir(kind) if not name.startswith("_")} == {
            name for name in dir(other) if not name.startswith("_")}


def test_answers_are_those_of_the_waiting_client(gh, server, client):
    options = {"max_tokens": 10, "seed": 4, "gating": gh.Gated(0.3), "record": "routing"}
    captures = [gh.Capture("mlp_out", layers=1)]

    async def body(other):
        stream = other.generate(MODEL, TEXT, **options)
        chunks = [chunk async for chunk in stream.texts()]
        result = await stream.result()
        assert "".join(chunks) == result.text == stream.text
        return (result, await other.score(MODEL, TEXT, captures=captures), await other.nonlinearity(MODEL, TEXT),
                await other.consensus(MODEL, [TEXT]), await other.models(), await other.model(MODEL))

    generated, scored, nonlinear, consensus, models, model = run(gh, server, body)
    wanted = client.generate(MODEL, TEXT, **options).result()
    assert (generated.text, generated.trace.paths.tolist()) == (wanted.text, wanted.trace.paths.tolist())
    wanted = client.score(MODEL, TEXT, captures=captures)
    np.testing.assert_array_equal(scored.logprobs, wanted.logprobs)
    np.testing.assert_array_equal(scored.activations["mlp_out", 1].values, wanted.activations["mlp_out", 1].values)
    np.testing.assert_array_equal(nonlinear.scores, client.nonlinearity(MODEL, TEXT).scores)
    np.testing.assert_array_equal(consensus.levels, client.consensus(MODEL, TEXT).levels)
    assert models == client.models() and model.fingerprint == client.model(MODEL).fingerprint


def test_many_streams_run_at_once(gh, server):
    async def body(client):
        return await asyncio.gather(*(client.generate(MODEL, "It was", max_tokens=8, seed=seed).result()
                                      for seed in range(8)))

    results = run(gh, server, body)
    assert [result.seed for result in results] == list(range(8))
    assert len({result.text for result in results}) > 1


@pytest.mark.parametrize("leave", ["close", "with", "task"])
def test_leaving_a_stream_ends_the_generation_at_the_server(gh, server, leave):
    before = cancelled(server)

    async def body(client):
        stream = client.generate(MODEL, "It was", max_tokens=480, ignore_eos=True)
        await anext(stream)
        if leave == "close":
            stream.close()
            assert [token async for token in stream] == []
            with pytest.raises(gh.errors.CancelledError):
                await stream.result()
        elif leave == "with":
            async with stream:
                pass
        else:
            task = asyncio.ensure_future(stream.result())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.to_thread(service.wait_until, lambda: cancelled(server) == before + 1, "the end at the server")

    run(gh, server, body)


def test_errors_are_those_of_the_waiting_client(gh, server, tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"x" * 300_000 + b"\xff")

    async def body(client):
        with pytest.raises(gh.errors.InvalidArgumentError) as caught:
            await client.generate(MODEL, "It", gating=gh.Gated(2)).result()
        assert (caught.value.field, caught.value.bounds) == ("gating.threshold", (0, 1))
        with pytest.raises(gh.errors.NotFoundError):
            await client.model("nobody")
        with pytest.raises(gh.errors.NotFoundError):
            await client.operation("nobody")
        with pytest.raises(gh.errors.DeadlineExceededError):
            await client.score(MODEL, "It was. " * 20000, timeout=0.1, stride=64)
        with pytest.raises(gh.errors.InvalidArgumentError, match="at byte 300000"):
            await client.upload(tmp_path / "odd.txt")
        with pytest.raises(gh.errors.InvalidArgumentError) as caught:
            await client.upload(b"")
        assert caught.value.reason == "EMPTY_INPUT"

    run(gh, server, body)


def test_uploads_name_the_text_by_its_digest(gh, server, client):
    async def body(other):
        return await other.upload("ein Text – naïve".encode() * 40_000, name="text")

    corpus = run(gh, server, body)
    assert corpus == client.upload("ein Text – naïve".encode() * 40_000)
    assert corpus.name.startswith("corpora/") and corpus.size_bytes == 40_000 * len("ein Text – naïve".encode())


def test_a_client_that_is_closed_ends_its_calls_and_not_the_tasks_that_wait(gh, server):
    async def run():
        client = gh.AsyncClient(server.address)
        stream = client.generate(MODEL, "The captain", max_tokens=500)
        await stream.__anext__()
        waiting = [asyncio.ensure_future(stream.result()), asyncio.ensure_future(client.score(MODEL, TEXT * 200))]
        await asyncio.sleep(0.02)
        await client.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == 2 * [gh.errors.CancelledError], results
        for call in (client.models, lambda: client.upload(b"x"), lambda: client.wait_until_ready(5)):
            with pytest.raises(gh.errors.FailedPreconditionError, match="the client is closed"):
                await call()

    asyncio.run(run())


def test_a_task_that_is_cancelled_is_told_so(gh, server):
    async def run():
        async with gh.AsyncClient(server.address) as client:
            task = asyncio.ensure_future(client.generate(MODEL, "The captain", max_tokens=500).result())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.generate(MODEL, "The captain", max_tokens=500).result()

    asyncio.run(run())
