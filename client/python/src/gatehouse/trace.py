"""What was recorded while tokens passed through the model, as arrays [token, layer]."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gatehouse.v1 import common_pb2

if TYPE_CHECKING:
    import pandas

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Neurons = list[list[tuple[int, ...]]]

_PATHS = np.array(["", "full", "linear", "ladder", "skip"])
_NUMBERS = ("gate_margin", "gate_probability", "nonlinearity", "output_norm")


def frame(columns: Mapping[str, Any]) -> pandas.DataFrame:
    """A pandas frame; ImportError says what to install where there is no pandas."""
    try:
        import pandas
    except ImportError as absent:
        raise ImportError("frames need pandas: pip install 'gatehouse[pandas]'") from absent
    return pandas.DataFrame(dict(columns))


def token_texts(pieces: Iterable[bytes]) -> list[str]:
    """The text of each token.  A character that a token's end cuts stands with the token that completes it; bytes that
    are no UTF-8 are U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return texts


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The recorded tokens of one sequence, in order.

    Arrays are [token, layer]; one that was not asked for is None.  NaN stands where a value does not exist: no gate
    decided, the token did not take the full MLP, the layer has no consensus neurons.

    positions: of each token in the sequence.  Not every token need be there: the last of a generation never passes
        through the model.
    raw: each token's own bytes, which need not be whole characters; `texts` are whole.
    paths: "full", "linear", "ladder" or "skip".
    gate_margin: probability - threshold, above 0 where the token went linear.
    gate_probability: of every layer's gate, whatever path was taken.
    nonlinearity: ‖y − ŷ‖, the distance of the full MLP's output from its surrogate's.
    output_norm: ‖y‖ of what the MLP, or what took its place, wrote.
    consensus_level: how many of the layer's consensus neurons fired.
    fired, exceptions_fired: [token][layer], the neurons that did.
    """

    token_ids: IntArray
    positions: IntArray
    raw: tuple[bytes, ...]
    paths: npt.NDArray[np.str_] | None = None
    gate_margin: FloatArray | None = None
    gate_probability: FloatArray | None = None
    nonlinearity: FloatArray | None = None
    output_norm: FloatArray | None = None
    consensus_level: FloatArray | None = None
    fired: Neurons | None = None
    exceptions_fired: Neurons | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} tokens in {self.layers} layers: {', '.join(self._arrays())}>"

    @property
    def layers(self) -> int:
        """How many layers the arrays have; 0 where nothing was recorded."""
        return next((array.shape[1] for array in self._arrays().values()), 0)

    @property
    def texts(self) -> list[str]:
        """The tokens' texts; joined they are the text."""
        return token_texts(self.raw)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        found = {name.name: getattr(self, name.name) for name in fields(self)[3:-2]}
        return {name: array for name, array in found.items() if array is not None}

    def to_frame(self) -> pandas.DataFrame:
        """One row a token and layer: token, position, id, text, layer, and a column of each array there is."""
        tokens, layers = len(self), max(self.layers, 1)
        texts = np.array(self.texts, dtype=object)
        columns: dict[str, Any] = {
            "token": np.repeat(np.arange(tokens), layers), "position": np.repeat(self.positions, layers),
            "id": np.repeat(self.token_ids, layers), "text": np.repeat(texts, layers)}
        if self.layers:
            columns["layer"] = np.tile(np.arange(layers), tokens)
        for name, array in self._arrays().items():
            columns[name.removesuffix("s") if name == "paths" else name] = array.ravel()
        for name in ("fired", "exceptions_fired"):
            if (neurons := getattr(self, name)) is not None:
                columns[name] = [entry for token in neurons for entry in token]
        return frame(columns)


class TraceBuilder:
    """Gathers the insights of one sequence."""

    def __init__(self) -> None:
        self._insights: list[common_pb2.TokenInsight] = []
        self._raw: list[bytes] = []
        self._ids: list[int] = []

    def add(self, insight: common_pb2.TokenInsight, token_id: int, raw: bytes) -> None:
        self._insights.append(insight)
        self._ids.append(token_id)
        self._raw.append(raw)

    def build(self) -> Trace:
        insights = self._insights
        arrays: dict[str, Any] = {name: _stack([getattr(insight, name) for insight in insights]) for name in _NUMBERS}
        if insights and insights[0].paths:
            known = np.array([insight.paths for insight in insights], np.intp)
            arrays["paths"] = _PATHS[np.where(known < len(_PATHS), known, 0)]  # a newer server's others are ""
        if insights and insights[0].consensus:
            arrays |= _consensus(insights)
        positions = np.array([insight.position for insight in insights], np.int64)
        return Trace(np.array(self._ids, np.int64), positions, tuple(self._raw), **arrays)


def _stack(rows: Sequence[Sequence[float]]) -> FloatArray | None:
    return np.array(rows, np.float32) if rows and len(rows[0]) else None


def _consensus(insights: Sequence[common_pb2.TokenInsight]) -> dict[str, Any]:
    tokens = [insight.consensus for insight in insights]
    level = [[layer.level if layer.HasField("level") else np.nan for layer in token] for token in tokens]
    return {"consensus_level": np.array(level, np.float32),
            "fired": [[tuple(layer.fired) for layer in token] for token in tokens],
            "exceptions_fired": [[tuple(layer.exceptions_fired) for layer in token] for token in tokens]}
