"""Takes up the messages of streamed answers and makes results of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from gatehouse.enums import word
from gatehouse.errors import InternalError
from gatehouse.interventions import Activations
from gatehouse.results import (Alternative, ConsensusResult, GenerationResult, NonlinearityResult, Routing, ScoreResult,
                               Token)
from gatehouse.trace import Trace, TraceBuilder
from gatehouse.v1 import analysis_pb2, common_pb2, generation_pb2, scoring_pb2

T = TypeVar("T")


def _need(value: T | None) -> T:
    if value is None:
        raise InternalError("the server ended the answer without a summary")
    return value


def _alternatives(top: Iterable[common_pb2.TokenAlternative]) -> tuple[Alternative, ...]:
    return tuple(Alternative(entry.id, entry.logprob, entry.raw) for entry in top)


def _recorded(builder: TraceBuilder) -> Trace | None:
    trace = builder.build()
    return trace if trace.layers else None


class GenerationFold:
    """Tokens are handed on as they come; `tail` is the text that was held back until the end."""

    def __init__(self, model: str) -> None:
        self.start: generation_pb2.GenerationStart | None = None
        self.tail = ""
        self._model = model
        self._tokens: list[Token] = []
        self._prompt = TraceBuilder()
        self._all = TraceBuilder()
        self._activations = Activations()
        self._summary: generation_pb2.GenerationSummary | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(token.text for token in self._tokens) + self.tail

    def add(self, response: generation_pb2.GenerateResponse) -> Iterable[Token]:
        match response.WhichOneof("event"):
            case "token":
                return [self._token(response.token)]
            case "start":
                self.start = response.start
            case "prompt":
                for insight in response.prompt.tokens:
                    self._prompt.add(insight, insight.id, insight.raw)
                    self._all.add(insight, insight.id, insight.raw)
            case "activations":
                self._activations.add(response.activations)
            case "summary":
                self._summary = response.summary
                self.tail = response.summary.text
        return ()

    def _token(self, message: generation_pb2.GeneratedToken) -> Token:
        insight = None
        if message.HasField("insight"):
            self._all.add(message.insight, message.id, message.raw)
            one = TraceBuilder()
            one.add(message.insight, message.id, message.raw)
            insight = one.build()
        token = Token(message.id, message.text, message.raw, message.logprob, _alternatives(message.top), insight)
        self._tokens.append(token)
        return token

    def result(self) -> GenerationResult:
        summary = _need(self._summary)
        finish = word(generation_pb2.FinishReason, summary.finish_reason, "FINISH_REASON_")
        return GenerationResult(
            self._model, self.text, tuple(self._tokens), finish, summary.matched_stop, summary.prompt_tokens,
            summary.generated_tokens, summary.seed, summary.queue_seconds, summary.prefill_seconds,
            summary.decode_seconds, Routing.of(summary.routing), _recorded(self._prompt), _recorded(self._all),
            self._activations)


class ScoreFold:
    """Keeps everything for the result."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tokens: list[scoring_pb2.ScoredToken] = []
        self._activations = Activations()
        self._summary: scoring_pb2.ScoreSummary | None = None

    def add(self, response: scoring_pb2.ScoreResponse) -> Iterable[None]:
        match response.WhichOneof("event"):
            case "tokens":
                self._tokens.extend(response.tokens.tokens)
            case "activations":
                self._activations.add(response.activations)
            case "summary":
                self._summary = response.summary
        return ()

    def result(self) -> ScoreResult:
        summary = _need(self._summary)
        trace = TraceBuilder()
        for token in self._tokens:
            if token.HasField("insight"):
                trace.add(token.insight, token.id, token.raw)
        logprobs = [token.logprob if token.HasField("logprob") else np.nan for token in self._tokens]
        return ScoreResult(
            self._model, np.array([token.id for token in self._tokens], np.int64), np.array(logprobs, np.float32),
            tuple(token.raw for token in self._tokens), summary.perplexity if summary.HasField("perplexity") else None,
            summary.total_logprob, summary.tokens, summary.scored_tokens, summary.windows, summary.seconds,
            Routing.of(summary.routing), tuple(_alternatives(token.top) for token in self._tokens), _recorded(trace),
            self._activations)


class _AnalysisFold:
    def __init__(self, model: str, texts: int) -> None:
        self._model = model
        self._traces = [TraceBuilder() for _ in range(texts)]
        self._start: Any = None
        self._summary: analysis_pb2.AnalysisSummary | None = None

    def add(self, response: Any) -> Iterable[None]:
        match response.WhichOneof("event"):
            case "start":
                self._start = response.start
            case "tokens":
                for insight in response.tokens.tokens:
                    self._traces[response.tokens.input].add(insight, insight.id, insight.raw)
            case "summary":
                self._summary = response.summary
        return ()

    def _parts(self) -> dict[str, Any]:
        """The fields that both analyses have."""
        summary = _need(self._summary)
        return {"model": self._model, "calibration": _need(self._start).calibration,
                "texts": tuple(trace.build() for trace in self._traces), "token_count": summary.tokens,
                "seconds": summary.seconds, "routing": Routing.of(summary.routing)}


class NonlinearityFold(_AnalysisFold):
    """Keeps everything for the result."""

    def result(self) -> NonlinearityResult:
        parts = self._parts()
        layers = [(layer.p25, layer.p50, layer.p70, layer.p95) for layer in self._start.layers]
        return NonlinearityResult(**parts, percentiles=np.array(layers, np.float64))


class ConsensusFold(_AnalysisFold):
    """Keeps everything for the result."""

    def result(self) -> ConsensusResult:
        parts = self._parts()
        for kind in ("consensus", "exception", "gateway"):
            parts[kind] = tuple(tuple(getattr(layer, kind)) for layer in self._start.layers)
        return ConsensusResult(**parts)
