"""Every call of the API: its arguments, the request they make, and how answers become a result.

`Client` and `AsyncClient` have a method of the same name and arguments for each of these; the two differ only in how
they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from google.protobuf.message import Message

from gatehouse import folds
from gatehouse.gating import Policy
from gatehouse.interventions import Capture, Intervention
from gatehouse.models import CalibrationSummary, Model, ModelSummary
from gatehouse.requests import (DEFAULT, Record, Text, Timeout, changes, fill, gating_policy, listed, text_input,
                                text_inputs, token_records)
from gatehouse.results import ConsensusResult, GenerationResult, NonlinearityResult, ScoreResult, Token
from gatehouse.v1 import analysis_pb2, generation_pb2, models_pb2, scoring_pb2

Item_co = TypeVar("Item_co", covariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Fold(Protocol[Item_co, Result_co]):
    """Takes up the messages of one stream."""

    def add(self, response: Any) -> Iterable[Item_co]:
        """What of the message is to be handed on as it comes."""

    def result(self) -> Result_co:
        """The whole, once the stream has ended; InternalError where something is missing."""


@dataclass(frozen=True)
class Unary(Generic[Result_co]):
    """A call with one answer."""

    method: str  # "gatehouse.v1.ModelService/ListModels"
    request: Message
    response: type[Message]
    parse: Callable[[Any], Result_co]
    timeout: Timeout = DEFAULT
    replica: str = ""  # that a proxy is to choose


@dataclass(frozen=True)
class Streaming(Generic[Item_co, Result_co]):
    """A call whose answer is a stream."""

    method: str
    request: Message
    response: type[Message]
    fold: Callable[[], Fold[Item_co, Result_co]]
    timeout: Timeout = DEFAULT
    replica: str = ""


def generate(model: str, prompt: Text, *, max_tokens: int | None = None, temperature: float | None = None,
             top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
             repetition_penalty: float | None = None, logit_bias: Mapping[int, float] | None = None,
             seed: int | None = None, stop: str | Sequence[str] = (), stop_token_ids: Sequence[int] = (),
             ignore_eos: bool = False, gating: Policy | None = None, record: Record | Iterable[Record] = (),
             record_prompt: bool = False, top_logprobs: int = 0, interventions: Iterable[Intervention] = (),
             captures: Iterable[Capture] = (), plain_text: bool = False,
             timeout: Timeout = DEFAULT) -> Streaming[Token, GenerationResult]:
    """Continues a prompt.  The answer is a stream of tokens; its `result()` has the whole.

    max_tokens: default: as many as the context has room for.
    temperature, top_k, top_p, min_p, repetition_penalty, logit_bias, seed: sampling; temperature 0 takes the most
        likely token, the same seed and request give the same tokens.
    stop, stop_token_ids, ignore_eos: where the generation ends; a stop string is not part of the text.
    gating: Full() where None; see gatehouse.gating.
    record: of "routing", "nonlinearity", "consensus", "gate", what to record of each token; `record_prompt` adds the
        prompt's.
    top_logprobs: alternatives with each token, at most 20.
    interventions, captures: see gatehouse.interventions.
    plain_text: what spells a special token stays text.
    """
    sampling = fill(generation_pb2.SamplingParameters(), "sampling.", temperature=temperature, top_k=top_k, top_p=top_p,
                    min_p=min_p, repetition_penalty=repetition_penalty,
                    logit_bias=logit_bias, seed=seed)
    ends = fill(generation_pb2.StopConditions(), "stop.", ignore_eos=ignore_eos,
                strings=[stop] if isinstance(stop, str) else listed("stop", stop),
                token_ids=listed("stop_token_ids", stop_token_ids))
    request = fill(generation_pb2.GenerateRequest(), model=model, prompt=text_input(prompt, plain_text, "prompt"),
                   max_tokens=max_tokens, sampling=sampling, stop=ends, gating=gating_policy(gating),
                   records=token_records(record), record_prompt=record_prompt, top_logprobs=top_logprobs,
                   **changes(interventions, captures))
    return Streaming("gatehouse.v1.GenerationService/Generate", request, generation_pb2.GenerateResponse,
                     lambda: folds.GenerationFold(model), timeout)


def score(model: str, text: Text, *, gating: Policy | None = None, window: int | None = None, stride: int | None = None,
          blocks: bool = False, top_logprobs: int = 0, record: Record | Iterable[Record] = (),
          summary_only: bool = False, interventions: Iterable[Intervention] = (), captures: Iterable[Capture] = (),
          plain_text: bool = False, timeout: Timeout = DEFAULT) -> Streaming[None, ScoreResult]:
    """Measures how well the model predicts a text: log-probabilities and perplexity.

    window, stride: how a long text is read (default: the context); each token but the first is scored once.
    blocks: independent blocks instead, the first token of each unscored.
    summary_only: do not send the tokens.
    The others are those of `generate`.
    """
    cut = fill(scoring_pb2.ScoreWindow(), "window.", size=window, stride=stride, blocks=blocks)
    request = fill(scoring_pb2.ScoreRequest(), model=model, input=text_input(text, plain_text), window=cut,
                   gating=gating_policy(gating), top_logprobs=top_logprobs, records=token_records(record),
                   summary_only=summary_only, **changes(interventions, captures))
    return Streaming("gatehouse.v1.ScoringService/Score", request, scoring_pb2.ScoreResponse,
                     lambda: folds.ScoreFold(model), timeout)


def nonlinearity(model: str, texts: Text | Iterable[Text], *, gating: Policy | None = None, plain_text: bool = False,
                 timeout: Timeout = DEFAULT) -> Streaming[None, NonlinearityResult]:
    """Measures ‖y − ŷ‖, how far each MLP's output is from its linear surrogate's, of every token and layer.

    texts: one text, or at most 256.
    gating: Full() where None; a token that goes linear has no score.
    """
    request = fill(analysis_pb2.ScoreNonlinearityRequest(), model=model, inputs=text_inputs(texts, plain_text),
                   gating=gating_policy(gating))
    return Streaming("gatehouse.v1.AnalysisService/ScoreNonlinearity", request, analysis_pb2.ScoreNonlinearityResponse,
                     lambda: folds.NonlinearityFold(model, len(request.inputs)), timeout)


def consensus(model: str, texts: Text | Iterable[Text], *, gating: Policy | None = None, plain_text: bool = False,
              timeout: Timeout = DEFAULT) -> Streaming[None, ConsensusResult]:
    """Traces, of every token and layer, how many of the layer's consensus neurons fire, which, and the exceptions.

    texts: one text, or at most 256.
    gating: Full() where None; the neurons of a token that goes linear do not exist.
    """
    request = fill(analysis_pb2.TraceConsensusRequest(), model=model, inputs=text_inputs(texts, plain_text),
                   gating=gating_policy(gating))
    return Streaming("gatehouse.v1.AnalysisService/TraceConsensus", request, analysis_pb2.TraceConsensusResponse,
                     lambda: folds.ConsensusFold(model, len(request.inputs)), timeout)


def models(*, timeout: Timeout = DEFAULT) -> Unary[list[ModelSummary]]:
    """The models that the server holds."""
    return Unary("gatehouse.v1.ModelService/ListModels", models_pb2.ListModelsRequest(), models_pb2.ListModelsResponse,
                 lambda response: [ModelSummary.of(model) for model in response.models], timeout)


def replica(*, timeout: Timeout = DEFAULT) -> Unary[str]:
    """The name of the server that answers."""
    return Unary("gatehouse.v1.ModelService/ListModels", models_pb2.ListModelsRequest(), models_pb2.ListModelsResponse,
                 lambda response: str(response.replica), timeout)


def model(name: str, *, timeout: Timeout = DEFAULT) -> Unary[Model]:
    """All that is known of one model, its calibrations and the active one."""
    return Unary("gatehouse.v1.ModelService/DescribeModel", fill(models_pb2.DescribeModelRequest(), model=name),
                 models_pb2.DescribeModelResponse, Model.of, timeout)


def select_calibration(model: str, calibration: str, *, timeout: Timeout = DEFAULT) -> Unary[CalibrationSummary]:
    """Makes a calibration the model's active one; running calls keep the one they began with."""
    request = fill(models_pb2.SelectCalibrationRequest(), model=model, calibration=calibration)
    return Unary("gatehouse.v1.ModelService/SelectCalibration", request, models_pb2.SelectCalibrationResponse,
                 lambda response: CalibrationSummary.of(response.calibration), timeout)
