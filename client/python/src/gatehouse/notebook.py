"""What results look like in a notebook: HTML that loads nothing, light or dark as the notebook is."""

from __future__ import annotations

import functools
import html
import importlib.resources
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gatehouse.report import Report, Table
    from gatehouse.results import ConsensusResult, GenerationResult, NonlinearityResult, Routing, ScoreResult
    from gatehouse.trace import FloatArray, Trace

MOST_TOKENS = 400  # drawn of one text
_MOST_TEXTS = 16
_MOST_ROWS = 40  # of a report's table
# Where each shade begins, of a rank in [0, 1]: the first is what is linear, the last three are above P95.
_SHADES = (0.25, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95, 0.975, 0.99)
_CELL, _ROW, _LEFT = 15, 15, 36  # pixels
_LABEL = 12  # most characters of a token over its column
_DARK = ("--paper: #14171b; --ink: #e4e7eb; --muted: #9ba5b0; --rule: #333a42; --linear: #56a8e8; --ladder: #e3b341; "
         "--full: #4d5761; --exception: #ff8f4a; --q0: #1d1c1c; --q1: #2c241e; --q2: #402c1e; --q3: #57361e; "
         "--q4: #73431f; --q5: #925222; --q6: #bb6d2a; --q7: #dc8f40; --q8: #f2b664; --q9: #fde3b0; "
         "--low: #f0f1f3; --high: #14171b;")


class Html:
    """Shows itself in a notebook; `save` writes it as a page of its own."""

    def __init__(self, markup: str) -> None:
        self.html = markup

    def _repr_html_(self) -> str:
        return self.html

    def save(self, path: os.PathLike[str] | str) -> None:
        pathlib.Path(path).write_text(f'<!DOCTYPE html><meta charset="utf-8"><title>Gatehouse</title>{self.html}\n',
                                      encoding="utf-8")


def ranks(scores: npt.NDArray[Any], percentiles: npt.NDArray[Any]) -> FloatArray:
    """Where scores [token, layer] lie among those with these percentiles [layer, 4] (P25, P50, P70, P95), in [0, 1]."""
    found = np.empty(scores.shape, np.float32)
    for layer, knots in enumerate(percentiles):
        score = scores[:, layer]
        below = np.interp(score, np.concatenate([[0.0], knots]), [0, 0.25, 0.5, 0.7, 0.95])
        # Above P95 nothing is known: near 1 as the score grows.
        with np.errstate(divide="ignore", invalid="ignore"):
            above = 1 - 0.05 * knots[3] / score
        found[:, layer] = np.where(score >= knots[3], np.maximum(above, 0.95), below)
    return found


def nonlinearity(result: NonlinearityResult, layer: int | None = None) -> Html:
    """See NonlinearityResult.heatmap."""
    parts = []
    for i, trace in enumerate(result.texts[:_MOST_TEXTS]):
        rank = result.ranks(i)
        shown = int(np.argmax((rank >= 0.95).sum(axis=0))) if layer is None else layer
        scores = trace.nonlinearity
        assert scores is not None
        parts += [_text(trace.texts, _shades(rank[:, shown]), [f"{score:.3g}" for score in scores[:, shown]]),
                  _note(f"The text is coloured by layer {shown}."),
                  _map(trace.texts, [_shades(row) for row in rank.T], scores.T)]
    keys = [("q0", "linear (below P25)"), ("q1", "P25–P50"), ("q3", "barely nonlinear (P50–P70)"), ("q5", "P70–P95"),
            ("q8", "high (above P95)")]
    head = f"Nonlinearity ‖y − ŷ‖ of {result.model}, calibration {result.calibration}"
    return _box(_head(head), *parts, _legend(keys, "blank: not in full"), _more(len(result.texts)))


