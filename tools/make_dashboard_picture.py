#!/usr/bin/env python3
"""Makes docs/images/dashboard.png: the dashboard of the linear path, drawn from a real run.

    tools/make_dashboard_picture.py [--seconds 100]

A client generates at thresholds that go down and up again, a real Prometheus scrapes the server, and every panel
of deploy/grafana/dashboards/gatehouse-linear-path.json is asked and drawn where the dashboard has it.  It is not a
screenshot of Grafana, and the picture says so.  Needs built programs (tools/run), prometheus and
chromium-headless-shell.
"""

import argparse
import html
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from service import Server, gatehouse, wait_until  # noqa: E402
from watch import Watch, in_browser  # noqa: E402

MODEL = "novella-neox-4m"
DASHBOARD = ROOT / "deploy/grafana/dashboards/gatehouse-linear-path.json"
PICTURE = ROOT / "docs/images/dashboard.png"
COLORS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#f2495c", "#8ab8ff", "#c0d8ff"]
WIDTH, ROW, GAP = 1400, 34, 8  # pixels; ROW is one unit of a panel's height
STYLE = f"""
body {{ margin: 0; padding: {GAP}px; width: {WIDTH}px; background: #111217; color: #ccccdc; font: 13px sans-serif; }}
h1 {{ font-size: 18px; font-weight: 500; margin: 6px 4px 10px; }} h1 small {{ color: #8e8e9c; font-size: 12px; }}
#panels {{ position: relative; }}
.panel {{ position: absolute; background: #181b1f; border: 1px solid #2a2d33; border-radius: 3px; overflow: hidden; }}
.panel h2 {{ font-size: 13px; font-weight: 500; margin: 7px 10px 2px; }}
.big {{ position: absolute; inset: 30px 0 0; text-align: center; font-size: 44px; color: #73bf69; }}
.legend {{ padding: 0 10px; font-size: 11px; color: #a5a5b3; }} .legend i {{ font-style: normal; margin-right: 12px; }}
.bar {{ display: flex; align-items: center; margin: 2px 10px; }} .bar b {{ font-weight: 400; width: 150px; }}
.bar u {{ display: block; height: 90%; }} .bar span {{ margin-left: 8px; }}
table {{ border-collapse: collapse; margin: 4px 10px; }}
td, th {{ text-align: left; padding: 4px 14px 4px 0; font-weight: 400; }}
th {{ color: #6e9fff; }} text {{ fill: #8e8e9c; font: 11px sans-serif; }}
"""


def record(seconds: float) -> tuple[dict, list[tuple[dict, list]]]:
    """Runs it all; the dashboard, and each panel's answer."""
    board = json.loads(DASHBOARD.read_text())
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        with Server(scratch / "server", models=[MODEL]) as server, Watch(scratch, server.metrics) as watch:
            wait_until(lambda: watch.ask('up{job="gatehouse"} == 1'), "the first scrape")
            start = time.time()
            while (passed := time.time() - start) < seconds:
                threshold = 0.5 + 0.5 * math.cos(2 * math.pi * passed / seconds * 1.5)
                gatehouse("generate", "-m", MODEL, "--prompt", "The captain walked slowly up the hill and", "-n", 60,
                          "--ignore-eos", "--gating=gated", f"--threshold={threshold:.3f}", server=server.address)
                if int(passed) % 5 == 0:
                    gatehouse("score", "-m", MODEL, "--text", "It was a dark night, and the sea ran high.",
                              "--gating=gated", server=server.address)
            end = time.time()
            answers = []
            for panel in board["panels"]:
                [target] = panel["targets"]
                query = in_browser(target["expr"], interval="8s")
                answers.append((panel, watch.history(query, start + 4, end, 1 if panel["type"] != "heatmap" else 2)))
    return board, answers


def shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.1%}".replace("-0.0%", "0.0%")
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def name_of(panel: dict, labels: dict) -> str:
    pattern = panel["targets"][0]["legendFormat"]
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), pattern)


def heat(value: float) -> str:
    """From dark violet at 0 over green to red at 1."""
    return f"hsl({265 - 265 * value:.0f} 80% {22 + 34 * value:.0f}%)"


def svg(width: float, height: float, body: str) -> str:
    return f'<svg width="{width:.0f}" height="{height:.0f}">{body}</svg>'


def axes(times: list[float], most: float, unit: str, width: float, height: float) -> str:
    """Grid and labels around the area [46, width - 8] x [6, height - 20]."""
    body = ""
    for part in range(5):
        y = 6 + (height - 26) * (1 - part / 4)
        body += (f'<path d="M46 {y:.1f}H{width - 8:.0f}" stroke="#2a2d33"/>'
                 f'<text x="40" y="{y + 4:.1f}" text-anchor="end">{shown(most * part / 4, unit)}</text>')
    for part in range(6):
        moment = times[0] + (times[-1] - times[0]) * part / 5
        x = 46 + (width - 54) * part / 5
        anchor = "start" if part == 0 else "end" if part == 5 else "middle"
        body += (f'<text x="{x:.0f}" y="{height - 5:.0f}" text-anchor="{anchor}">'
                 f'{time.strftime("%H:%M:%S", time.gmtime(moment))}</text>')
    return body


