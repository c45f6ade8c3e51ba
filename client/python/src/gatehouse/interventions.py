"""Changes to what the model computes, and activations to take from it (docs/api.md, Interventions).

    client.generate(model, "It was", interventions=[Zero(layers=[6], neurons=[12, 55])],
                    captures=[Capture("mlp_out", layers=[6])])

`layers` and `neurons` are numbers from 0; `positions` are tokens from 0, all where empty.  A single number will do for
a list of one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gatehouse.enums import word
from gatehouse.v1 import common_pb2, interventions_pb2

Numbers = int | Sequence[int]
Site = Literal["residual_pre", "attention_out", "mlp_in", "neurons", "mlp_out", "residual_post"]
SITES: tuple[Site, ...] = ("residual_pre", "attention_out", "mlp_in", "neurons", "mlp_out", "residual_post")


def _list(numbers: Numbers) -> list[int]:
    if isinstance(numbers, (int, np.integer)):
        return [int(numbers)]
    return [operator.index(number) for number in numbers]


def _site(site: Site) -> interventions_pb2.ActivationSite:
    if site not in SITES:
        raise ValueError(f"site is {site!r}, must be one of {', '.join(SITES)}")
    value: interventions_pb2.ActivationSite = interventions_pb2.ActivationSite.Value(f"ACTIVATION_SITE_{site.upper()}")
    return value


def _change(layers: Numbers, positions: Numbers, **change: Any) -> interventions_pb2.Intervention:
    return interventions_pb2.Intervention(layers=_list(layers), positions=_list(positions), **change)


@dataclass(frozen=True)
class Scale:
    """The neurons' activations times `factor`; their tokens take the full MLP."""

    layers: Numbers
    neurons: Numbers
    factor: float
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        change = interventions_pb2.NeuronChange(neurons=_list(self.neurons), scale=self.factor)
        return _change(self.layers, self.positions, neurons=change)


@dataclass(frozen=True)
class Zero:
    """The neurons' activations are 0 (zero ablation)."""

    layers: Numbers
    neurons: Numbers
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        return Scale(self.layers, self.neurons, 0.0, self.positions).message()


@dataclass(frozen=True)
class Mean:
    """The neurons' activations are their mean over the calibration's corpus (mean ablation)."""

    layers: Numbers
    neurons: Numbers
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        change = interventions_pb2.NeuronChange(neurons=_list(self.neurons), mean=interventions_pb2.MeanActivation())
        return _change(self.layers, self.positions, neurons=change)


@dataclass(frozen=True)
class Set:
    """The neurons' activations are `value`."""

    layers: Numbers
    neurons: Numbers
    value: float
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        change = interventions_pb2.NeuronChange(neurons=_list(self.neurons), set=self.value)
        return _change(self.layers, self.positions, neurons=change)


@dataclass(frozen=True)
class ZeroMlp:
    """The MLPs of these layers add nothing."""

    layers: Numbers
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        return _change(self.layers, self.positions, zero_mlp=interventions_pb2.ZeroMlp())


@dataclass(frozen=True)
class ForcePath:
    """The MLPs of these layers take this path, before the policy and before sinks."""

    layers: Numbers
    path: Literal["full", "linear", "ladder", "skip"]
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        if self.path not in ("full", "linear", "ladder", "skip"):
            raise ValueError(f"path is {self.path!r}, must be one of full, linear, ladder, skip")
        return _change(self.layers, self.positions,
                       force_path=common_pb2.MlpPath.Value(f"MLP_PATH_{self.path.upper()}"))


@dataclass(frozen=True)
class Patch:
    """The site's vector is this one, such as one captured from another text: [width], or [positions, width]."""

    layers: Numbers
    site: Site
    values: npt.ArrayLike
    positions: Numbers = ()

    def message(self) -> interventions_pb2.Intervention:
        given = np.asarray(self.values)
        if given.dtype.kind not in "fiu":
            raise TypeError(f"values are {given.dtype}, must be real numbers")
        with np.errstate(over="ignore"):  # the server refuses infinities
            values = given.astype(np.float32).ravel()
        return _change(self.layers, self.positions,
                       patch=interventions_pb2.Patch(site=_site(self.site), values=values.tolist()))


Intervention = Scale | Zero | Mean | Set | ZeroMlp | ForcePath | Patch


@dataclass(frozen=True)
class Capture:
    """Activations to send of every token that passes through the model, at one site; all layers where empty."""

    site: Site
    layers: Numbers = ()
    positions: Numbers = ()

    def message(self) -> interventions_pb2.ActivationCapture:
        return interventions_pb2.ActivationCapture(site=_site(self.site), layers=_list(self.layers),
                                                   positions=_list(self.positions))


@dataclass(frozen=True)
class Activation:
    """What was captured at one site of one layer."""

    positions: npt.NDArray[np.int64]  # [positions]
    values: npt.NDArray[np.float32]  # [positions, width]


class Activations(Mapping[tuple[str, int], Activation]):
    """Captured activations by (site, layer): `captured["mlp_out", 6].values` is float32 [positions, width]."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], list[Activation]] = {}

    def add(self, message: interventions_pb2.Activations) -> None:
        """Takes up one message of a stream."""
        site = word(interventions_pb2.ActivationSite, message.site, "ACTIVATION_SITE_")
        values = np.frombuffer(message.values, "<f4").reshape(len(message.positions), message.width)
        piece = Activation(np.array(message.positions, np.int64), values.astype(np.float32))
        self._pieces.setdefault((site, message.layer), []).append(piece)

    def __getitem__(self, key: tuple[str, int]) -> Activation:
        pieces = self._pieces[key]
        if len(pieces) > 1:
            pieces[:] = [Activation(np.concatenate([piece.positions for piece in pieces]),
                                    np.concatenate([piece.values for piece in pieces]))]
        return pieces[0]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def __repr__(self) -> str:
        shapes = (f"{site!r}, {layer}: {list(self[site, layer].values.shape)}" for site, layer in self)
        return f"Activations({'; '.join(shapes)})"
