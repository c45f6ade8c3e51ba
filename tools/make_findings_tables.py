#!/usr/bin/env python3
"""Prints the tables of docs/findings.md, in Markdown, from a folder that `gatehouse experiment suite` wrote.

    tools/make_findings_tables.py DIRECTORY [--layer N]

--layer is the layer shown level by level; without it, of the layers with consensus neurons the one whose gradient
lies furthest below that of random weights.  Numbers in brackets are 95 % intervals.
"""

import argparse
import collections
import json
import math
import pathlib
import sys
from collections.abc import Callable

Value = float | str | None
Row = dict[str, Value]
Report = dict


def load(directory: pathlib.Path) -> dict[str, Report]:
    names = ("nonlinearity", "polynomial", "consensus", "ablation", "quorum")
    return {name: json.loads(path.read_text()) for name in names if (path := directory / f"{name}.json").exists()}


def rows_of(report: Report, table: str) -> list[Row]:
    columns = next(each for each in report["tables"] if each["name"] == table)["columns"]
    names = [column["name"] for column in columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*(column["values"] for column in columns))]


def number(value: Value, digits: int = 3, sign: bool = False) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.replace("-", "−")


def percent(value: Value, digits: int = 1, sign: bool = False) -> str:
    return "–" if value is None else number(100 * value, digits, sign) + " %"


def interval(row: Row, name: str, digits: int = 3, scale: float = 1, sign: bool = False, unit: str = "") -> str:
    """'0.123 [0.1, 0.2]'."""
    parts = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
    if parts[0] is None:
        return "–"
    value, low, high = (number(None if part is None else part * scale, digits, sign) for part in parts)
    return f"{value}{unit} [{low}, {high}]"


def change(row: Row, name: str, digits: int = 1) -> str:
    return interval(row, name, digits, scale=100, sign=True, unit=" %")


def share(row: Row, name: str) -> str:
    return interval(row, name, 1, scale=100, unit=" %")


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    print(f"**{title}**\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |")
    print()


def show_protocol(report: Report) -> None:
    settings = {each["name"]: each["value"] for each in report["settings"]}
    texts = "; ".join(f"{each['label']} ({each['tokens']:,} tokens, sha256 {each['sha256'][:12]}…)"
                      for each in report["corpora"])
    print(f"Model {report['model']} ({report['dtype']}), text {texts}.")
    print("; ".join(f"{name} {value}" for name, value in settings.items() if name != "layers") + ".\n")


def show_nonlinearity(report: Report) -> None:
    """B.1 and whether there are clusters at all (B.3)."""
    regimes = {(row["layer"], row["regime"]): row for row in rows_of(report, "regimes")}
    structure = {row["layer"]: row for row in rows_of(report, "structure")}
    cells = []
    for row in rows_of(report, "layers"):
        layer, clusters = row["layer"], structure[row["layer"]]
        cells.append([number(layer, 0), interval(row, "r2"), number(row["relative_p50"]), number(row["relative_p95"]),
                      percent(regimes[layer, "linear"]["residual_share"]), percent(row["high_residual_share"]),
                      f"{number(clusters['silhouette'])} ({number(clusters['null_highest'])})"
                      + (" yes" if clusters["structure"] else " no")])
    show("B.1, B.3: nonlinearity and clusters",
         ["layer", "R²", "median ‖δ‖/‖y‖", "P95", "Σ‖δ‖² of the linear 25 %", "of the top 5 %",
          "silhouette (highest null)"], cells)


def show_clusters(report: Report, most: int = 4) -> None:
    structure = [row for row in rows_of(report, "structure") if row["structure"]]
    if not structure:
        return
    layer = max(structure, key=lambda row: row["silhouette"])["layer"]
    cells = [[percent(row["share"], 0), number(row["silhouette"]), f"{row['commonest']}", row["before"]]
             for row in rows_of(report, "clusters") if row["layer"] == layer]
    show(f"B.3: the largest clusters of layer {layer:.0f}, the most clearly clustered",
         ["share", "silhouette", "commonest tokens", "commonest before them"], cells[:most])