def consensus(result: ConsensusResult, layer: int | None = None) -> Html:
    """See ConsensusResult.strip."""
    sizes = np.array([len(neurons) for neurons in result.consensus])
    shown = int(np.argmax(sizes)) if layer is None else layer
    parts = []
    for trace in result.texts[:_MOST_TEXTS]:
        levels = trace.consensus_level
        assert levels is not None and trace.exceptions_fired is not None
        # Many firing means agreement, hence little to do; few is hot.
        with np.errstate(divide="ignore", invalid="ignore"):
            rank = np.where(sizes > 0, 1 - levels / sizes, np.nan)
        tips = [f"{_number(level)} of {sizes[shown]} fire" for level in levels[:, shown]]
        marks = [[bool(fired) for fired in row] for row in zip(*trace.exceptions_fired)]
        parts += [_text(trace.texts, _shades(rank[:, shown]), tips),
                  _note(f"The text is coloured by how many of layer {shown}'s {sizes[shown]} consensus neurons fire."),
                  _map(trace.texts, [_shades(row) for row in rank.T], levels.T, marks)]
    head = f"Consensus of {result.model}, calibration {result.calibration}"
    keys = [("q0", "all fire"), ("q4", "half"), ("q9", "none"), ("exception", "an exception neuron fires")]
    return _box(_head(head), *parts, _legend(keys, "blank: not in full, or no such neurons"), _more(len(result.texts)))


def routes(trace: Trace) -> Html:
    """The path of every token in every layer, of a trace with routing."""
    return _box(_routes(trace))


def generation(result: GenerationResult) -> str:
    """Of a GenerationResult."""
    seconds = result.prefill_seconds + result.decode_seconds
    head = f"{result.model} · {result.generated_tokens} tokens · {result.finish_reason} · {seconds:.2f} s"
    parts = [_head(head), _routing(result.routing), f'<p class="gh-text">{_escape(result.text)}</p>']
    trace = result.trace
    if trace is not None and trace.paths is not None:
        parts.append(_routes(trace))
    if trace is not None and trace.nonlinearity is not None:
        knots = np.nan_to_num(np.nanpercentile(trace.nonlinearity, [25, 50, 70, 95], axis=0).T)
        rank = ranks(trace.nonlinearity, knots)
        parts += [_map(trace.texts, [_shades(row) for row in rank.T], trace.nonlinearity.T),
                  _note("Nonlinearity, shaded by rank among these tokens, layer by layer.")]
    return _box(*parts).html


def score(result: ScoreResult) -> str:
    """Of a ScoreResult: the text coloured by how surprising each token was."""
    perplexity = "nothing was scored" if result.perplexity is None else f"perplexity {result.perplexity:.4g}"
    parts = [_head(f"{result.model} · {perplexity} · {result.scored_tokens} tokens"), _routing(result.routing)]
    if len(result.logprobs):
        tips = [f"log-probability {_number(logprob)}" for logprob in result.logprobs]
        parts += [_text(result.texts, _shades(np.clip(-result.logprobs / 10, 0, 1)), tips),
                  _legend([("q0", "expected"), ("q4", "−7 nats"), ("q9", "−10 nats and below")], "")]
    if result.trace is not None and result.trace.paths is not None:
        parts.append(_routes(result.trace))
    return _box(*parts).html


def report(result: Report) -> str:
    """Of a Report: what was found, and its tables."""
    parts = [_head(result.title), f"<p>{_escape(result.summary)}</p>", *(_note(note) for note in result.notes)]
    for table in result.tables.values():
        parts += [_head(table.title), _note(table.description), _table(table)]
    return _box(*parts).html


@functools.cache
def _style() -> str:
    css = importlib.resources.files("gatehouse").joinpath("notebook.css").read_text(encoding="utf-8")
    light = css[css.index("{") + 1:css.index("color: var(--ink)")]
    return css.replace("DARK", _DARK).replace("LIGHT", " ".join(light.split()))


def _box(*parts: str) -> Html:
    return Html(f'<div class="gh"><style>{_style()}</style>{"".join(parts)}</div>')


def _escape(text: str) -> str:
    """Text as markup; line breaks are marked, other control characters shown as a replacement."""
    shown = "".join("\ufffd" if ord(c) < 32 and c not in "\n\t" or ord(c) == 127 else c for c in text)
    return html.escape(shown)


