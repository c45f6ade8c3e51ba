"""Long-running work at the server, calibrations and experiments: its state, its reports, and the calls for it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from gatehouse.calls import Streaming, Unary
from gatehouse.errors import (GatehouseError, InvalidArgumentError, NotFoundError, OperationError,
                              UnavailableError)
from gatehouse.experiments import Method, experiment_spec
from gatehouse.report import Report, ReportFold
from gatehouse.requests import DEFAULT, Timeout, fill
from gatehouse.v1 import operations_pb2

# Pauses before a broken watch is taken up again, seconds: it goes on through a short absence of the server.
RECONNECT = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
_PAGE = 1000
_SERVICE = "gatehouse.v1.OperationService"
_CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True)
class Corpus:
    """An uploaded text: `name` is "corpora/SHA256", `replica` the server that has it, where operations on it are to
    start."""

    name: str
    size_bytes: int
    replica: str = ""


# A text for an operation: one uploaded before, its name, or a file, which is uploaded.
CorpusSource = Corpus | str | os.PathLike[str]
Corpora = CorpusSource | list[CorpusSource] | tuple[CorpusSource, ...]


@dataclass(frozen=True)
class OperationState:
    """An operation as the server last told of it.

    kind: "calibrate", or the experiment's name.
    state: "waiting", "running", "succeeded", "failed", "cancelled", or "interrupted" (its server stopped).
    progress: in [0, 1]; `stage` says what it is doing.
    created, ended: RFC 3339.
    error: why it failed; empty otherwise.
    result: a calibration's name, or an experiment's "report.json".
    files: what it left, once it has ended.
    """

    name: str
    kind: str
    model: str
    state: str
    progress: float
    stage: str
    created: str
    ended: str
    error: str
    error_code: str
    result: str
    result_bytes: int
    files: tuple[str, ...]

    @classmethod
    def of(cls, message: operations_pb2.Operation) -> OperationState:
        state = operations_pb2.OperationState.Name(message.state).removeprefix("OPERATION_STATE_").lower()
        code = _CODES.get(message.error_code, "UNKNOWN") if message.error_code else ""
        return cls(message.name, message.kind, message.model, state, message.progress, message.stage, message.created,
                   message.ended, message.error_message, code, message.result, message.result_bytes,
                   tuple(message.files))

    @property
    def done(self) -> bool:
        """It has ended, however."""
        return self.state not in ("waiting", "running")

    def __str__(self) -> str:
        about = f"{self.progress:.0%} {self.stage}" if self.state == "running" else self.error
        return f"{self.name} {self.kind} {self.state} {about}".rstrip()

    def check(self) -> None:
        """OperationError unless it succeeded."""
        if self.state != "succeeded":
            raise OperationError(f"{self.name} {self.state}" + (f": {self.error}" if self.error else ""),
                                 code=self.error_code or self.state.upper(), operation=self.name, state=self.state)


class OperationView:
    """An operation as it was last heard of: what `Operation` and `AsyncOperation` have in common."""

    def __init__(self, info: OperationState) -> None:
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def state(self) -> str:
        """As last heard of; refresh() asks the server."""
        return self.info.state

    @property
    def done(self) -> bool:
        return self.info.done

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info}>"


View = TypeVar("View", bound=OperationView)


def with_id(operations: Iterable[View], identifier: str) -> View:
    """The first of them with that ID, the last part of its name; NotFoundError where there is none."""
    for found in operations:
        if found.name.rsplit("/", 1)[1] == identifier:
            return found
    raise NotFoundError(f"there is no operation {identifier}", reason="OPERATION_NOT_FOUND")


def replica_of(name: str) -> str:
    """REPLICA of "operations/REPLICA/ID"; a proxy before several servers takes the call to it."""
    parts = name.split("/")
    if len(parts) != 3 or parts[0] != "operations":
        raise InvalidArgumentError(f"name is {name!r}, must be operations/REPLICA/ID", field="name")
    return parts[1]


def absent(error: GatehouseError) -> bool:
    """Whether the server of an operation that was heard of before is away; behind a proxy another may answer for it."""
    return isinstance(error, UnavailableError) or error.reason in ("OTHER_REPLICA", "OPERATION_NOT_FOUND")


def _started(spec: dict[str, Any], model: str, timeout: Timeout, replica: str = "") -> Unary[OperationState]:
    request = fill(operations_pb2.StartOperationRequest(), model=model, **spec)
    return Unary(f"{_SERVICE}/StartOperation", request, operations_pb2.StartOperationResponse,
                 lambda response: OperationState.of(response.operation), timeout, replica)


def calibrate(model: str, corpora: Sequence[str], *, name: str = "", activate: bool | None = None,
              budgets: Sequence[float] = (), sequential: bool | None = None, ladders: bool | None = None,
              ladder_share: float | None = None, tune: bool | None = None, tune_steps: int | None = None,
              tune_sequences: int | None = None, tune_work_saved: float | None = None, fit_tokens: int | None = None,
              gate_tokens: int | None = None, select_tokens: int | None = None, report_tokens: int | None = None,
              window_tokens: int | None = None, ridge: float | None = None, gateable_cost_limit: float | None = None,
              sink_positions: int | None = None, max_consensus: int | None = None, seed: int | None = None,
              timeout: Timeout = DEFAULT) -> Unary[OperationState]:
    """Starts a calibration: fits surrogates and gates, measures every layer, finds its neurons.

    corpora: one text, a Corpus, its name, or a pathlib.Path, which is uploaded first.
    name: of the calibration; empty: one is made.
    activate: make it the model's active one when done (default: yes).
    budgets: relative changes of perplexity, 0.01 is one percent; each becomes an operating point of the whole model.
    The rest are the method's settings: docs/methods.md.
    """
    if len(corpora) != 1:
        raise InvalidArgumentError(f"corpora has {len(corpora)} entries, must be 1", field="corpora")
    budget = fill(operations_pb2.BudgetSpec(), "budget.", budgets=list(budgets), sequential=sequential, ladders=ladders,
                  ladder_share=ladder_share, tune=tune, tune_steps=tune_steps, tune_sequences=tune_sequences,
                  tune_work_saved=tune_work_saved)
    spec = fill(operations_pb2.CalibrateSpec(), "calibrate.", corpus=corpora[0], calibration=name, activate=activate,
                fit_tokens=fit_tokens, gate_tokens=gate_tokens, select_tokens=select_tokens,
                report_tokens=report_tokens, window_tokens=window_tokens, ridge=ridge,
                gateable_cost_limit=gateable_cost_limit, sink_positions=sink_positions, max_consensus=max_consensus,
                seed=seed, budget=budget)
    return _started({"calibrate": spec}, model, timeout)


def experiment(model: str, corpora: Sequence[str], method: Method, *, layers: Sequence[int] = (),
               fit_tokens: int | None = None, gate_tokens: int | None = None, select_tokens: int | None = None,
               report_tokens: int | None = None, window_tokens: int | None = None, ridge: float | None = None,
               sink_positions: int | None = None, bootstrap_resamples: int | None = None, seed: int | None = None,
               resume: str = "", timeout: Timeout = DEFAULT) -> Unary[OperationState]:
    """Starts an experiment, such as experiments.Consensus(max_consensus=5).

    corpora: one text or several, each a Corpus, its name, or a pathlib.Path, which is uploaded first.
    resume: an earlier training that was cut short; tell it the rest as before.
    The rest are the settings that all methods share: docs/methods.md.
    """
    spec = experiment_spec(corpora, method, layers=list(layers), fit_tokens=fit_tokens, gate_tokens=gate_tokens,
                           select_tokens=select_tokens, report_tokens=report_tokens, window_tokens=window_tokens,
                           ridge=ridge, sink_positions=sink_positions, bootstrap_resamples=bootstrap_resamples,
                           seed=seed, resume=resume)
    return _started({"experiment": spec}, model, timeout, replica_of(resume) if resume else "")


def get(name: str, timeout: Timeout) -> Unary[OperationState]:
    return Unary(f"{_SERVICE}/GetOperation", fill(operations_pb2.GetOperationRequest(), name=name),
                 operations_pb2.GetOperationResponse, lambda response: OperationState.of(response.operation), timeout,
                 replica_of(name))


def cancel(name: str, timeout: Timeout) -> Unary[OperationState]:
    return Unary(f"{_SERVICE}/CancelOperation", fill(operations_pb2.CancelOperationRequest(), name=name),
                 operations_pb2.CancelOperationResponse, lambda response: OperationState.of(response.operation),
                 timeout, replica_of(name))


Page = tuple[list[OperationState], str]  # newest first, and the next page's token, empty at the end


class Listing:
    """The operations, newest first, at most `limit`, page by page."""

    def __init__(self, limit: int | None, timeout: Timeout) -> None:
        self.states: list[OperationState] = []
        self._limit = limit
        self._timeout = timeout
        self._token: str | None = ""

    def next_page(self) -> Unary[Page] | None:
        """The call for the next page, whose answer add() takes; None once there are enough."""
        left = _PAGE if self._limit is None else min(self._limit - len(self.states), _PAGE)
        if left <= 0 or self._token is None:
            return None
        request = fill(operations_pb2.ListOperationsRequest(), page_size=left, page_token=self._token)
        return Unary(f"{_SERVICE}/ListOperations", request, operations_pb2.ListOperationsResponse,
                     lambda response: ([OperationState.of(entry) for entry in response.operations],
                                       response.next_page_token), self._timeout)

    def add(self, page: Page) -> None:
        states, token = page
        self.states += states
        self._token = token or None


class _WatchFold:
    def add(self, response: operations_pb2.WatchOperationResponse) -> Iterable[OperationState]:
        return [OperationState.of(response.operation)]

    def result(self) -> None:
        return None


def watch(name: str, timeout: Timeout) -> Streaming[OperationState, None]:
    return Streaming(f"{_SERVICE}/WatchOperation", fill(operations_pb2.WatchOperationRequest(), name=name),
                     operations_pb2.WatchOperationResponse, _WatchFold, timeout, replica_of(name))


class _FileFold:
    def add(self, response: operations_pb2.FetchResultResponse) -> Iterable[bytes]:
        return [response.data]

    def result(self) -> None:
        return None


def fetch(name: str, file: str, timeout: Timeout) -> Streaming[bytes, None]:
    """One of the operation's files in pieces."""
    request = fill(operations_pb2.FetchResultRequest(), name=name, file=file)
    return Streaming(f"{_SERVICE}/FetchResult", request, operations_pb2.FetchResultResponse, _FileFold, timeout,
                     replica_of(name))


def report(name: str, timeout: Timeout) -> Streaming[None, Report]:
    return Streaming(f"{_SERVICE}/GetReport", fill(operations_pb2.GetReportRequest(), name=name),
                     operations_pb2.GetReportResponse, ReportFold, timeout, replica_of(name))


def load_arrays(npz: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an operation's arrays.npz."""
    with np.load(io.BytesIO(npz), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
