"""Calibration files of your own making: read, checked and written as docs/calibration-file.md says.

    model = client.model("novella-gpt2-7m")
    layers = [Layer(weight, bias, gate_bias=ALWAYS) for weight, bias in my_surrogates]
    Calibration(layers, model.fingerprint).save("calibrations/mine.safetensors", model)

When it starts, the server finds NAME.safetensors in the model directory's `calibrations/` and in `calibrations/MODEL/`
of its state directory; client.select_calibration, or `calibration=` of a policy, names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gatehouse import safetensors
from gatehouse.calibration_checks import CalibrationError, check_description
from gatehouse.models import Model

__all__ = ["ALWAYS", "NEVER", "Calibration", "CalibrationError", "Ladder", "Layer", "OperatingPoint", "fit_surrogate"]

# Biases of gates that, with a weight of zeros, let every token go linear, or none.
ALWAYS, NEVER = 100.0, -100.0
_FORMAT = {"format": "gatehouse.calibration", "version": "1"}
_REQUIRED = ("surrogate.weight", "surrogate.bias", "gate.weight", "gate.bias")
_LADDER = ("ladder.weight", "ladder.bias", "ladder.neurons")
_MEAN = "neuron_mean"


@dataclass(eq=False)
class Ladder:
    """A surrogate beside neurons that stay exact: weight [d_model, d_model], bias [d_model], neurons [m], ascending."""

    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any]
    neurons: npt.NDArray[Any]


@dataclass(eq=False)
class Layer:
    """One layer: ŷ = surrogate_weight x + surrogate_bias, and p = sigmoid(gate_weight · x + gate_bias).

    surrogate_weight: [d_model, d_model], output by input; surrogate_bias, gate_weight: [d_model].
    gate_weight: None is zeros, so that gate_bias alone decides (ALWAYS, NEVER).
    neuron_mean: [d_mlp], what mean ablation puts in the neurons' place.
    about: what is known of it, such as {"gateable": True, "linear_cost": 0.01}; docs/calibration-file.md has all.
    """

    surrogate_weight: npt.NDArray[Any]
    surrogate_bias: npt.NDArray[Any]
    gate_weight: npt.NDArray[Any] | None = None
    gate_bias: float = NEVER
    ladder: Ladder | None = None
    neuron_mean: npt.NDArray[Any] | None = None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class OperatingPoint:
    """Thresholds of all layers, by a name that requests give: a token goes linear where p > linear_thresholds[layer],
    else takes the ladder where p > ladder_thresholds[layer].  At 1 never, below 0 always.

    about: budget, cost, work_saved and the others of docs/calibration-file.md.
    """

    name: str
    linear_thresholds: Sequence[float]
    ladder_thresholds: Sequence[float] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def description(self) -> dict[str, Any]:
        ladders = [1.0] * len(self.linear_thresholds) if self.ladder_thresholds is None else self.ladder_thresholds
        layers = [{"linear_threshold": float(linear), "ladder_threshold": float(ladder)}
                  for linear, ladder in zip(self.linear_thresholds, ladders, strict=True)]
        return {"name": self.name, "layers": layers, **self.about}

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> OperatingPoint:
        layers = description["layers"]
        return cls(description["name"], [layer.get("linear_threshold", 1.0) for layer in layers],
                   [layer.get("ladder_threshold", 1.0) for layer in layers],
                   {key: value for key, value in description.items() if key not in ("name", "layers")})


@dataclass(eq=False)
class Calibration:
    """All layers of one model.

    model_fingerprint: client.model(name).fingerprint; another model refuses the file.
    about: {"corpus": …, "sink_positions": …} and the other keys of docs/calibration-file.md but `layers` and
        `operating_points`; `name` becomes the file's.
    """

    layers: list[Layer]
    model_fingerprint: str
    about: dict[str, Any] = field(default_factory=dict)
    operating_points: list[OperatingPoint] = field(default_factory=list)

    @classmethod
    def load(cls, path: os.PathLike[str] | str) -> Calibration:
        """Reads and checks a file.  CalibrationError says what is wrong in it."""
        try:
            tensors, metadata = safetensors.read(path)
        except safetensors.FormatError as error:
            raise CalibrationError(str(error)) from error
        for key, wanted in _FORMAT.items():
            if metadata.get(key) != wanted:
                raise CalibrationError(f"metadata key {key} is {metadata.get(key)!r}, must be {wanted!r}")
        if "model_fingerprint" not in metadata:
            raise CalibrationError("metadata key model_fingerprint is missing")
        try:
            description = json.loads(metadata.get("calibration", "{}"))
        except (TypeError, ValueError, RecursionError) as error:
            raise CalibrationError("metadata key calibration is not JSON") from error
        groups = _by_layer(tensors)
        check_description(description, len(groups))
        abouts = description.pop("layers", [{} for _ in groups])
        points = [OperatingPoint.of(point) for point in description.pop("operating_points", [])]
        layers = [_layer(group, about) for group, about in zip(groups, abouts, strict=True)]
        calibration = cls(layers, metadata["model_fingerprint"], description, points)
        calibration.check()
        return calibration

    def save(self, path: os.PathLike[str] | str, model: Model | None = None) -> str:
        """Checks and writes NAME.safetensors, whole or not at all; the calibration's own fingerprint, which the server
        shows.  The name is 1 to 64 letters, digits, '.', '_' and '-'."""
        name = pathlib.Path(path).name
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\.safetensors", name):
            raise CalibrationError(f"path ends in {name!r}, must be NAME.safetensors, with a name of 1 to 64 letters, "
                                   "digits, '.', '_' and '-' that begins with a letter, a digit or '_'")
        self.about["name"] = name.removesuffix(".safetensors")
        self.check(model)
        tensors: dict[str, npt.NDArray[Any]] = {}
        for index, layer in enumerate(self.layers):
            tensors |= {f"layers.{index}.{name}": array for name, array in _tensors(index, layer).items()}
        metadata = {**_FORMAT, "model_fingerprint": self.model_fingerprint,
                    "calibration": json.dumps(self.description(), ensure_ascii=False, allow_nan=False)}
        return "sha256:" + hashlib.sha256(safetensors.write(path, tensors, metadata)).hexdigest()

    def description(self) -> dict[str, Any]:
        """The JSON object of the file's metadata."""
        described = {**self.about, "layers": [layer.about for layer in self.layers],
                     "operating_points": [point.description() for point in self.operating_points]}
        return cast("dict[str, Any]", _plain(described))

    def check(self, model: Model | None = None) -> None:
        """CalibrationError, naming the field and its bound, where the server would refuse the file; of `model`, its
        fingerprint and shapes too."""
        if not self.layers:
            raise CalibrationError("layers is empty")
        fingerprint = self.model_fingerprint
        if not (isinstance(fingerprint, str) and fingerprint.isascii() and fingerprint):
            raise CalibrationError(f"model_fingerprint is {fingerprint!r:.80}, must be a model's fingerprint")
        try:
            description = self.description()
        except (TypeError, ValueError) as error:
            raise CalibrationError(f"operating_points: {error}") from None
        check_description(description, len(self.layers))
        d_model = _tensors(0, self.layers[0])["surrogate.bias"].size if model is None else model.d_model
        for index, layer in enumerate(self.layers):
            _check_layer(index, layer, d_model, None if model is None else model.d_mlp)
        for point in self.operating_points:
            for index, threshold in enumerate(() if point.ladder_thresholds is None else point.ladder_thresholds):
                if threshold < 1 and self.layers[index].ladder is None:
                    raise CalibrationError(f"the operating point {point.name} has a ladder_threshold in layer {index}, "
                                           "which has no ladder")
        if model is None:
            return
        if self.model_fingerprint != model.fingerprint:
            raise CalibrationError(f"model_fingerprint is {self.model_fingerprint}, must be {model.fingerprint}, "
                                   f"that of {model.name}")
        if len(self.layers) != model.layers:
            raise CalibrationError(f"layers has {len(self.layers)} entries, {model.name} has {model.layers} layers")


