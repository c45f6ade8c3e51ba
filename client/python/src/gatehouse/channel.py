"""How both clients connect: addresses, keepalive, message sizes, and which calls may be repeated."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, TypedDict

import grpc

from gatehouse.errors import InvalidArgumentError
from gatehouse.requests import Default, Timeout

DEFAULT_SERVER = "127.0.0.1:50151"
# A proxy sends a call that names an operation to the replica that this names.
REPLICA_HEADER = "gatehouse-replica"
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
        _check("attempts", self.attempts, 1, 5)
        _check("keepalive", self.keepalive, 10, 1e6)
        _check("max_message_bytes", self.max_message_bytes, 1, 1 << 30)
        for name in ("timeout", "stream_timeout"):
            if (value := getattr(self, name)) is not None:
                _check(name, value, 0, 1e9)


def _check(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(f"{field} is {value}, must be in [{least:g}, {most:g}]", reason="INVALID_FIELD",
                                   field=field, bounds=(least, most))


def channel_arguments(server: str, options: Options) -> list[tuple[str, Any]]:
    """gRPC's arguments for a channel."""
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
    return ((REPLICA_HEADER, replica),) if replica else ()


def seconds(timeout: Timeout, default: float | None) -> float | None:
    return default if isinstance(timeout, Default) else timeout


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
