"""The client that waits."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import grpc
import numpy.typing as npt

from gatehouse import calls
from gatehouse import operations as ops
from gatehouse.calls import Streaming, Unary
from gatehouse.channel import DEFAULT_SERVER, Connection, Deadline, Options, metadata, seconds
from gatehouse.errors import DeadlineExceededError, GatehouseError, from_rpc
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


def _unary(build: Callable[P, Unary[Result]]) -> Callable[Concatenate[Client, P], Result]:
    def method(self: Client, *args: P.args, **kwargs: P.kwargs) -> Result:
        return self.run(build(*args, **kwargs))
    return cast("Callable[Concatenate[Client, P], Result]", as_method(build, method))


def _collecting(build: Callable[P, Streaming[Any, Result]]) -> Callable[Concatenate[Client, P], Result]:
    def method(self: Client, *args: P.args, **kwargs: P.kwargs) -> Result:
        with self.stream(build(*args, **kwargs)) as stream:
            return stream.result()
    return cast("Callable[Concatenate[Client, P], Result]", as_method(build, method))


def _generating(build: Callable[P, Streaming[Token, GenerationResult]]) -> Callable[Concatenate[Client, P], Generation]:
    def method(self: Client, *args: P.args, **kwargs: P.kwargs) -> Generation:
        return Generation(self, build(*args, **kwargs))
    return cast("Callable[Concatenate[Client, P], Generation]", as_method(build, method, "Generation"))


def _starting(build: Callable[Concatenate[str, list[str], P], Unary[OperationState]]
              ) -> Callable[Concatenate[Client, str, Corpora, P], Operation]:
    def method(self: Client, model: str, corpora: Corpora, *args: P.args, **kwargs: P.kwargs) -> Operation:
        names, replica = self.upload_corpora(corpora)
        call = build(model, names, *args, **kwargs)
        return Operation(self, self.run(dataclasses.replace(call, replica=call.replica or replica)))
    return cast("Callable[Concatenate[Client, str, Corpora, P], Operation]", as_method(build, method, "Operation"))


class Stream(StreamState[Item, Result]):
    """An answer that comes in pieces: iterate over it, or take its `result()`.

    The call runs from the start.  Leaving a `with` block, close(), or dropping the last reference cancels what is left
    of it, and the server stops within a step.
    """

    def __init__(self, client: Client, call: Streaming[Item, Result]) -> None:
        super().__init__(call)
        self._rpc = client.start(call)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        while not self._items:
            if self._has_ended():
                raise StopIteration
            try:
                self._items.extend(self._fold.add(next(self._rpc)))
            except StopIteration:
                self._state = "ended"
            except grpc.RpcError as error:
                raise self._failed(error) from None
        return self._items.popleft()

    def result(self) -> Result:
        """Waits for the rest; the whole answer.  CancelledError where it was closed before its end."""
        for _ in self:
            pass
        return self._whole()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_rpc"):
            self.close()


class Generation(Stream[Token, GenerationResult]):
    """Tokens as they are generated.

    A token's text may be empty, and some may be held back until the end: use texts() to show the text as it comes.
    """

    @property
    def text(self) -> str:
        """All text so far."""
        return cast(GenerationFold, self._fold).text

    def texts(self) -> Iterator[str]:
        """The text as it becomes certain: whole characters; joined it is the result's text."""
        for token in self:
            if token.text:
                yield token.text
        if tail := cast(GenerationFold, self._fold).tail:
            yield tail