def fit_surrogate(x: npt.ArrayLike, y: npt.ArrayLike, ridge: float = 0.01
                  ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The ridge regression of y on x, [tokens, d_model] each, with an unpenalised bias (docs/methods.md, A.1): W and b,
    such as for a Layer.  x and y are what an MLP reads and writes: Capture("mlp_in") and Capture("mlp_out")."""
    inputs, outputs = _real("x", x).astype(np.float64), _real("y", y).astype(np.float64)
    if inputs.ndim != 2 or inputs.shape != outputs.shape or not inputs.size:
        raise CalibrationError(f"x and y have shapes {list(inputs.shape)} and {list(outputs.shape)}, must both have "
                               "[tokens, d_model], with a token or more")
    if not (np.isfinite(inputs).all() and np.isfinite(outputs).all()):
        raise CalibrationError("x or y holds a value that is not finite")
    if not 0 < ridge < np.inf:
        raise CalibrationError(f"ridge is {ridge}, must be above 0 and finite")
    centre, target = inputs.mean(axis=0), outputs.mean(axis=0)
    centred = inputs - centre
    gram = centred.T @ centred + ridge * np.eye(inputs.shape[1])
    weight = np.linalg.solve(gram, centred.T @ (outputs - target)).T
    return weight.astype(np.float32), (target - weight @ centre).astype(np.float32)


def _plain(value: Any) -> Any:
    """numpy's numbers and flags as Python's, which JSON knows."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def _real(field: str, values: Any) -> npt.NDArray[Any]:
    """An array of real numbers; CalibrationError for what is none."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CalibrationError(f"{field} is no array: {error}") from None
    if array.dtype.kind not in "fiu":
        raise CalibrationError(f"{field} has dtype {array.dtype}, must be of real numbers")
    return array


def _tensors(index: int, layer: Layer) -> dict[str, npt.NDArray[Any]]:
    """A layer's tensors by the end of their names."""
    gate = np.zeros(np.shape(_real(f"layers[{index}].{_REQUIRED[1]}", layer.surrogate_bias))) \
        if layer.gate_weight is None else layer.gate_weight
    required = (layer.surrogate_weight, layer.surrogate_bias, gate, [layer.gate_bias])
    found: dict[str, Any] = dict(zip(_REQUIRED, required))
    if layer.ladder is not None:
        found |= dict(zip(_LADDER[:2], (layer.ladder.weight, layer.ladder.bias)))
    if layer.neuron_mean is not None:
        found[_MEAN] = layer.neuron_mean
    with np.errstate(over="ignore"):  # infinities are found later
        arrays = {name: _real(f"layers[{index}].{name}", array).astype(np.float32) for name, array in found.items()}
    if layer.ladder is not None:
        arrays[_LADDER[2]] = np.asarray(layer.ladder.neurons, np.int64)
    return arrays


def _by_layer(tensors: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, npt.NDArray[Any]]]:
    groups: dict[int, dict[str, npt.NDArray[Any]]] = {}
    for name, array in tensors.items():
        head, _, rest = name.partition(".")
        index, _, suffix = rest.partition(".")
        if head != "layers" or not index.isdecimal() or str(int(index)) != index or \
                suffix not in (*_REQUIRED, *_LADDER, _MEAN):
            raise CalibrationError(f"tensor {name} is not one of this format")
        groups.setdefault(int(index), {})[suffix] = array
    # As many as there are: where numbers are left out, the first of them is missed below.
    found = [groups.get(layer, {}) for layer in range(len(groups))]
    for layer, group in enumerate(found):
        for suffix in _REQUIRED + (_LADDER if set(_LADDER) & set(group) else ()):
            if suffix not in group:
                raise CalibrationError(f"tensor layers.{layer}.{suffix} is missing")
    return found


