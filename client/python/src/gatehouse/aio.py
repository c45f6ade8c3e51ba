"""The client for asyncio: the methods of `Client`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import grpc
import grpc.aio
import numpy.typing as npt

from gatehouse import calls
from gatehouse import operations as ops
from gatehouse.calls import Streaming, Unary
from gatehouse.channel import DEFAULT_SERVER, Connection, Deadline, Options, metadata, seconds
from gatehouse.errors import CancelledError, DeadlineExceededError, GatehouseError, from_rpc
from gatehouse.folds import GenerationFold
from gatehouse.methods import as_method
from gatehouse.operations import Corpora, Corpus, OperationState, OperationView
from gatehouse.report import Report
from gatehouse.requests import DEFAULT, Timeout
from gatehouse.results import GenerationResult, Token
from gatehouse.streams import StreamState
from gatehouse.uploads import UPLOAD, Upload, UploadSource, corpus_of, sources
from gatehouse.v1 import operations_pb2

P = ParamSpec("P")
Item = TypeVar("Item")
Result = TypeVar("Result")


def _unary(build: Callable[P, Unary[Result]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[Result]]:
    async def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> Result:
        return await self.run(build(*args, **kwargs))
    return cast("Callable[Concatenate[AsyncClient, P], Awaitable[Result]]",
                as_method(build, method))


def _collecting(build: Callable[P, Streaming[Any, Result]]
                ) -> Callable[Concatenate[AsyncClient, P], Awaitable[Result]]:
    async def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> Result:
        async with self.stream(build(*args, **kwargs)) as stream:
            return await stream.result()
    return cast("Callable[Concatenate[AsyncClient, P], Awaitable[Result]]",
                as_method(build, method))


def _generating(build: Callable[P, Streaming[Token, GenerationResult]]
                ) -> Callable[Concatenate[AsyncClient, P], AsyncGeneration]:
    def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> AsyncGeneration:
        return AsyncGeneration(self, build(*args, **kwargs))
    return cast("Callable[Concatenate[AsyncClient, P], AsyncGeneration]", as_method(build, method, "AsyncGeneration"))


def _starting(build: Callable[Concatenate[str, list[str], P], Unary[OperationState]]
              ) -> Callable[Concatenate[AsyncClient, str, Corpora, P], Awaitable[AsyncOperation]]:
    async def method(self: AsyncClient, model: str, corpora: Corpora, *args: P.args,
                     **kwargs: P.kwargs) -> AsyncOperation:
        names, replica = await self.upload_corpora(corpora)
        call = build(model, names, *args, **kwargs)
        return AsyncOperation(self, await self.run(dataclasses.replace(call, replica=call.replica or replica)))
    return cast("Callable[Concatenate[AsyncClient, str, Corpora, P], Awaitable[AsyncOperation]]",
                as_method(build, method, "AsyncOperation"))


class AsyncStream(StreamState[Item, Result]):
    """An answer that comes in pieces: `async for` over it, or await its `result()`.

    The call runs from the start.  Leaving an `async with` block, close(), or the end of the task that waits for it
    cancels what is left of it, and the server stops within a step.
    """

    def __init__(self, client: AsyncClient, call: Streaming[Item, Result]) -> None:
        super().__init__(call)
        self._rpc = client.start(call)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._has_ended():
                raise StopAsyncIteration
            await self._advance()
        return self._items.popleft()

    async def _advance(self) -> None:
        try:
            response = await self._rpc.read()
        except asyncio.CancelledError:
            if self._state == "closed":  # by close(), not by the end of this task
                return
            self.close()
            with _told_of_closing():
                raise
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from None
        if response is grpc.aio.EOF:
            self._state = "ended"
        else:
            self._items.extend(self._fold.add(response))

    async def result(self) -> Result:
        """Waits for the rest; the whole answer.  CancelledError where it was closed before its end."""
        async for _ in self:
            pass
        return self._whole()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self.close()


class AsyncGeneration(AsyncStream[Token, GenerationResult]):
    """Tokens as they are generated; see `Generation`."""

    @property
    def text(self) -> str:
        """All text so far."""
        return cast(GenerationFold, self._fold).text

    async def texts(self) -> AsyncIterator[str]:
        """The text as it becomes certain: whole characters; joined it is the result's text."""
        async for token in self:
            if token.text:
                yield token.text
        if tail := cast(GenerationFold, self._fold).tail:
            yield tail


