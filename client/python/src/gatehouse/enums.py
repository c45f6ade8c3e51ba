"""Values of the API's enumerations, as words."""

from __future__ import annotations

from typing import Any


def word(kind: Any, value: int, prefix: str) -> str:
    """MLP_PATH_FULL with the prefix MLP_PATH_ is "full"; a value that only a newer server knows is its number."""
    try:
        return str(kind.Name(value)).removeprefix(prefix).lower()
    except ValueError:
        return str(value)