def _layer(group: Mapping[str, npt.NDArray[Any]], about: dict[str, Any]) -> Layer:
    if group["gate.bias"].shape != (1,):
        raise CalibrationError(f"gate.bias has shape {list(group['gate.bias'].shape)}, must be [1]")
    ladder = Ladder(*(group[name] for name in _LADDER)) if _LADDER[0] in group else None
    return Layer(group["surrogate.weight"], group["surrogate.bias"], group["gate.weight"], float(group["gate.bias"][0]),
                 ladder, group.get(_MEAN), about)


def _check_layer(index: int, layer: Layer, d_model: int, d_mlp: int | None) -> None:
    if layer.ladder is not None:
        neurons = _real(f"layers[{index}].ladder.neurons", layer.ladder.neurons)
        most = np.iinfo(np.int32).max if d_mlp is None else d_mlp
        if neurons.ndim != 1 or neurons.size == 0 or not np.issubdtype(neurons.dtype, np.integer) or \
                neurons[0] < 0 or neurons[-1] >= most or np.any(neurons[1:] <= neurons[:-1]):
            raise CalibrationError(f"layers[{index}].ladder.neurons must be integers in [0, {most}), ascending, each "
                                   "once")
    for name, array in _tensors(index, layer).items():
        if name == _LADDER[2]:
            continue
        shape: tuple[int, ...] = (d_model, d_model) if name in ("surrogate.weight", "ladder.weight") else (d_model,)
        if name == "gate.bias":
            shape = (1,)
        if name == _MEAN:
            shape = array.shape[:1] if d_mlp is None else (d_mlp,)
        if array.shape != shape:
            raise CalibrationError(f"layers[{index}].{name} has shape {list(array.shape)}, must be {list(shape)}")
        if not np.isfinite(array).all():
            raise CalibrationError(f"layers[{index}].{name} holds a value that is not finite in float32")
    for kind in ("consensus", "exception", "gateway"):
        for finding in layer.about.get(kind, ()):
            if d_mlp is not None and finding["neuron"] >= d_mlp:
                raise CalibrationError(f"layers[{index}].about names neuron {finding['neuron']}, must be in "
                                       f"[0, {d_mlp})")