class AsyncClient(Connection):
    """A connection to a Gatehouse server, for asyncio; see `Client`.  Belongs to the event loop that first uses it."""

    def __init__(self, server: str = DEFAULT_SERVER, options: Options | None = None) -> None:
        super().__init__(grpc.aio, server, options)

    async def close(self) -> None:
        """Ends the connection and every call on it."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Waits for a connection; DeadlineExceededError where there is none in time."""
        try:
            await asyncio.wait_for(self._open().channel_ready(), seconds(timeout, None))
        except asyncio.TimeoutError:
            raise DeadlineExceededError(f"no server answered within {timeout:g} s") from None

    generate = _generating(calls.generate)
    score = _collecting(calls.score)
    nonlinearity = _collecting(calls.nonlinearity)
    consensus = _collecting(calls.consensus)
    models = _unary(calls.models)
    replica = _unary(calls.replica)
    model = _unary(calls.model)
    select_calibration = _unary(calls.select_calibration)
    calibrate = _starting(ops.calibrate)
    experiment = _starting(ops.experiment)

    async def upload(self, source: UploadSource, *, name: str = "", replica: str = "",
                     timeout: Timeout = DEFAULT) -> Corpus:
        """Uploads a text for operations: a pathlib.Path, bytes, or an open binary file.

        name: for reports.  replica: that a proxy is to send it to, such as the one that has an earlier Corpus.
        """
        call = self._open().stream_unary(f"/{UPLOAD}", operations_pb2.UploadCorpusRequest.SerializeToString,
                                         operations_pb2.UploadCorpusResponse.FromString)(
            timeout=seconds(timeout, self.options.stream_timeout),
            metadata=metadata(replica or self.options.replica))
        try:
            with _told_of_closing():
                for message in Upload(source, name).messages():
                    await call.write(message)
                await call.done_writing()
                return corpus_of(await call)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, None) from None
        except asyncio.InvalidStateError:  # the server has ended the call, and says why
            raise from_rpc(await _failure(call), None) from None
        finally:
            call.cancel()

    async def operation(self, name: str, *, timeout: Timeout = DEFAULT) -> AsyncOperation:
        """An operation by its name, "operations/REPLICA/ID"; its ID alone will do where it is in the list."""
        if "/" in name:
            return AsyncOperation(self, await self.run(ops.get(name, timeout)))
        return ops.with_id(await self.operations(timeout=timeout), name)

    async def operations(self, limit: int | None = None, *, timeout: Timeout = DEFAULT) -> list[AsyncOperation]:
        """Newest first, at most `limit`."""
        listing = ops.Listing(limit, timeout)
        while call := listing.next_page():
            listing.add(await self.run(call))
        return [AsyncOperation(self, state) for state in listing.states]

    async def upload_corpora(self, corpora: Corpora) -> tuple[list[str], str]:
        """The names of texts, of which files are uploaded, and the replica that has them: the first one's."""
        names, replica = [], ""
        for source in sources(corpora):
            if isinstance(source, os.PathLike):
                source = await self.upload(source, replica=replica)
            names.append(source.name if isinstance(source, Corpus) else source)
            replica = replica or (source.replica if isinstance(source, Corpus) else "")
        return names, replica

    async def run(self, call: Unary[Result]) -> Result:
        """Runs a call with one answer."""
        method = self._open().unary_unary(f"/{call.method}", lambda request: request.SerializeToString(),
                                          call.response.FromString)
        try:
            with _told_of_closing():
                response = await method(call.request, timeout=seconds(call.timeout, self.options.timeout),
                                        metadata=metadata(call.replica or self.options.replica))
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, call.request) from None
        return call.parse(response)

    def stream(self, call: Streaming[Item, Result]) -> AsyncStream[Item, Result]:
        """Starts a call whose answer is a stream."""
        return AsyncStream(self, call)

    def start(self, call: Streaming[Any, Any]) -> Any:
        """gRPC's own handle of a call."""
        method = self._open().unary_stream(f"/{call.method}", lambda request: request.SerializeToString(),
                                           call.response.FromString)
        return method(call.request, timeout=seconds(call.timeout, self.options.stream_timeout),
                      metadata=metadata(call.replica or self.options.replica))


