"""Gating policies: how each token's MLPs are computed, layer by layer (docs/api.md, Gating).

Each is a small immutable value; what is left None is the server's default.  All take the name of a `calibration` where
they use one; the default is the model's active one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gatehouse.v1 import common_pb2

_Policy = common_pb2.GatingPolicy


@dataclass(frozen=True)
class Full:
    """Every token takes the full MLP."""

    def message(self) -> common_pb2.GatingPolicy:
        return _Policy(mode=_Policy.MODE_FULL)


@dataclass(frozen=True)
class Linear:
    """Every token takes the surrogate, in `layers` (default: all)."""

    layers: Sequence[int] = ()
    calibration: str = ""

    def message(self) -> common_pb2.GatingPolicy:
        return _Policy(mode=_Policy.MODE_LINEAR, layers=self.layers, calibration=self.calibration)


@dataclass(frozen=True)
class Ladder:
    """Every token takes the ladder, a surrogate beside some exact neurons, in `layers` (default: all that have one)."""

    layers: Sequence[int] = ()
    calibration: str = ""

    def message(self) -> common_pb2.GatingPolicy:
        return _Policy(mode=_Policy.MODE_LADDER, layers=self.layers, calibration=self.calibration)


@dataclass(frozen=True)
class Gated:
    """Each token takes what its gate decides: linear where its probability exceeds the threshold.

    threshold: in [0, 1]; 0.5 where None.  1 is the full model, bit for bit.
    layers: default: those the calibration calls gateable.
    layer_thresholds: of single layers, before `threshold`.
    ladder_threshold: tokens that do not go linear take the ladder where the probability exceeds it.
    operating_point: a name such as "1%", thresholds of all layers that the calibration chose together; it stands alone.
    """

    threshold: float | None = None
    layers: Sequence[int] = ()
    layer_thresholds: Mapping[int, float] = field(default_factory=dict)
    ladder_threshold: float | None = None
    operating_point: str = ""
    calibration: str = ""

    def message(self) -> common_pb2.GatingPolicy:
        return _Policy(mode=_Policy.MODE_GATED, threshold=self.threshold, layers=self.layers,
                       layer_thresholds=dict(self.layer_thresholds), ladder_threshold=self.ladder_threshold,
                       operating_point=self.operating_point, calibration=self.calibration)


@dataclass(frozen=True)
class Quorum:
    """The full MLP where fewer than `quorum` of the layer's consensus neurons fire, else the surrogate, or nothing.

    layers: default: those with at least `quorum` consensus neurons.
    """

    quorum: int
    path: Literal["linear", "skip"] = "linear"
    layers: Sequence[int] = ()
    calibration: str = ""

    def message(self) -> common_pb2.GatingPolicy:
        if self.path not in ("linear", "skip"):
            raise ValueError(f"path is {self.path!r}, must be one of linear, skip")
        return _Policy(mode=_Policy.MODE_QUORUM, quorum=self.quorum, layers=self.layers, calibration=self.calibration,
                       quorum_path=common_pb2.MLP_PATH_SKIP if self.path == "skip" else common_pb2.MLP_PATH_LINEAR)


Policy = Full | Linear | Ladder | Gated | Quorum
