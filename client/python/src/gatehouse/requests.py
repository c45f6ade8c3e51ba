"""From arguments to request messages."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from gatehouse.errors import InvalidArgumentError
from gatehouse.gating import Policy
from gatehouse.interventions import Capture, Intervention
from gatehouse.v1 import common_pb2

M = TypeVar("M", bound=Message)
T = TypeVar("T")
# A text, or the ids of its tokens.
Text = str | Sequence[int] | npt.NDArray[np.integer[Any]]
Record = Literal["routing", "nonlinearity", "consensus", "gate"]
RECORDS: tuple[Record, ...] = ("routing", "nonlinearity", "consensus", "gate")


class Default(enum.Enum):
    """The value of an argument that was not given, where None means something else."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default.DEFAULT
# Seconds from the call's start to its end; None: no deadline; DEFAULT: the client's.
Timeout = float | None | Literal[Default.DEFAULT]


def fill(message: M, prefix: str = "", /, **values: Any) -> M:
    """Sets the fields whose value is not None.  InvalidArgumentError names one that the value does not fit."""
    for name, value in values.items():
        if value is None:
            continue
        try:
            message.MergeFrom(type(message)(**{name: value}))
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"{prefix}{name} is not valid text: {error.reason} at {error.start}",
                                       reason="INVALID_UTF8", field=prefix + name) from None
        except (TypeError, ValueError) as error:
            raise cannot_be(prefix + name, value, error) from None
    return message


def cannot_be(field: str, value: object, why: object) -> InvalidArgumentError:
    """The error of a value that a field cannot hold."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return InvalidArgumentError(f"{field} cannot be {shown}: {why}", reason="INVALID_FIELD", field=field)


def listed(field: str, values: Iterable[T]) -> list[T]:
    """As a list; InvalidArgumentError for what is none."""
    try:
        return list(values)
    except TypeError as error:
        raise cannot_be(field, values, error) from None


def text_input(text: Text, plain_text: bool = False, field: str = "input") -> common_pb2.TextInput:
    """`plain_text`: what spells a special token, such as "<|endoftext|>", stays text."""
    if isinstance(text, str):
        return fill(common_pb2.TextInput(plain_text=plain_text), f"{field}.", text=text)
    if isinstance(text, (bytes, bytearray, memoryview, Mapping)):
        raise cannot_be(field, text, "it is neither a str nor a list of token ids")
    numbers = text.tolist() if isinstance(text, np.ndarray) and text.size else text
    try:
        given = [operator.index(token) for token in numbers]
    except TypeError as error:
        raise cannot_be(field, text, f"it is neither a str nor a list of token ids: {error}") from None
    ids = fill(common_pb2.TokenIds(), f"{field}.token_ids.", ids=given)
    return common_pb2.TextInput(token_ids=ids, plain_text=plain_text)


def text_inputs(texts: Text | Iterable[Text], plain_text: bool) -> list[common_pb2.TextInput]:
    """One text, or several: a list of numbers is one."""
    if isinstance(texts, (str, bytes, bytearray, np.ndarray)):
        return [text_input(texts, plain_text)]
    given = listed("inputs", texts)
    if given and isinstance(given[0], (int, np.integer)):
        return [text_input(given, plain_text)]  # type: ignore[arg-type]
    return [text_input(text, plain_text, f"inputs[{i}]") for i, text in enumerate(given)]  # type: ignore[arg-type]


def gating_policy(policy: Policy | None) -> common_pb2.GatingPolicy | None:
    try:
        return None if policy is None else policy.message()
    except AttributeError:
        raise cannot_be("gating", policy, "it is none of gatehouse.gating, such as Gated(0.5)") from None
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"gating cannot be {policy!r}: {error}", reason="INVALID_FIELD",
                                   field="gating") from None


def token_records(record: Record | Iterable[Record]) -> common_pb2.TokenRecords:
    names = [record] if isinstance(record, str) else listed("record", record)
    for name in names:
        if name not in RECORDS:
            raise InvalidArgumentError(f"record has {name!r}, must be of {', '.join(RECORDS)}", reason="INVALID_FIELD")
    return common_pb2.TokenRecords(**{name: True for name in names})


def changes(interventions: Iterable[Intervention], captures: Iterable[Capture]) -> dict[str, Any]:
    """The two fields that requests share."""
    found: dict[str, Any] = {}
    for name, given in (("interventions", interventions), ("captures", captures)):
        messages = found[name] = []
        for i, change in enumerate(listed(name, given)):
            try:
                messages.append(change.message())
            except (AttributeError, TypeError, ValueError) as error:
                raise InvalidArgumentError(f"{name}[{i}] cannot be {change!r}: {error}", reason="INVALID_FIELD",
                                           field=f"{name}[{i}]") from None
    return found
