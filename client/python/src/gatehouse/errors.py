"""What a failed call raises: one class a gRPC code, each with the server's stable reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import grpc

from gatehouse.v1 import errors_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

_DETAILS = "grpc-status-details-bin"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_NUMBER = r"(-?[0-9][0-9.e+-]*[0-9]|-?[0-9])"
_BOUNDS = tuple(re.compile(pattern) for pattern in (
    rf"[\[(]{_NUMBER}, {_NUMBER}[\])]",
    rf"must (?:have|be) {_NUMBER} to {_NUMBER}",
    rf"above {_NUMBER} and (?:at most {_NUMBER}|finite)",
    rf"at least {_NUMBER}()",
    rf"()at most {_NUMBER}",
))


class GatehouseError(Exception):
    """A call failed.

    code: the gRPC status code's name, such as "INVALID_ARGUMENT".
    reason: the server's stable reason, such as "INVALID_FIELD" (docs/api.md lists them); empty where the failure did
        not come from a server.
    message: for people; says what is wrong and where known what to do.
    field: the field of the request that the message begins with, such as "gating.threshold", else None.
    bounds: (least, most) that the message names for it, each None where there is no such bound, else None.
    """

    code = "UNKNOWN"

    def __init__(self, message: str, *, code: str | None = None, reason: str = "", field: str | None = None,
                 bounds: tuple[float | None, float | None] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.reason = reason
        self.field = field
        self.bounds = bounds

    def __str__(self) -> str:
        return f"{self.message} ({self.reason or self.code})"


class InvalidArgumentError(GatehouseError, ValueError):
    """A field is out of its bounds, of an unknown kind, or empty."""

    code = "INVALID_ARGUMENT"


class NotFoundError(GatehouseError, LookupError):
    """There is no such model, calibration, operating point, operation, corpus or file."""

    code = "NOT_FOUND"


class AlreadyExistsError(GatehouseError):
    """There is a calibration of that name."""

    code = "ALREADY_EXISTS"


class FailedPreconditionError(GatehouseError):
    """What the call needs is not there: a calibration (NOT_CALIBRATED), a result (NO_RESULT), the replica that runs the
    operation (OTHER_REPLICA)."""

    code = "FAILED_PRECONDITION"


class ResourceExhaustedError(GatehouseError):
    """The server has no room: QUEUE_FULL, KV_MEMORY_FULL, DISK_FULL …"""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(GatehouseError, ConnectionError):
    """No server answers, or it is shutting down."""

    code = "UNAVAILABLE"


class DeadlineExceededError(GatehouseError, TimeoutError):
    """The call's `timeout` passed; the server stopped working on it too."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(GatehouseError):
    """The call was cancelled."""

    code = "CANCELLED"


class InternalError(GatehouseError):
    """The server failed, or the model's output is not a number (MODEL_PRODUCED_NAN)."""

    code = "INTERNAL"


class DataLossError(GatehouseError):
    """A file at the server is damaged."""

    code = "DATA_LOSS"


class UnimplementedError(GatehouseError):
    """The server does not know this call: it is another version, or no Gatehouse."""

    code = "UNIMPLEMENTED"


class OperationError(GatehouseError):
    """An operation that was waited for failed, was cancelled or interrupted; has its `operation` (name) and `state`."""

    def __init__(self, message: str, *, code: str, operation: str, state: str) -> None:
        super().__init__(message, code=code)
        self.operation = operation
        self.state = state


_BY_CODE: dict[str, type[GatehouseError]] = {kind.code: kind for kind in (
    InvalidArgumentError, NotFoundError, AlreadyExistsError, FailedPreconditionError, ResourceExhaustedError,
    UnavailableError, DeadlineExceededError, CancelledError, InternalError, DataLossError, UnimplementedError)}


def from_code(code: str, message: str, **details: Any) -> GatehouseError:
    """The exception of a gRPC code's name."""
    return _BY_CODE.get(code, GatehouseError)(message, code=code, **details)


def from_rpc(error: Any, request: Message | None) -> GatehouseError:
    """The exception of a failed gRPC call; `request` is what it was asked, whose fields the message may name."""
    status = error.code() or grpc.StatusCode.UNKNOWN
    message = error.details() or status.name
    reason = _reason_of(error)
    if status is grpc.StatusCode.INTERNAL and not reason and "RST_STREAM" in message:
        # A proxy ends so what a replica had begun to answer when it died.
        status, message = grpc.StatusCode.UNAVAILABLE, f"the server went away within its answer: {message}"
    field = _field_of(message, request) if status is grpc.StatusCode.INVALID_ARGUMENT else None
    return from_code(status.name, message, reason=reason, field=field,
                     bounds=_bounds_of(message) if field else None)


def _reason_of(error: Any) -> str:
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS:
            continue
        try:
            for detail in errors_pb2.ErrorStatus.FromString(value).details:
                if detail.type_url == _ERROR_INFO:
                    return str(errors_pb2.ErrorInfo.FromString(detail.value).reason)
        except Exception:  # of whatever a proxy on the way wrote there
            return ""
    return ""


def _field_of(message: str, request: Message | None) -> str | None:
    """The path that the message begins with, from the request down, if the request has such a field."""
    path = re.match(r"[a-z_][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z_][a-z0-9_]*(?:\[\d+\])?)*(?=[ :,])", message)
    if path is None or request is None:
        return None
    names = re.sub(r"\[\d+\]", "", path[0]).split(".")
    prefix = _prefix_of(names, request.DESCRIPTOR, 3)
    return None if prefix is None else prefix + path[0]


def _prefix_of(names: list[str], kind: Any, depth: int) -> str | None:
    """What leads to the message below `kind` that has these fields, such as "gating."; the server leaves it out."""
    at = kind
    for name in names:
        if at is None or name not in at.fields_by_name:
            break
        at = at.fields_by_name[name].message_type
    else:
        return ""
    inner = kind.fields if depth > 0 else ()
    found = ((entry.name, _prefix_of(names, entry.message_type, depth - 1)) for entry in inner
             if entry.message_type is not None and not _repeated(entry))
    return next((f"{name}.{prefix}" for name, prefix in found if prefix is not None), None)


def _repeated(entry: Any) -> bool:
    return bool(entry.is_repeated) if hasattr(entry, "is_repeated") else entry.label == entry.LABEL_REPEATED


def _bounds_of(message: str) -> tuple[float | None, float | None] | None:
    for pattern in _BOUNDS:
        if found := pattern.search(message):
            least, most = (_number(text) for text in found.groups())
            return least, most
    return None


def _number(text: str | None) -> float | None:
    """None for none, and for what only looks like one, such as a date."""
    try:
        return float(text) if text else None
    except ValueError:
        return None
