"""How both clients connect: addresses, keepalive, message sizes, and which calls may be repeated."""

from __future__ import annotations

import json
import numbers
import re
import time
from dataclasses import dataclass
from typing import Any, TypedDict

import grpc

from gatehouse.errors import FailedPreconditionError, InvalidArgumentError
from gatehouse.requests import Default, Timeout

DEFAULT_SERVER = "127.0.0.1:50151"
# A proxy sends a call that names an operation to the replica that this names.
REPLICA_HEADER = "gatehouse-replica"
_MOST_SECONDS = 1e9
_REPEATABLE = ("GenerationService", "ScoringService", "AnalysisService", "ModelService")
# All but StartOperation, which would start twice.
_REPEATABLE_OPERATION_CALLS = ("UploadCorpus", "GetOperation", "WatchOperation", "CancelOperation", "ListOperations",
                               "FetchResult", "GetReport")


@dataclass(frozen=True)
class Options:
    """How a client behaves.

    timeout: seconds that a call with one answer has; None: no deadline.
    stream_timeout: of calls that compute or transfer: generate, score, analyses, uploads, reports, files.
    attempts: how often a call that no server began to answer is tried, in [1, 5], with pauses from 0.1 s to 1 s.  One
        that began to answer is never repeated.
    keepalive: seconds without traffic during a call after which the server is pinged, at least 10.
    max_message_bytes: most that a message may have, either way.
    credentials: None: no encryption.
    replica: the one that a proxy before several is to send calls to that name no other; empty: any.
    """

    timeout: float | None = 60.0
    stream_timeout: float | None = 3600.0
    attempts: int = 4
    keepalive: float = 30.0
    max_message_bytes: int = 64 << 20
    credentials: grpc.ChannelCredentials | None = None
    replica: str = ""

    def __post_init__(self) -> None:
        _check("attempts", self.attempts, 1, 5, numbers.Integral)
        _check("keepalive", self.keepalive, 10, 1e6)
        _check("max_message_bytes", self.max_message_bytes, 1, 1 << 30, numbers.Integral)
        for name in ("timeout", "stream_timeout"):
            if (value := getattr(self, name)) is not None:
                _check(name, value, 0, _MOST_SECONDS)
        metadata(self.replica)


def _check(field: str, value: Any, least: float, most: float, kind: type = numbers.Real) -> None:
    number = isinstance(value, kind) and not isinstance(value, bool)
    if not (number and least <= value <= most):
        whole = "a whole number " if kind is numbers.Integral else "a number " if not number else ""
        raise InvalidArgumentError(f"{field} is {value!r:.60}, must be {whole}in [{least:g}, {most:g}]",
                                   reason="INVALID_FIELD", field=field, bounds=(least, most))


def _check_server(server: Any) -> None:
    """gRPC would take the port modulo 65536."""
    port = re.search(r":([0-9]*)$", server) if isinstance(server, str) else None
    if not isinstance(server, str) or not server or port and not 1 <= int(port[1] or 0) <= 65535:
        raise InvalidArgumentError(f"server is {server!r:.80}, must be HOST:PORT, with a port in [1, 65535]",
                                   reason="INVALID_FIELD", field="server")


def channel_arguments(server: str, options: Options) -> list[tuple[str, Any]]:
    """gRPC's arguments for a channel; InvalidArgumentError for what is no server's address."""
    _check_server(server)
    arguments: list[tuple[str, Any]] = [
        ("grpc.service_config", _service_config(options.attempts)),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.keepalive_time_ms", int(options.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),  # pings may go on while a long prefill is silent
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    if server.startswith(("127.", "localhost:", "[::1]")):
        arguments.append(("grpc.enable_http_proxy", 0))
    return arguments


class Connection:
    """What both clients have of a connection: its options, and its channel until it is closed."""

    def __init__(self, api: Any, server: str, options: Options | None) -> None:
        """api: grpc or grpc.aio."""
        self.options = options or Options()
        self._closed = False
        arguments = channel_arguments(server, self.options)
        if self.options.credentials is None:
            self._channel: Any = api.insecure_channel(server, arguments)
        else:
            self._channel = api.secure_channel(server, self.options.credentials, arguments)

    def _open(self) -> Any:
        """The channel; FailedPreconditionError once it is closed."""
        if self._closed:
            raise FailedPreconditionError("the client is closed")
        return self._channel


def _service_config(attempts: int) -> str:
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if attempts > 1:
        names = [{"service": f"gatehouse.v1.{service}"} for service in _REPEATABLE]
        names += [{"service": "gatehouse.v1.OperationService", "method": call} for call in _REPEATABLE_OPERATION_CALLS]
        # gRPC repeats a call only until it has received something, and the server sends nothing before it admits one.
        retry = {"maxAttempts": attempts, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
                 "retryableStatusCodes": ["UNAVAILABLE"]}
        config["methodConfig"] = [{"name": names, "retryPolicy": retry}]
    return json.dumps(config)


def metadata(replica: str) -> tuple[tuple[str, str], ...]:
    if not (isinstance(replica, str) and replica.isascii() and replica.isprintable()):
        raise InvalidArgumentError(f"replica is {replica!r:.80}, must be printable ASCII", reason="INVALID_FIELD",
                                   field="replica")
    return ((REPLICA_HEADER, replica),) if replica else ()


def seconds(timeout: Timeout, default: float | None) -> float | None:
    """The seconds that a call has; what is below 0 has passed already."""
    if timeout is None or isinstance(timeout, Default):
        return None if timeout is None else default
    if not (isinstance(timeout, numbers.Real) and timeout <= _MOST_SECONDS):
        raise InvalidArgumentError(f"timeout is {timeout!r:.60}, must be at most {_MOST_SECONDS:g} seconds; None: no "
                                   "deadline", reason="INVALID_FIELD", field="timeout", bounds=(None, _MOST_SECONDS))
    return max(float(timeout), 0.0)


class OptionValues(TypedDict, total=False):
    """The fields of Options, as arguments."""

    timeout: float | None
    stream_timeout: float | None
    attempts: int
    keepalive: float
    max_message_bytes: int
    credentials: grpc.ChannelCredentials | None
    replica: str


class Deadline:
    """A point in time that several calls share."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds, never below 0; None: no deadline."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)