def show_polynomial(report: Report) -> None:
    rows = rows_of(report, "layers")
    without = {row["layer"]: row for row in rows if row["tokens"] == "without newlines"}
    powers, products = ([row for row in rows_of(report, table) if row["tokens"] == "all"]
                        for table in ("powers", "products"))

    def highest(fits: list[Row], layer: Value, name: str) -> Value:
        return max(fit[name] for fit in fits if fit["layer"] == layer)
    cells = []
    for row in rows:
        if row["tokens"] != "all":
            continue
        other = without.get(row["layer"])
        cells.append([number(row["layer"], 0), f"{row['test_tokens']:.0f} ({row['newlines']:.0f})",
                      number(row["linear_r2"]), number(highest(powers, row["layer"], "tuned_r2")),
                      interval(row, "best_r2"), number(row["gain"], sign=True),
                      number(row["degree"], 0), number(highest(powers + products, row["layer"], "shuffled")),
                      number(other["best_r2"]) if other else "–"])
    show("B.2: polynomials of the most nonlinear tenth",
         ["layer", "test tokens (newlines)", "R² degree 1", "powers alone", "best of all", "gain", "degree",
          "highest shuffled", "best without newlines"], cells)


def show_arc(report: Report) -> None:
    cells = []
    for row in rows_of(report, "arc"):
        def count(kind: str, row: Row = row) -> str:
            return f"{row[kind]:.0f} ({number(row[f'{kind}_shuffled'], 1)}, {row[f'{kind}_random']:.0f})"
        cells.append([number(row["layer"], 0), row["phase"], row["random_phase"], count("consensus"),
                      count("exception"), count("gateway"), interval(row, "gradient", 2),
                      interval(row, "random_gradient", 2)])
    show("B.4, B.6, B.10: neurons (shuffled labels, random weights), phase, and gradient",
         ["layer", "phase", "random phase", "consensus", "exception", "gateway", "gradient", "gradient, random"], cells)


def layer_to_show(report: Report) -> float | None:
    def beyond_random(row: Row) -> float:
        return row["gradient"] - (row["random_gradient"] or 0)
    rows = [row for row in rows_of(report, "arc") if row["gradient"] is not None]
    return min(rows, key=beyond_random)["layer"] if rows else None


def show_levels(report: Report, layer: float | None) -> None:
    for weights in ("trained", "random weights"):
        cells = [[f"{row['level']:.0f} of {row['of']:.0f}", number(row["tokens"], 0), percent(row["share"]),
                  share(row, "exception_rate"), interval(row, "output_norm", 2),
                  interval(row, "residual_norm", 2)]
                 for row in rows_of(report, "levels") if row["layer"] == layer and row["weights"] == weights]
        if cells:
            show(f"B.5: layer {layer:.0f} by level of consensus, {weights}",
                 ["level", "tokens", "share", "exception neuron fires", "‖y‖", "‖δ‖"], cells)


def show_exclusivity(report: Report) -> None:
    by_layer: dict[Value, list[Row]] = collections.defaultdict(list)
    for row in rows_of(report, "exclusivity"):
        by_layer[row["layer"]].append(row)

    def mean(rows: list[Row], name: str) -> float:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) / len(values) if values else math.nan
    cells = [[number(layer, 0), len(rows), percent(mean(rows, "exclusivity")), percent(mean(rows, "independent")),
              count_of(rows, lambda row: (row["excess_low"] or 0) > 0),
              count_of(rows, lambda row: (row["excess_high"] or 0) < 0)] for layer, rows in by_layer.items()]
    if cells:
        show("B.5: exclusivity of exception and consensus neurons",
             ["layer", "pairs", "mean exclusivity", "if independent", "pairs above it", "pairs below it"], cells)


def count_of(rows: list[Row], holds: Callable[[Row], bool]) -> int:
    return sum(1 for row in rows if holds(row))


def show_prediction(report: Report) -> None:
    readings = {(row["layer"], row["reading"]): row for row in rows_of(report, "prediction")}
    cells = []
    for row in rows_of(report, "continuous_less_binary"):
        binary, continuous = readings[row["layer"], "binary"], readings[row["layer"], "continuous"]
        cells.append([number(row["layer"], 0), percent(binary["base_rate"]), percent(binary["accuracy"]),
                      percent(continuous["accuracy"]), interval(row, "accuracy", 1, 100, sign=True),
                      f"{number(binary['auc'])} / {number(continuous['auc'])}", interval(row, "auc", sign=True),
                      f"{number(binary['norm_r2'], 2)} / {number(continuous['norm_r2'], 2)}"])
    if cells:
        show("B.8: binary against continuous; differences are continuous less binary",
             ["layer", "base rate", "binary", "continuous", "difference, points", "AUC, both", "difference",
              "R² of ‖y‖, both"], cells)