@contextlib.contextmanager
def _told_of_closing() -> Iterator[None]:
    """CancelledError where the client was closed during a call, which gRPC tells as if the task that waits for it had
    been cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CancelledError("the client was closed during the call") from None


async def _failure(call: Any) -> Any:
    """The error of a call that has ended."""
    return grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata(),
                                await call.details())


class AsyncOperation(OperationView):
    """A calibration or an experiment at the server; see `Operation`."""

    def __init__(self, client: AsyncClient, info: OperationState) -> None:
        super().__init__(info)
        self._client = client

    async def refresh(self, *, timeout: Timeout = DEFAULT) -> OperationState:
        """Asks for its state."""
        self.info = await self._client.run(ops.get(self.name, timeout))
        return self.info

    async def cancel(self, *, timeout: Timeout = DEFAULT) -> OperationState:
        """Asks it to stop; it ends as "cancelled" soon after."""
        self.info = await self._client.run(ops.cancel(self.name, timeout))
        return self.info

    async def watch(self, *, timeout: float | None = None) -> AsyncIterator[OperationState]:
        """Its state whenever it changes, until it has ended.  Goes on through a short absence of the server."""
        deadline = Deadline(timeout)
        failures = 0
        while True:
            try:
                async with self._client.stream(ops.watch(self.name, deadline.left())) as stream:
                    async for self.info in stream:
                        failures = 0
                        yield self.info
                return
            except GatehouseError as error:
                if self.done:
                    return
                if not ops.absent(error) or failures == len(ops.RECONNECT):
                    raise
            await asyncio.sleep(ops.RECONNECT[failures])
            failures += 1

    async def wait(self, on_change: Callable[[OperationState], object] | None = None, *,
                   timeout: float | None = None) -> Self:
        """Waits until it has succeeded; see Operation.wait."""
        async for state in self.watch(timeout=timeout):
            if on_change:
                on_change(state)
        self.info.check()
        return self

    async def report(self, *, timeout: Timeout = DEFAULT) -> Report:
        """An experiment's report, once it has ended."""
        async with self._client.stream(ops.report(self.name, timeout)) as stream:
            return await stream.result()

    async def arrays(self, *, timeout: Timeout = DEFAULT) -> dict[str, npt.NDArray[Any]]:
        """An experiment's arrays, and every column of numbers as TABLE.COLUMN."""
        return ops.load_arrays(await self.fetch("arrays.npz", timeout=timeout))

    async def fetch(self, file: str = "", *, timeout: Timeout = DEFAULT) -> bytes:
        """One of `info.files`; its result where none is named, for a calibration the calibration file."""
        async with self._client.stream(ops.fetch(self.name, file, timeout)) as stream:
            return b"".join([piece async for piece in stream])

    async def save(self, path: os.PathLike[str] | str, file: str = "", *, timeout: Timeout = DEFAULT) -> None:
        """Writes one of `info.files` to `path`, piece by piece."""
        async with self._client.stream(ops.fetch(self.name, file, timeout)) as stream:
            with open(path, "wb") as out:
                async for piece in stream:
                    out.write(piece)