def _label(text: str) -> str:
    """One line of a token's text, whose spaces and breaks can be seen."""
    return _escape(text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"))


def _number(value: float) -> str:
    return "none" if np.isnan(value) else f"{value:.4g}"


def _head(text: str) -> str:
    return f'<p class="gh-head">{_escape(text)}</p>'


def _note(text: str) -> str:
    return f'<p class="gh-note">{_escape(text)}</p>' if text else ""


def _more(texts: int) -> str:
    return _note(f"{_MOST_TEXTS} of {texts} texts are shown." if texts > _MOST_TEXTS else "")


def _legend(keys: Iterable[tuple[str, str]], rest: str) -> str:
    marks = "".join(f'<span class="gh-key {kind}"></span>{_escape(meaning)}' for kind, meaning in keys)
    return f'<p class="gh-note">{marks} &nbsp; {_escape(rest)}</p>'


def _shades(rank: npt.NDArray[Any]) -> list[str]:
    """A class for each rank in [0, 1]; NaN is "none"."""
    shade = np.digitize(rank, _SHADES)
    return ["none" if missing else f"q{value}" for value, missing in zip(shade, np.isnan(rank))]


def _text(texts: Sequence[str], kinds: Sequence[str], tips: Sequence[str]) -> str:
    spans = [f'<span class="{kind}" title="{_escape(tip)}">{_escape(text)}</span>'
             for text, kind, tip in zip(texts[:MOST_TOKENS], kinds, tips)]
    cut = _note(f"The first {MOST_TOKENS} of {len(texts)} tokens are shown.") if len(texts) > MOST_TOKENS else ""
    return f'<p class="gh-text">{"".join(spans)}</p>{cut}'


def _map(texts: Sequence[str], rows: Sequence[Sequence[str]], values: npt.NDArray[Any] | None = None,
         marks: Sequence[Sequence[bool]] | None = None) -> str:
    """Layers × tokens: `rows` has the class of every cell, `values` what pointing at it tells."""
    tokens = min(len(texts), MOST_TOKENS)
    labels = [text[:_LABEL] for text in texts[:tokens]]
    top = 16 + 6 * max((len(label) for label in labels), default=0)
    width, height = _LEFT + tokens * _CELL + top, top + len(rows) * _ROW
    parts = [f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
             f'aria-label="{len(rows)} layers by {tokens} tokens">']
    for i, label in enumerate(labels):
        x = _LEFT + i * _CELL + _CELL - 4
        parts.append(f'<text transform="translate({x},{top - 4}) rotate(-60)">{_label(label)}</text>')
    for layer, kinds in enumerate(rows):
        y = top + layer * _ROW
        parts.append(f'<text x="{_LEFT - 6}" y="{y + _ROW - 4}" text-anchor="end">L{layer}</text>')
        for i, kind in enumerate(kinds[:tokens]):
            value = kind if values is None else _number(values[layer][i])
            x = _LEFT + i * _CELL
            parts.append(f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_ROW - 1}" class="{kind}">'
                         f"<title>L{layer} {_label(texts[i])} {value}</title></rect>")
            if marks is not None and marks[layer][i]:
                parts.append(f'<circle cx="{x + _CELL // 2}" cy="{y + _ROW // 2}" r="3" class="exception"/>')
    return f'<div class="gh-scroll">{"".join(parts)}</svg></div>'


def _routes(trace: Trace) -> str:
    if trace.paths is None:
        raise ValueError('the trace has no paths: ask for record="routing"')
    keys = [("full", "full"), ("linear", "linear"), ("ladder", "ladder"), ("skip", "skipped")]
    return _map(trace.texts, [list(row) for row in trace.paths.T]) + _legend(keys, "")


def _routing(routing: Routing) -> str:
    if routing.decisions == 0:
        return ""
    line = f"{routing.linear_fraction:.1%} of {routing.decisions} decisions linear"
    if routing.mlp_work_saved:
        line += f", {routing.mlp_work_saved:.1%} of the MLPs' work saved"
    return _note(line) + "".join(_note(note) for note in routing.notes)


def _table(table: Table) -> str:
    names = list(table.columns)
    length = max((len(column) for column in table.columns.values()), default=0)
    head = "".join(f'<th title="{_escape(table.about.get(name, ""))}">{_escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(table.columns[name][i])}</td>" for name in names) + "</tr>"
                   for i in range(min(length, _MOST_ROWS)))
    cut = _note(f"The first {_MOST_ROWS} of {length} rows.") if length > _MOST_ROWS else ""
    return f'<div class="gh-scroll"><table><tr>{head}</tr>{body}</table></div>{cut}'


def _cell(value: object) -> str:
    return _escape(value) if isinstance(value, str) else _number(float(value))  # type: ignore[arg-type]
