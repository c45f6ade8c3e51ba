"""How the calls become methods of the clients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def as_method(build: Callable[..., Any], method: Callable[..., Any], returns: str = "") -> Any:
    """`method` with the name, text and parameters of the call that `build` describes; it returns the call's result
    where not told otherwise."""
    functools.update_wrapper(method, build)
    signature = inspect.signature(build)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [parameter.replace(annotation="Corpora") if parameter.name == "corpora" else parameter
                  for parameter in signature.parameters.values()]
    result = str(signature.return_annotation).removesuffix("]").split(", ")[-1].removeprefix("Unary[")
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[this, *parameters], return_annotation=returns or result)
    return method
