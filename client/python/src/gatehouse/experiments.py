"""The methods that a server can run as experiments (docs/methods.md, docs/client.md), and their settings.

    operation = client.experiment("novella-gpt2-7m", pathlib.Path("book.txt"), experiments.Consensus(max_consensus=5))
    tables = operation.wait().report().frames()

What is left None, or empty, is the server's default; the fields are those of proto/gatehouse/v1/operations.proto, which
gives their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from gatehouse.errors import InvalidArgumentError
from gatehouse.requests import fill
from gatehouse.v1 import operations_pb2


class Method:
    """One experiment; its dataclass fields are those of its message."""

    field: ClassVar[str]  # of ExperimentSpec

    def message(self) -> Any:
        spec = operations_pb2.ExperimentSpec()
        message = getattr(spec, self.field)
        return fill(type(message)(), f"{self.field}.", **self._values())

    def _values(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class LinearizationCost(Method):
    """What replacing each layer's MLP by its surrogate costs, with and without sinks."""

    field = "linearization_cost"


@dataclass(frozen=True)
class GateSweep(Method):
    """Gates of several kinds over thresholds and PCA bottlenecks."""

    field = "gate_sweep"
    thresholds: Sequence[float] = ()
    bottlenecks: Sequence[int] = ()


@dataclass(frozen=True)
class Routability(Method):
    """What of a token, its identity or its context, decides whether it may go linear."""

    field = "routability"


@dataclass(frozen=True)
class NoFly(Method):
    """Tokens that must not go linear, over two texts or more."""

    field = "no_fly"
    least_mean: float | None = None
    least_count: int | None = None
    least_positive: float | None = None
    least_count_other: int | None = None


@dataclass(frozen=True)
class Training(Method):
    """Fine-tuning while MLPs are replaced or routed, beside its control."""

    field = "training"
    schedule: Literal["progressive", "two_phase", "routing"] = "progressive"
    order: Sequence[int] = ()
    steps_per_layer: int | None = None
    final_steps: int | None = None
    batch_sequences: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    gradient_clip: float | None = None
    gate_learning_rate: float | None = None
    gate_pressure: float | None = None
    evaluate_every: int | None = None
    save_model: bool = False

    def _values(self) -> dict[str, Any]:
        return super()._values() | {"schedule": f"SCHEDULE_{self.schedule.upper()}"}


@dataclass(frozen=True)
class Nonlinearity(Method):
    """How nonlinear each layer is, token by token, and clusters of the most nonlinear tokens."""

    field = "nonlinearity"
    clusters: int | None = None


@dataclass(frozen=True)
class PolynomialProbe(Method):
    """How much of what a linear map leaves over a polynomial explains."""

    field = "polynomial_probe"
    degrees: Sequence[int] = ()
    components: int | None = None
    ridge: float | None = None
    high_share: float | None = None


@dataclass(frozen=True)
class Consensus(Method):
    """Consensus, exception and gateway neurons beside their nulls, and what each level of consensus goes with."""

    field = "consensus"
    max_consensus: int | None = None


@dataclass(frozen=True)
class Ablation(Method):
    """What zeroing each layer's MLP does, by level of consensus."""

    field = "ablation"
    max_consensus: int | None = None


@dataclass(frozen=True)
class Quorum(Method):
    """Routing by a quorum of the consensus neurons, beside logistic gates of the same work."""

    field = "quorum"
    max_consensus: int | None = None


def experiment_spec(corpora: Sequence[str], method: Method, **settings: Any) -> operations_pb2.ExperimentSpec:
    """The message of one experiment; `settings` are further fields of ExperimentSpec."""
    if not isinstance(method, Method):
        raise InvalidArgumentError(f"method is {method!r}, must be one of gatehouse.experiments", field="method")
    return fill(operations_pb2.ExperimentSpec(), "experiment.", corpora=list(corpora), **settings,
                **{method.field: method.message()})