class Client(Connection):
    """A connection to a Gatehouse server; connects at its first call.  Safe to use from several threads.

    server: HOST:PORT; a name with several addresses is used round robin.  options: see gatehouse.Options.
    Every method takes `timeout`, seconds until the call's end; None: no deadline; default: the options'.
    """

    def __init__(self, server: str = DEFAULT_SERVER, options: Options | None = None) -> None:
        super().__init__(grpc, server, options)

    def close(self) -> None:
        """Ends the connection and every call on it."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Waits for a connection; DeadlineExceededError where there is none in time."""
        left = seconds(timeout, None)
        ready = grpc.channel_ready_future(self._open())
        try:
            ready.result(left)
        except grpc.FutureTimeoutError:
            raise DeadlineExceededError(f"no server answered within {timeout:g} s") from None
        finally:
            ready.cancel()

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

    def upload(self, source: UploadSource, *, name: str = "", replica: str = "",
               timeout: Timeout = DEFAULT) -> Corpus:
        """Uploads a text for operations: a pathlib.Path, bytes, or an open binary file.

        name: for reports.  replica: that a proxy is to send it to, such as the one that has an earlier Corpus.
        """
        upload = Upload(source, name)
        failures: list[Exception] = []
        begun = threading.Event()

        def messages() -> Iterator[operations_pb2.UploadCorpusRequest]:  # taken by a thread of gRPC's
            try:
                yield from upload.messages()
            except Exception as failure:
                failures.append(failure)
                begun.wait()
                call.cancel()

        method = self._open().stream_unary(f"/{UPLOAD}", operations_pb2.UploadCorpusRequest.SerializeToString,
                                           operations_pb2.UploadCorpusResponse.FromString)
        call = method.future(messages(), timeout=seconds(timeout, self.options.stream_timeout),
                             metadata=metadata(replica or self.options.replica))
        begun.set()
        try:
            return corpus_of(call.result())
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            raise (failures[0] if failures else from_rpc(error, None)) from None
        finally:
            call.cancel()

    def operation(self, name: str, *, timeout: Timeout = DEFAULT) -> Operation:
        """An operation by its name, "operations/REPLICA/ID"; its ID alone will do where it is in the list."""
        if "/" in name:
            return Operation(self, self.run(ops.get(name, timeout)))
        return ops.with_id(self.operations(timeout=timeout), name)

    def operations(self, limit: int | None = None, *, timeout: Timeout = DEFAULT) -> list[Operation]:
        """Newest first, at most `limit`."""
        listing = ops.Listing(limit, timeout)
        while call := listing.next_page():
            listing.add(self.run(call))
        return [Operation(self, state) for state in listing.states]

    def upload_corpora(self, corpora: Corpora) -> tuple[list[str], str]:
        """The names of texts, of which files are uploaded, and the replica that has them: the first one's."""
        names, replica = [], ""
        for source in sources(corpora):
            if isinstance(source, os.PathLike):
                source = self.upload(source, replica=replica)
            names.append(source.name if isinstance(source, Corpus) else source)
            replica = replica or (source.replica if isinstance(source, Corpus) else "")
        return names, replica

    def run(self, call: Unary[Result]) -> Result:
        """Runs a call with one answer."""
        method = self._open().unary_unary(f"/{call.method}", lambda request: request.SerializeToString(),
                                          call.response.FromString)
        try:
            response = method(call.request, timeout=seconds(call.timeout, self.options.timeout),
                              metadata=metadata(call.replica or self.options.replica))
        except grpc.RpcError as error:
            raise from_rpc(error, call.request) from None
        return call.parse(response)

    def stream(self, call: Streaming[Item, Result]) -> Stream[Item, Result]:
        """Starts a call whose answer is a stream."""
        return Stream(self, call)

    def start(self, call: Streaming[Any, Any]) -> Any:
        """gRPC's own handle of a call."""
        method = self._open().unary_stream(f"/{call.method}", lambda request: request.SerializeToString(),
                                           call.response.FromString)
        return method(call.request, timeout=seconds(call.timeout, self.options.stream_timeout),
                      metadata=metadata(call.replica or self.options.replica))


class Operation(OperationView):
    """A calibration or an experiment at the server.  It goes on when this object, or its client, is gone."""

    def __init__(self, client: Client, info: OperationState) -> None:
        super().__init__(info)
        self._client = client

    def refresh(self, *, timeout: Timeout = DEFAULT) -> OperationState:
        """Asks for its state."""
        self.info = self._client.run(ops.get(self.name, timeout))
        return self.info

    def cancel(self, *, timeout: Timeout = DEFAULT) -> OperationState:
        """Asks it to stop; it ends as "cancelled" soon after."""
        self.info = self._client.run(ops.cancel(self.name, timeout))
        return self.info

    def watch(self, *, timeout: float | None = None) -> Iterator[OperationState]:
        """Its state whenever it changes, until it has ended.  Goes on through a short absence of the server."""
        deadline = Deadline(timeout)
        failures = 0
        while True:
            try:
                with self._client.stream(ops.watch(self.name, deadline.left())) as stream:
                    for self.info in stream:
                        failures = 0
                        yield self.info
                return
            except GatehouseError as error:
                if self.done:
                    return
                if not ops.absent(error) or failures == len(ops.RECONNECT):
                    raise
            time.sleep(ops.RECONNECT[failures])
            failures += 1

    def wait(self, on_change: Callable[[OperationState], object] | None = None, *,
             timeout: float | None = None) -> Self:
        """Waits until it has succeeded; `on_change`, such as print, hears of every change.

        OperationError where it failed, was cancelled or interrupted; DeadlineExceededError, and it goes on, where
        `timeout` passes first.
        """
        for state in self.watch(timeout=timeout):
            if on_change:
                on_change(state)
        self.info.check()
        return self

    def report(self, *, timeout: Timeout = DEFAULT) -> Report:
        """An experiment's report, once it has ended."""
        with self._client.stream(ops.report(self.name, timeout)) as stream:
            return stream.result()

    def arrays(self, *, timeout: Timeout = DEFAULT) -> dict[str, npt.NDArray[Any]]:
        """An experiment's arrays, and every column of numbers as TABLE.COLUMN."""
        return ops.load_arrays(self.fetch("arrays.npz", timeout=timeout))

    def fetch(self, file: str = "", *, timeout: Timeout = DEFAULT) -> bytes:
        """One of `info.files`; its result where none is named, for a calibration the calibration file."""
        with self._client.stream(ops.fetch(self.name, file, timeout)) as stream:
            return b"".join(stream)

    def save(self, path: os.PathLike[str] | str, file: str = "", *, timeout: Timeout = DEFAULT) -> None:
        """Writes one of `info.files` to `path`, piece by piece."""
        with self._client.stream(ops.fetch(self.name, file, timeout)) as stream, open(path, "wb") as out:
            for piece in stream:
                out.write(piece)