def curves(panel: dict, rows: list, width: float, height: float) -> str:
    times = sorted({moment for _, values in rows for moment, _ in values})
    stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "percent"
    unit = panel["fieldConfig"]["defaults"]["unit"]
    highest = max(value for _, values in rows for _, value in values)
    most = 1 if stacked else panel["fieldConfig"]["defaults"].get("max") or highest or 1
    height -= 18  # the legend

    def at(moment: float, value: float) -> str:
        return (f"{46 + (width - 54) * (moment - times[0]) / (times[-1] - times[0]):.1f} "
                f"{6 + (height - 26) * (1 - value / most):.1f}")
    body, legend, below = axes(times, most, unit, width, height), "", dict.fromkeys(times, 0.0)
    sums = {moment: sum(dict(values).get(moment, 0) for _, values in rows) or 1 for moment in times}
    for n, (labels, values) in enumerate(rows):
        color = COLORS[n % len(COLORS)]
        if stacked:
            part = {moment: dict(values).get(moment, 0) / sums[moment] for moment in times}
            upper = [at(moment, below[moment] + part[moment]) for moment in times]
            lower = [at(moment, below[moment]) for moment in reversed(times)]
            body += f'<path d="M{"L".join(upper + lower)}Z" fill="{color}" fill-opacity="0.6" stroke="{color}"/>'
            below = {moment: below[moment] + part[moment] for moment in times}
        elif values:
            body += f'<path d="M{"L".join(at(*value) for value in values)}" fill="none" stroke="{color}"/>'
        legend += f'<i><span style="color:{color}">&#9644;</span> {html.escape(name_of(panel, labels))}</i>'
    return svg(width, height, body) + f'<div class="legend">{legend}</div>'


def heat_map(rows: list, width: float, height: float) -> str:
    times = sorted({moment for _, values in rows for moment, _ in values})
    tall, wide = (height - 26) / len(rows), (width - 54) / len(times)
    body = axes(times, 1, "", width, height).replace("<text x=\"40\"", "<text visibility=\"hidden\" x=\"40\"")
    for n, (labels, values) in enumerate(rows):
        y = 6 + (len(rows) - 1 - n) * tall
        body += f'<text x="40" y="{y + tall / 2 + 4:.1f}" text-anchor="end">{labels["layer"]}</text>'
        for moment, value in values:
            x = 46 + times.index(moment) * wide
            body += (f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" '
                     f'fill="{heat(value)}"/>')
    return svg(width, height, body)


def draw(panel: dict, rows: list, width: float, height: float) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "stat":
        return f'<div class="big">{shown(rows[0][1][-1][1], unit)}</div>'
    if panel["type"] == "bargauge":
        tall = (height - 40) / len(rows)
        return "".join(
            f'<div class="bar" style="height:{tall - 4:.0f}px"><b>{name_of(panel, labels)}</b>'
            f'<u style="width:{values[-1][1] * (width - 260):.0f}px;background:{heat(values[-1][1])}"></u>'
            f'<span>{shown(values[-1][1], unit)}</span></div>'
            for labels, values in rows if values)
    if panel["type"] == "table":
        hidden = {"__name__", "job"}
        heads = [name for name in rows[0][0] if name not in hidden]
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(labels[name])[:24]}</td>" for name in heads) + "</tr>"
                        for labels, _ in rows)
        return f'<table><tr>{"".join(f"<th>{name}</th>" for name in heads)}</tr>{cells}</table>'
    if panel["type"] == "heatmap":
        return heat_map(rows, width, height - 30)
    return curves(panel, rows, width, height - 30)


def page(board: dict, answers: list[tuple[dict, list]]) -> tuple[str, int]:
    """The page, and how high it is."""
    body, bottom = "", 0
    for panel, rows in answers:
        at = panel["gridPos"]
        left, width = at["x"] * WIDTH / 24, at["w"] * WIDTH / 24 - GAP
        top, height = at["y"] * ROW, at["h"] * ROW - GAP
        bottom = max(bottom, top + height)
        body += (f'<div class="panel" style="left:{left:.0f}px;top:{top}px;width:{width:.0f}px;height:{height}px">'
                 f'<h2>{html.escape(panel["title"])}</h2>{draw(panel, rows, width, height)}</div>')
    return (f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><h1>{html.escape(board["title"])} '
            "<small>data of a real run, drawn by tools/make_dashboard_picture.py in the dashboard's layout; not a "
            f'screenshot of Grafana</small></h1><div id="panels">{body}</div>'), bottom + 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100, help="how long to generate (default: 100)")
    arguments = parser.parse_args()
    for program in ("prometheus", "chromium-headless-shell"):
        if not shutil.which(program):
            parser.error(f"{program} is not installed")
    text, height = page(*record(arguments.seconds))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "dashboard.html")
        path.write_text(text)
        picture = pathlib.Path(folder, "dashboard.png")
        subprocess.run(["chromium-headless-shell", "--headless", "--no-sandbox", "--hide-scrollbars",
                        f"--user-data-dir={folder}/profile", f"--window-size={WIDTH + 2 * GAP},{height}",
                        f"--screenshot={picture}", path.as_uri()],
                       check=True, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": folder})
        PICTURE.parent.mkdir(exist_ok=True)
        shutil.copyfile(picture, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
