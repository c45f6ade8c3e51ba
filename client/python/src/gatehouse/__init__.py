"""The client of Gatehouse.

    client = gatehouse.connect("127.0.0.1:50151")
    for text in client.generate("novella-gpt2-7m", "The captain walked", max_tokens=40).texts():
        print(text, end="", flush=True)
"""

from typing import Unpack

from gatehouse import calibration, errors, experiments, gating, interventions, notebook
from gatehouse.aio import AsyncClient, AsyncGeneration, AsyncOperation
from gatehouse.channel import DEFAULT_SERVER, Options, OptionValues
from gatehouse.client import Client, Generation, Operation
from gatehouse.errors import GatehouseError
from gatehouse.gating import Full, Gated, Ladder, Linear, Quorum
from gatehouse.interventions import Capture, ForcePath, Mean, Patch, Scale, Set, Zero, ZeroMlp
from gatehouse.models import Model, ModelSummary
from gatehouse.operations import Corpus, OperationState
from gatehouse.report import Report
from gatehouse.results import (Alternative, ConsensusResult, GenerationResult, NonlinearityResult, Routing, ScoreResult,
                               Token)
from gatehouse.trace import Trace

__all__ = [
    "Alternative", "AsyncClient", "AsyncGeneration", "AsyncOperation", "Capture", "Client", "ConsensusResult", "Corpus",
    "DEFAULT_SERVER", "ForcePath", "Full", "Gated", "GatehouseError", "Generation", "GenerationResult", "Ladder",
    "Linear", "Mean", "Model", "ModelSummary", "NonlinearityResult", "Operation", "OperationState", "Options", "Patch",
    "Quorum", "Report", "Routing", "Scale", "ScoreResult", "Set", "Token", "Trace", "Zero", "ZeroMlp", "calibration",
    "connect", "errors", "experiments", "gating", "interventions", "notebook"]


def connect(server: str = DEFAULT_SERVER, **options: Unpack[OptionValues]) -> Client:
    """A client of the server at HOST:PORT; `options` are those of gatehouse.Options."""
    return Client(server, Options(**options))