def show_ablation(report: Report, layer: float | None) -> None:
    cells = [[number(row["layer"], 0), change(row, "change"), change(row, "change_no_sinks"),
              number(row["kl_no_sinks"]), number(row["minority"]), number(row["majority"]),
              interval(row, "contrast", sign=True)] for row in rows_of(report, "layers")]
    show("B.7: the MLP of one layer zeroed: change of perplexity, KL, and ΔCE without and with a majority",
         ["layer", "all positions", "all but sinks", "KL, all but sinks", "ΔCE without", "with",
          "contrast, nats"], cells)
    alone = {row["level"]: row for row in rows_of(report, "levels_alone") if row["layer"] == layer}
    cells = [[f"{row['level']:.0f} of {row['of']:.0f}", number(row["tokens"], 0), change(row, "change"),
              number(row["kl"]), change(alone[row["level"]], "change")]
             for row in rows_of(report, "levels") if row["layer"] == layer]
    if cells:
        show(f"B.7: layer {layer:.0f} zeroed, by level",
             ["level", "tokens", "all positions", "KL", "this level alone"], cells)


def show_quorum(report: Report) -> None:
    by_key: dict[tuple[Value, ...], list[Row]] = collections.defaultdict(list)
    for row in rows_of(report, "rules"):
        by_key[row["layer"], row["path"], row["rule"]].append(row)
    cells = []
    for (layer, path, rule), rows in by_key.items():
        if rule != "quorum":
            continue

        def verdict(other: str, layer: Value = layer, path: Value = path) -> str:
            against = by_key[layer, path, other]
            better = count_of(against, lambda row: (row["quorum_against_it_high"] or 0) < 0)
            worse = count_of(against, lambda row: (row["quorum_against_it_low"] or 0) > 0)
            return f"{better} / {worse} / {len(against) - better - worse}"
        affordable = [row for row in rows if row["cost"] <= 0.01]
        best = max(affordable, key=lambda row: row["work_saved"]) if affordable else None
        half = rows[len(rows) // 2]
        equal = next(row for row in by_key[layer, path, "logistic"] if row["quorum"] == half["quorum"])
        cells.append([f"{layer:.0f}, {path}",
                      f"{half['quorum']:.0f} of {half['of']:.0f}: {percent(half['work_saved'])} at "
                      f"{change(half, 'cost', 2)}",
                      f"{percent(equal['work_saved'])} at {change(equal, 'cost', 2)}", verdict("logistic"),
                      verdict("random"),
                      f"{best['quorum']:.0f}: {percent(best['work_saved'])}" if best else "none"])
    if cells:
        show("B.9: quorum gates, each layer alone; better / worse / undecided over all quorums",
             ["layer, path", "the middle quorum: work saved at cost", "logistic gate at that work", "against logistic",
              "against random", "most saved at ≤ 1 %"], cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--layer", type=int, help="the layer that is shown level by level")
    arguments = parser.parse_args()
    reports = load(arguments.directory)
    if not reports:
        print(f"{arguments.directory} has no reports of a suite", file=sys.stderr)
        return 1
    if any(len(report["corpora"]) != 1 for report in reports.values()):
        print("these tables are of one text", file=sys.stderr)
        return 1
    layer: float | None = arguments.layer
    if layer is None and "consensus" in reports:
        layer = layer_to_show(reports["consensus"])
    show_protocol(next(iter(reports.values())))
    sections: dict[str, list[Callable[[Report], None]]] = {
        "nonlinearity": [show_nonlinearity, show_clusters],
        "polynomial": [show_polynomial],
        "consensus": [show_arc, lambda report: show_levels(report, layer), show_exclusivity, show_prediction],
        "ablation": [lambda report: show_ablation(report, layer)],
        "quorum": [show_quorum],
    }
    for name, shows in sections.items():
        if name not in reports:
            continue
        for each in shows:
            each(reports[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
