"""What experiments report: tables of named columns, plots over them, and the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gatehouse import notebook
from gatehouse.enums import word
from gatehouse.errors import DataLossError
from gatehouse.trace import frame
from gatehouse.v1 import operations_pb2, reports_pb2

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Table:
    """columns: arrays of one length, of numbers (NaN where one does not exist) or strings; `about` describes each."""

    name: str
    title: str
    description: str
    columns: dict[str, npt.NDArray[Any]]
    about: dict[str, str]

    def to_frame(self) -> pandas.DataFrame:
        return frame(self.columns)


@dataclass(frozen=True)
class Plot:
    """A plot over a table; x, y and the others name columns of it, empty for none."""

    kind: str
    title: str
    caption: str
    table: str
    x: str
    y: str
    low: str
    high: str
    series: str
    label: str
    log_x: bool
    log_y: bool


@dataclass(frozen=True, eq=False)
class Report:
    """What an experiment found.

    summary: in a few sentences; notes: what a reader has to know.
    corpora: (label, sha256, tokens) of each text; settings: all else that is needed to do it again.
    """

    kind: str
    title: str
    summary: str
    model: str
    model_fingerprint: str
    dtype: str
    created: str
    corpora: tuple[tuple[str, str, int], ...]
    settings: dict[str, str]
    notes: tuple[str, ...]
    tables: dict[str, Table]
    plots: tuple[Plot, ...]

    def frames(self) -> dict[str, pandas.DataFrame]:
        """Every table as a pandas frame, by its name."""
        return {name: table.to_frame() for name, table in self.tables.items()}

    def _repr_html_(self) -> str:
        return notebook.report(self)


class ReportFold:
    """Puts a report together from its stream: all but the tables, then each table in pieces."""

    def __init__(self) -> None:
        self._report: reports_pb2.Report | None = None
        self._pieces: dict[str, list[reports_pb2.ReportTable]] = {}

    def add(self, response: operations_pb2.GetReportResponse) -> Iterable[None]:
        if response.HasField("report"):
            self._report = response.report
        elif response.HasField("table"):
            self._pieces.setdefault(response.table.name, []).append(response.table)
        return ()

    def result(self) -> Report:
        report = self._report
        if report is None:
            raise DataLossError("the server sent no report")
        plots = tuple(_plot(plot) for plot in report.plots)
        return Report(report.kind, report.title, report.summary, report.model, report.model_fingerprint, report.dtype,
                      report.created, tuple((entry.label, entry.sha256, entry.tokens) for entry in report.corpora),
                      {setting.name: setting.value for setting in report.settings}, tuple(report.notes),
                      {name: _table(pieces) for name, pieces in self._pieces.items()}, plots)


def _plot(plot: reports_pb2.ReportPlot) -> Plot:
    kind = word(reports_pb2.ReportPlot.Kind, plot.kind, "KIND_")
    return Plot(kind, plot.title, plot.caption, plot.table, plot.x, plot.y, plot.low, plot.high, plot.series,
                plot.label, plot.log_x, plot.log_y)


def _table(pieces: list[reports_pb2.ReportTable]) -> Table:
    first = pieces[0]
    names = [column.name for column in first.columns]
    if any([column.name for column in piece.columns] != names for piece in pieces):
        raise DataLossError(f"the pieces of table {first.name} do not fit together")
    columns: dict[str, npt.NDArray[Any]] = {}
    for i, column in enumerate(first.columns):
        cells = [piece.columns[i] for piece in pieces]
        if column.WhichOneof("cells") == "strings":
            columns[column.name] = np.array([text for piece in cells for text in piece.strings.values], dtype=object)
        else:
            columns[column.name] = np.array([number for piece in cells for number in piece.numbers.values], np.float64)
    return Table(first.name, first.title, first.description, columns, {c.name: c.description for c in first.columns})
