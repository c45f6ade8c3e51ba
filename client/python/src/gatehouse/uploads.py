"""A corpus on its way to the server."""

from __future__ import annotations

import codecs
import io
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

from gatehouse.errors import InvalidArgumentError
from gatehouse.operations import Corpora, Corpus, CorpusSource
from gatehouse.requests import fill
from gatehouse.v1 import operations_pb2

UploadSource = os.PathLike[str] | bytes | BinaryIO
UPLOAD = "gatehouse.v1.OperationService/UploadCorpus"
_CHUNK = 256 << 10


class Upload:
    """The messages of one upload."""

    def __init__(self, source: UploadSource, name: str) -> None:
        if isinstance(source, str):
            raise TypeError("source is a str: pass a pathlib.Path for a file, or bytes for the text itself")
        if not name and isinstance(source, os.PathLike):
            name = pathlib.Path(source).name
        self._first = fill(operations_pb2.UploadCorpusRequest(), display_name=name)
        self._source = source

    def messages(self) -> Iterator[operations_pb2.UploadCorpusRequest]:
        """InvalidArgumentError at the first byte that is not UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        message = self._first
        sent = 0
        for chunk in self._chunks():
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(sent - pending + error.start) from None
            message.data = chunk
            yield message
            message = operations_pb2.UploadCorpusRequest()
            sent += len(chunk)
        if pending := len(decoder.getstate()[0]):
            raise _not_utf8(sent - pending)
        if sent == 0:
            yield message  # the server says that it is empty

    def _chunks(self) -> Iterator[bytes]:
        if isinstance(self._source, os.PathLike):
            with open(self._source, "rb") as opened:
                yield from iter(lambda: opened.read(_CHUNK), b"")
        else:
            file = io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source
            yield from iter(lambda: file.read(_CHUNK), b"")


def _not_utf8(offset: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"the text is not valid UTF-8 at byte {offset}", reason="INVALID_UTF8")


def corpus_of(response: operations_pb2.UploadCorpusResponse) -> Corpus:
    return Corpus(response.corpus, response.size_bytes, response.replica)


def sources(corpora: Corpora) -> list[CorpusSource]:
    return list(corpora) if isinstance(corpora, (list, tuple)) else [corpora]
