"""What a server says of its models and their calibrations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from gatehouse.trace import frame
from gatehouse.v1 import models_pb2

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")
# What every layer's calibration says of it in one number.
_LAYER_NUMBERS = ("linear_cost", "linear_cost_with_sinks", "surrogate_r2", "surrogate_r2_with_sinks", "gateable",
                  "gate_linear_fraction", "gate_cost", "p25", "p50", "p70", "p95", "ladder_neurons")


def _copy(kind: type[T], message: Any, **given: Any) -> T:
    """A dataclass whose fields have the names of the message's; `given` has the others."""
    names = [entry.name for entry in fields(kind) if entry.name not in given]  # type: ignore[arg-type]
    return kind(**{name: getattr(message, name) for name in names}, **given)


@dataclass(frozen=True)
class ModelSummary:
    """One of the models a server holds; `calibration` is the active one's name, empty where there is none."""

    name: str
    architecture: str
    parameters: int
    layers: int
    context_tokens: int
    calibration: str

    @classmethod
    def of(cls, message: models_pb2.ModelSummary) -> ModelSummary:
        return _copy(cls, message)


@dataclass(frozen=True)
class CalibrationSummary:
    """One of a model's calibrations; `created` is RFC 3339."""

    name: str
    active: bool
    created: str
    fingerprint: str

    @classmethod
    def of(cls, message: models_pb2.CalibrationSummary) -> CalibrationSummary:
        return _copy(cls, message)


@dataclass(frozen=True, eq=False)
class OperatingPointInfo:
    """Thresholds of all layers chosen together; costs are relative changes of perplexity, 0.01 is one percent.

    linear_thresholds, ladder_thresholds: [layer]; 1 is never exceeded, one below 0 always.
    """

    name: str
    budget: float
    cost: float
    cost_low: float
    cost_high: float
    work_saved: float
    linear_fraction: float
    ladder_fraction: float
    linear_thresholds: npt.NDArray[np.float64]
    ladder_thresholds: npt.NDArray[np.float64]

    @classmethod
    def of(cls, message: models_pb2.OperatingPoint) -> OperatingPointInfo:
        return _copy(cls, message, linear_thresholds=np.array([layer.linear_threshold for layer in message.layers]),
                     ladder_thresholds=np.array([layer.ladder_threshold for layer in message.layers]))


@dataclass(frozen=True)
class Finding:
    """A neuron that the calibration found: its firing rate, and how much more it fires among nonlinear tokens."""

    neuron: int
    base_rate: float
    rate_difference: float


@dataclass(frozen=True, eq=False)
class CalibrationInfo:
    """The active calibration.

    layers: by name an array [layer] of each figure: linear_cost, surrogate_r2, gateable, p25, ladder_neurons …
    consensus, exception, gateway: [layer], the neurons found there, most extreme first.
    """

    name: str
    fingerprint: str
    model_fingerprint: str
    created: str
    corpus: str
    corpus_sha256: str
    fit_tokens: int
    gate_tokens: int
    select_tokens: int
    report_tokens: int
    window_tokens: int
    sink_positions: int
    gateable_cost_limit: float
    seed: int
    dtype: str
    ingredients: tuple[str, ...]
    operating_points: dict[str, OperatingPointInfo]
    layers: dict[str, npt.NDArray[Any]]
    consensus: tuple[tuple[Finding, ...], ...]
    exception: tuple[tuple[Finding, ...], ...]
    gateway: tuple[tuple[Finding, ...], ...]

    @classmethod
    def of(cls, message: models_pb2.CalibrationDescription) -> CalibrationInfo:
        findings = {kind: tuple(tuple(_copy(Finding, found) for found in getattr(layer, kind))
                                for layer in message.layers) for kind in ("consensus", "exception", "gateway")}
        numbers = {name: np.array([getattr(layer, name) for layer in message.layers]) for name in _LAYER_NUMBERS}
        points = {point.name: OperatingPointInfo.of(point) for point in message.operating_points}
        return _copy(cls, message, ingredients=tuple(message.ingredients), operating_points=points, layers=numbers,
                     **findings)

    def to_frame(self) -> pandas.DataFrame:
        """One row a layer."""
        return frame({"layer": np.arange(len(self.consensus)), **self.layers})


@dataclass(frozen=True, eq=False)
class Model:
    """All that is known of one model; `fingerprint` identifies its weights, whatever dtype serves them."""

    name: str
    architecture: str
    parameters: int
    layers: int
    d_model: int
    d_mlp: int
    heads: int
    kv_heads: int
    vocab_size: int
    context_tokens: int
    dtype: str
    device: str
    kernels: str
    weight_bytes: int
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    calibrations: tuple[CalibrationSummary, ...]
    calibration: CalibrationInfo | None

    @classmethod
    def of(cls, message: models_pb2.DescribeModelResponse) -> Model:
        active = CalibrationInfo.of(message.calibration) if message.HasField("calibration") else None
        return _copy(cls, message, eos_token_ids=tuple(message.eos_token_ids), calibration=active,
                     calibrations=tuple(CalibrationSummary.of(entry) for entry in message.calibrations))
