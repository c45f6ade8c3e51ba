"""What the streams of both clients have in common."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import grpc

from gatehouse.calls import Streaming
from gatehouse.errors import CancelledError, GatehouseError, from_rpc

Item = TypeVar("Item")
Result = TypeVar("Result")


class StreamState(Generic[Item, Result]):
    """One call whose answer comes in pieces: what nobody has taken yet, and how it ended."""

    _rpc: Any  # gRPC's handle of the call

    def __init__(self, call: Streaming[Item, Result]) -> None:
        self._fold = call.fold()
        self._request = call.request
        self._items: deque[Item] = deque()
        self._state: str | GatehouseError = "running"

    def _has_ended(self) -> bool:
        """Whether nothing more is to be read; the error that ended it is raised."""
        if isinstance(self._state, GatehouseError):
            raise self._state
        return self._state != "running"

    def _failed(self, error: grpc.RpcError) -> GatehouseError:
        """Ends it with an error."""
        self._state = from_rpc(error, self._request)
        return self._state

    def _whole(self) -> Result:
        """The result of all that was read; CancelledError where it was closed before its end."""
        if self._state == "closed":
            raise CancelledError("the stream was closed before its end")
        return self._fold.result()

    def close(self) -> None:
        """Cancels what is left of the call."""
        if self._state == "running":
            self._state = "closed"
            self._items.clear()
            self._rpc.cancel()
