"""The safetensors format: named arrays and a few strings in one file, of which calibration files are made."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_MOST_HEADER = 100 << 20


class FormatError(ValueError):
    """A file is not of the format; the message says where."""


def read(path: os.PathLike[str] | str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The arrays and the metadata of a file; bfloat16 is read as float32."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _MOST_HEADER):
        raise FormatError(f"{path}: the header does not fit the file")
    try:
        header = json.loads(data[8:8 + length])
        metadata = dict(header.pop("__metadata__", {}))
        entries = {name: _entry(entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path}: the header is not that of a safetensors file") from error
    body = memoryview(data)[8 + length:]
    return {name: _array(path, name, body, *entry) for name, entry in entries.items()}, metadata


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    begin, end = entry["data_offsets"]
    return entry["dtype"], tuple(entry["shape"]), begin, end


def _array(path: object, name: str, body: memoryview, dtype: str, shape: tuple[int, ...], begin: int,
           end: int) -> npt.NDArray[Any]:
    if not (isinstance(dtype, str) and (dtype == "BF16" or dtype in _DTYPES)):
        raise FormatError(f"{path}: tensor {name} has dtype {dtype}, which is not read here")
    kind = np.dtype("<u2" if dtype == "BF16" else _DTYPES[dtype])
    if len(shape) > 8 or not all(type(number) is int and 0 <= number < 2**31 for number in shape) or \
            type(begin) is not int or type(end) is not int:
        raise FormatError(f"{path}: tensor {name} has a shape or place that no array has")
    if not 0 <= begin <= end <= len(body) or end - begin != kind.itemsize * math.prod(shape):
        raise FormatError(f"{path}: tensor {name} has {end - begin} bytes, which do not fit its shape {list(shape)}")
    values = np.frombuffer(body[begin:end], kind).reshape(shape if end > begin else (0,))
    return (values.astype("<u4") << 16).view("<f4") if dtype == "BF16" else values


def write(path: os.PathLike[str] | str, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Writes a file, first beside it so that nobody reads half of one; returns its bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    pieces = []
    at = 0
    for name, array in arrays.items():
        piece = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        if array.dtype not in _NAMES:
            raise FormatError(f"tensor {name} has dtype {array.dtype}, which is not written here")
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + len(piece)]}
        pieces.append(piece)
        at += len(piece)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join([len(text).to_bytes(8, "little"), text, *pieces])
    beside = pathlib.Path(f"{os.fspath(path)}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return data
