"""The bounds of a calibration file's description (docs/calibration-file.md), the server's own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

_Check = Callable[[str, Any], None]
_INT32 = 2**31 - 1
_MOST = sys.float_info.max  # of a finite number


class CalibrationError(ValueError):
    """A calibration is not of the format; the message names the field and its bound."""


def _number(least: float = -math.inf, most: float = math.inf) -> _Check:
    def check(field: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or \
                not max(least, -_MOST) <= value <= min(most, _MOST):
            raise CalibrationError(f"{field} is {value!r:.80}, must be a number in [{least:g}, {most:g}]")
    return check


def _integer(least: int, most: int) -> _Check:
    def check(field: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise CalibrationError(f"{field} is {value!r:.80}, must be an integer in [{least}, {most}]")
    return check


def _text(most: int, least: int = 0) -> _Check:
    def check(field: str, value: Any) -> None:
        # Half of a surrogate pair is no text.
        if not isinstance(value, str) or not least <= len(value.encode(errors="surrogatepass")) <= most or \
                any("\ud800" <= c <= "\udfff" for c in value):
            raise CalibrationError(f"{field} is {value!r:.80}, must be a string of {least} to {most} bytes")
    return check


def _flag(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise CalibrationError(f"{field} is {value!r}, must be true or false")


def _list(check: _Check, most: int, least: int = 0) -> _Check:
    def check_all(field: str, value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise CalibrationError(f"{field} must be a list of {least} to {most} entries")
        for i, entry in enumerate(value):
            check(f"{field}[{i}]", entry)
    return check_all


def _object(keys: Mapping[str, _Check], required: tuple[str, ...] = ()) -> _Check:
    def check(field: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise CalibrationError(f"{field} must be an object")
        for key in required:
            if key not in value:
                raise CalibrationError(f"{field}.{key} is missing")
        for key, entry in value.items():
            if key not in keys:
                raise CalibrationError(f"{field}.{key} is not a key of this format")
            keys[key](f"{field}.{key}", entry)
    return check


def _each_once(check: _Check, key: str) -> _Check:
    def check_all(field: str, value: Any) -> None:
        check(field, value)
        names = [entry[key] for entry in value]
        if len(set(names)) != len(names):
            raise CalibrationError(f"{field} has a {key} twice, must have each once")
    return check_all


_FINDINGS = _each_once(_list(_object({"neuron": _integer(0, _INT32), "base_rate": _number(0, 1),
                                      "rate_difference": _number(-1, 1)}, ("neuron",)), 64), "neuron")
_LAYER = _object({
    "gateable": _flag,
    **{key: _number() for key in ("linear_cost", "linear_cost_with_sinks", "surrogate_r2", "surrogate_r2_with_sinks",
                                  "gate_linear_fraction", "gate_cost", "p25", "p50", "p70", "p95")},
    **{f"{kind}_{null}": _number() for kind in ("consensus", "exception", "gateway") for null in ("null", "random")},
    **{kind: _FINDINGS for kind in ("consensus", "exception", "gateway")}})
_THRESHOLDS = _object({"linear_threshold": _number(-1, 1), "ladder_threshold": _number(-1, 1)})


def check_description(description: Any, layers: int) -> None:
    """CalibrationError where the server would refuse the description of a file with so many layers."""
    point = _object({"name": _text(64, 1), "layers": _list(_THRESHOLDS, layers, layers), "budget": _number(0, 10),
                     **{key: _number(-1) for key in ("cost", "cost_low", "cost_high")}, "work_saved": _number(-1, 1),
                     "linear_fraction": _number(0, 1), "ladder_fraction": _number(0, 1)}, ("name", "layers"))
    _object({
        **{key: _text(256) for key in ("name", "created", "corpus", "corpus_sha256", "dtype")},
        **{key: _integer(0, 2**53) for key in ("fit_tokens", "gate_tokens", "select_tokens", "report_tokens")},
        "window_tokens": _integer(0, _INT32), "sink_positions": _integer(0, _INT32), "gateable_cost_limit": _number(0),
        "ridge": _number(0), "seed": _integer(0, 2**64 - 1), "layers": _list(_LAYER, layers, layers),
        "ingredients": _list(_text(256), 16), "operating_points": _each_once(_list(point, 64), "name"),
    })("calibration", description)
