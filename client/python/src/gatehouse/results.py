"""What calls return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gatehouse import notebook
from gatehouse.interventions import Activations
from gatehouse.trace import FloatArray, IntArray, Trace, frame, token_texts
from gatehouse.v1 import common_pb2

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Alternative:
    """One of the most likely tokens at a position; `logprob` is before sampling parameters."""

    id: int
    logprob: float
    raw: bytes

    @property
    def text(self) -> str:
        """Its own bytes, U+FFFD for what is no whole character."""
        return self.raw.decode("utf-8", "replace")


@dataclass(frozen=True)
class Token:
    """A token as it is generated.

    text: what became certain with this token: whole characters that can no longer be part of a stop string.  May be
        empty, and may hold text of earlier tokens.
    raw: the token's own bytes, which need not be whole characters.
    logprob: of the model's own distribution, before sampling parameters.
    insight: what was recorded, one row; None where nothing was asked for, and for the last token.
    """

    id: int
    text: str
    raw: bytes
    logprob: float
    alternatives: tuple[Alternative, ...] = ()
    insight: Trace | None = None


@dataclass(frozen=True, eq=False)
class Routing:
    """Counts of token × layer decisions of a whole call, prompt included.

    counts: [layer, 4]: tokens that took the full MLP, the surrogate, the ladder, nothing.
    mlp_work_saved: share of the MLPs' multiplications that was not done, gates counted.
    calibration: name of the one used; empty where none was needed.
    notes: what the caller should know, such as that no layer is gateable.
    """

    linear_fraction: float
    decisions: int
    linear_decisions: int
    ladder_decisions: int
    skip_decisions: int
    mlp_work_saved: float
    calibration: str
    notes: tuple[str, ...]
    counts: IntArray

    @classmethod
    def of(cls, message: common_pb2.RoutingSummary) -> Routing:
        counts = [(row.full_tokens, row.linear_tokens, row.ladder_tokens, row.skip_tokens) for row in message.layers]
        return cls(message.linear_fraction, message.decisions, message.linear_decisions, message.ladder_decisions,
                   message.skip_decisions, message.mlp_work_saved, message.calibration, tuple(message.notes),
                   np.array(counts, np.int64).reshape(-1, 4))

    def to_frame(self) -> pandas.DataFrame:
        """One row a layer: layer, full, linear, ladder, skip (tokens)."""
        names = ("full", "linear", "ladder", "skip")
        return frame({"layer": np.arange(len(self.counts)), **dict(zip(names, self.counts.T))})


@dataclass(frozen=True, eq=False)
class GenerationResult:
    """A whole generation.

    prompt: records of the prompt's tokens, with `record_prompt`; None otherwise.
    trace: records of all recorded tokens, the prompt's first; None where nothing was asked for.
    """

    model: str
    text: str
    tokens: tuple[Token, ...]
    finish_reason: str
    matched_stop: str
    prompt_tokens: int
    generated_tokens: int
    seed: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    routing: Routing
    prompt: Trace | None
    trace: Trace | None
    activations: Activations = field(default_factory=Activations)

    @property
    def token_ids(self) -> IntArray:
        return np.array([token.id for token in self.tokens], np.int64)

    @property
    def logprobs(self) -> FloatArray:
        return np.array([token.logprob for token in self.tokens], np.float32)

    def to_frame(self) -> pandas.DataFrame:
        """One row a generated token: id, text, logprob.  `trace.to_frame()` has what was recorded."""
        return frame({"id": self.token_ids, "text": np.array(token_texts(t.raw for t in self.tokens), dtype=object),
                      "logprob": self.logprobs})

    def _repr_html_(self) -> str:
        return notebook.generation(self)


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """How well the model predicts a text.

    logprobs: [token], NaN where a token was not scored, as the first.  Empty with `summary_only`, as token_ids and raw.
    perplexity: None where nothing was scored.
    alternatives: the most likely tokens at each position, where asked for.
    trace: what was recorded; None where nothing was asked for.
    """

    model: str
    token_ids: IntArray
    logprobs: FloatArray
    raw: tuple[bytes, ...]
    perplexity: float | None
    total_logprob: float
    token_count: int
    scored_tokens: int
    windows: int
    seconds: float
    routing: Routing
    alternatives: tuple[tuple[Alternative, ...], ...]
    trace: Trace | None
    activations: Activations = field(default_factory=Activations)

    @property
    def texts(self) -> list[str]:
        """The tokens' texts; joined they are the text."""
        return token_texts(self.raw)

    def to_frame(self) -> pandas.DataFrame:
        """One row a token: id, text, logprob."""
        return frame({"id": self.token_ids, "text": np.array(self.texts, dtype=object), "logprob": self.logprobs})

    def _repr_html_(self) -> str:
        return notebook.score(self)


@dataclass(frozen=True, eq=False)
class AnalysisResult:
    """What an analysis recorded of each text, in the order of the request."""

    model: str
    calibration: str
    texts: tuple[Trace, ...]
    token_count: int
    seconds: float
    routing: Routing

    @property
    def trace(self) -> Trace:
        """Of the only text; ValueError where there were several."""
        if len(self.texts) != 1:
            raise ValueError(f"there are {len(self.texts)} texts: use .texts")
        return self.texts[0]

    def to_frame(self) -> pandas.DataFrame:
        """The frames of the texts one below the other, with a column `input`."""
        import pandas
        frames = [trace.to_frame().assign(input=i) for i, trace in enumerate(self.texts)]
        return pandas.concat(frames, ignore_index=True)


@dataclass(frozen=True, eq=False)
class NonlinearityResult(AnalysisResult):
    """Nonlinearity scores.  percentiles: [layer, 4], P25, P50, P70 and P95 over the calibration's tokens."""

    percentiles: npt.NDArray[np.float64]

    @property
    def scores(self) -> FloatArray:
        """‖y − ŷ‖ of the only text, [token, layer]."""
        assert self.trace.nonlinearity is not None
        return self.trace.nonlinearity

    def ranks(self, text: int = 0) -> FloatArray:
        """Where each score lies among the calibration's, in [0, 1], [token, layer]: exact at the four percentiles, with
        straight lines between them, near 1 above P95."""
        scores = self.texts[text].nonlinearity
        assert scores is not None
        return notebook.ranks(scores, self.percentiles)

    def heatmap(self, layer: int | None = None) -> notebook.Html:
        """Layers × tokens; the text is coloured by `layer` (default: the one with the most tokens above P95)."""
        return notebook.nonlinearity(self, layer)

    def _repr_html_(self) -> str:
        return self.heatmap().html


@dataclass(frozen=True, eq=False)
class ConsensusResult(AnalysisResult):
    """A consensus trace.  consensus, exception, gateway: [layer], the neurons the calibration found there."""

    consensus: tuple[tuple[int, ...], ...]
    exception: tuple[tuple[int, ...], ...]
    gateway: tuple[tuple[int, ...], ...]

    @property
    def levels(self) -> FloatArray:
        """How many consensus neurons fired, of the only text, [token, layer]."""
        assert self.trace.consensus_level is not None
        return self.trace.consensus_level

    def strip(self, layer: int | None = None) -> notebook.Html:
        """The text coloured by how many consensus neurons of `layer` fire (default: the layer with most of them)."""
        return notebook.consensus(self, layer)

    def _repr_html_(self) -> str:
        return self.strip().html
