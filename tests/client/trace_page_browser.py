#!/usr/bin/env python3
"""Opens the page of `gatehouse report` in a headless Chromium and uses it.

  trace_page_browser.py RENDER_REPORT [TEST...]

As report_page_browser.py, on which it builds.
"""
import json
import random
import re
import shutil
import struct
import subprocess
import sys
import time

import report_page_browser as base

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def single(value):
    """As the server has it: in single precision."""
    return struct.unpack("f", struct.pack("f", value))[0]


def written(value):
    """The shortest decimal that is that number in single precision, as the program prints it."""
    return float(next(text for text in (f"{value:.{digits}g}" for digits in range(1, 12)) if single(float(text)) == value))


def made_up_trace(tokens=60, layers=6, seed=7, texts=None):
    """A section "trace" of made-up numbers, some of them exactly at the thresholds that the tests use."""
    draw = random.Random(seed)
    words = texts or [" the", " captain", " of", "\n", " old", " ship", "'s", " ␣", "é", " and", MARKUP, " \u202eword"]
    section = {"kind": "trace", "model": "made-up", "calibration": "cal", "sink_positions": 4, "threshold": 0.5, "tokens": [], "measured": [],
               "layers": [{"layer": i, "p25": 1, "p50": 2, "p70": 3, "p95": 6, "gateable": i % 3 != 0, "linear_cost": 0.01 * i,
                           "consensus": [10 * i + k for k in range(i)], "exception": [900 + i] if i > 2 else []} for i in range(layers)]}
    for position in range(tokens):
        numbers = lambda high: [written(single(draw.uniform(0, high))) for _ in range(layers)]
        gates = [draw.choice([0.5, 0.8, written(single(draw.random()))]) if draw.random() < 0.3 else written(single(draw.random())) for _ in range(layers)]
        consensus = []
        for layer in section["layers"]:
            fired = [n for n in layer["consensus"] if draw.random() < 0.6]
            consensus.append({"layer": layer["layer"], "level": len(fired) if layer["consensus"] else None, "fired": fired,
                              "exceptions_fired": [n for n in layer["exception"] if draw.random() < 0.2]})
        section["tokens"].append({"id": position, "text": words[position % len(words)], "position": position, "nonlinearity": numbers(9),
                                  "output_norm": numbers(50), "gate_probability": gates, "consensus": consensus, "logprob": -draw.random() * 5})
    # Of the last one nothing was recorded.
    section["tokens"].append({"id": 1, "text": " end", "logprob": -1.0})
    for name in ("gateable", "all"):
        for threshold in (1, 0.9, 0.5, 0.1, 0):
            section["measured"].append({"layers": name, "threshold": threshold, "perplexity": 20 + (1 - threshold) * (4 if name == "all" else 2),
                                        "linear_fraction": 0.5 * (1 - threshold), "mlp_work_saved": 0.4 * (1 - threshold)})
    return section


def report_of(section):
    rows = section["measured"]
    table = {"name": "perplexity", "title": "Perplexity measured at a few thresholds", "description": "Runs.", "columns": [
        {"name": "layers", "values": [f"{r['layers']} layers" for r in rows]}, {"name": "threshold", "values": [r["threshold"] for r in rows]},
        {"name": "perplexity", "values": [r["perplexity"] for r in rows]}]}
    return {"kind": "trace", "title": f"“{MARKUP}”, token by token", "summary": "60 tokens in 6 layers.", "model": "made-up", "dtype": "float32",
            "notes": [], "settings": [], "tables": [table], "plots": [], "sections": [section]}


def decisions(section, threshold, all_layers):
    """(linear, in the chosen layers, all) of the section's decisions, as the methods define them."""
    linear = chosen = total = 0
    for token in section["tokens"]:
        for layer, p in zip(section["layers"], token.get("gate_probability", [])):
            total += 1
            if not (all_layers or layer["gateable"]):
                continue
            chosen += 1
            linear += token["position"] >= section["sink_positions"] and single(p) > single(threshold)
    return linear, chosen, total


def linear_at(section, layer, threshold):
    return [t["id"] for t in section["tokens"] if "gate_probability" in t and section["layers"][layer]["gateable"] and
            t["position"] >= section["sink_positions"] and single(t["gate_probability"][layer]) > single(threshold)]


USE = r"""
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const look = () => ({
    sentence: one('.routes-sentence').textContent, threshold: one('.threshold').textContent, layer: one('.trace select').value,
    linear: all('.t.lin').map((t) => Number(t.dataset.i)), shades: all('.t').map((t) => /q(\d)/.exec(t.className)?.[1] ?? null)});
  const set = (selector, value, event) => { const input = one(selector); input.value = value; input.dispatchEvent(new Event(event)); };
  const seen = {first: look()};
  set('.trace select', '2', 'change');
  seen.layer2 = look();
  set('.trace input[type=range]', '0.8', 'input');
  seen.high = look();
  set('.trace input[type=range]', '0', 'input');
  seen.low = look();
  set('.trace input[type=range]', '1', 'input');
  seen.one = look();
  one('.every-layer input').click();
  set('.trace input[type=range]', '0.5', 'input');
  seen.every = look();
  all('.run')[1].click();
  seen.run = look();
  seen.runs = all('.run').map((run) => run.textContent);
  const tooltip = document.getElementById('tooltip');
  const mark = all('.t')[10], area = mark.getBoundingClientRect();
  mark.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: area.x + 2, clientY: area.y + 2}));
  seen.tooltip = tooltip.textContent;
  const map = one('.token-map');
  map.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}));
  map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));
  map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));
  seen.spoken = document.getElementById('announcer').textContent;
  seen.moved = look();
  map.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
  seen.escaped = tooltip.hidden;
  seen.text = one('.trace-text').textContent;
  seen.neurons = one('.neurons')?.textContent ?? '';
  seen.page = document.getElementById('page').textContent;
  seen.title = document.title;
  seen.counts = [all('img').length, all('script').length, all('[onerror],[onclick]').length, all('.failure').length, all('.plot .canvas .mark').length];
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  return seen;
"""

# Frames are not drawn while time is virtual, so the map is drawn by hand.
FLUID = r"""
  const one = (selector) => document.querySelector(selector);
  const timed = (work) => { const begun = performance.now(); work(); document.body.getBoundingClientRect(); return performance.now() - begun; };
  const slider = one('.trace input[type=range]'), select = one('.trace select');
  const move = timed(() => { slider.value = '0.7'; slider.dispatchEvent(new Event('input')); });
  const layer = timed(() => { select.value = '3'; select.dispatchEvent(new Event('change')); });
  const canvas = one('.token-map');
  return {move, layer, canvas: [canvas.width / devicePixelRatio, innerWidth], tokens: document.querySelectorAll('.t').length,
    scrolled: one('.map-run').offsetWidth, drawn: canvas.height > 100};
"""


class TracePages(base.PageTest):
    used = None

    def use(self):
        """The made-up trace, and what a page of it said when it was used."""
        if TracePages.used is None:
            section = made_up_trace()
            for i, score in enumerate((0.5, 1.5, 2.2, 2.8, 4.0, 5.0, 5.7, 7.0, 20.0, 100.0)):
                section["tokens"][i]["nonlinearity"][2] = score
            TracePages.used = section, self.ask(report_of(section), USE)
        return TracePages.used

    def test_the_slider_changes_the_routes(self):
        section, seen = self.use()
        self.assert_quiet(seen)
        for name, threshold, all_layers in (("first", 0.5, False), ("high", 0.8, False), ("low", 0, False), ("one", 1, False), ("every", 0.5, True), ("run", 0.9, True)):
            linear, chosen, total = decisions(section, threshold, all_layers)
            numbers = [int(n) for n in re.findall(r"\d+", seen[name]["sentence"].replace(",", ""))]
            self.assertEqual((name, numbers[0], numbers[1]), (name, linear, chosen))
            self.assertIn(f"{100 * linear / total:.1f}\u202f% of all", seen[name]["sentence"])
        self.assertEqual(seen["high"]["linear"], linear_at(section, 2, 0.8))
        self.assertEqual(seen["low"]["linear"], linear_at(section, 2, 0))
        self.assertEqual((seen["one"]["linear"], seen["high"]["layer"], seen["run"]["threshold"]), ([], "2", "0.90"))
        self.assertNotEqual(seen["high"]["linear"], seen["low"]["linear"])

    def test_colours_say_where_a_score_lies_among_the_calibrations(self):
        _, seen = self.use()
        self.assertEqual(seen["layer2"]["shades"][:10], list("0123456789"))
        self.assertIsNone(seen["layer2"]["shades"][-1])

    def test_shows_markup_and_does_not_run_it(self):
        section, seen = self.use()
        self.assert_quiet(seen)
        # The data, the page's own program, and this test's two.
        self.assertEqual(seen["counts"], [0, 4, 0, 0, 10])
        self.assertIn(MARKUP, seen["text"])
        self.assertIn("\\u202eword", seen["text"])
        self.assertTrue(seen["tooltip"].startswith(f"“{MARKUP}”"), seen["tooltip"])
        self.assertEqual(seen["title"], f"“{MARKUP}”, token by token")
        self.assertIn("changes what later layers read", seen["page"])

    def test_tells_what_is_known_of_a_token(self):
        section, seen = self.use()
        token, layer = section["tokens"][1], 3
        self.assertEqual(seen["moved"]["layer"], str(layer))
        for part in ("token 1", f"layer {layer}", f"nonlinearity {token['nonlinearity'][layer]:.2f}", f"p of the gate {token['gate_probability'][layer]:.4f}",
                     f"consensus {token['consensus'][layer]['level']} of 3 fire", "at 0.90 full: one of the first positions", "probability"):
            self.assertIn(part, seen["spoken"])
        self.assertTrue(seen["escaped"])
        fires = sum(903 in t["consensus"][layer]["exceptions_fired"] for t in section["tokens"] if "consensus" in t)
        self.assertIn(f"exception 903{fires} of 60", seen["neurons"])
        self.assertEqual(seen["runs"][1], "0.920.40+2.00\u202f%5.0\u202f% linear")

    def test_fits_a_phone(self):
        seen = self.ask(report_of(made_up_trace()), USE, width=390)
        self.assert_quiet(seen)
        self.assertLessEqual(seen["overflow"], 0)

    def test_stays_fluid_with_a_whole_context(self):
        begun = time.monotonic()
        seen = self.ask(report_of(made_up_trace(tokens=2048, layers=24)), FLUID)
        self.assertEqual(seen["tokens"], 2049)
        # The canvas is as wide as its place, not as its text.
        self.assertLessEqual(seen["canvas"][0], seen["canvas"][1])
        self.assertGreater(seen["scrolled"], 2048 * 6)
        self.assertTrue(seen["drawn"])
        self.assertLess(max(seen["move"], seen["layer"]), 1000)
        self.assertLess(time.monotonic() - begun, 60)

    def test_says_where_there_is_nothing_to_show(self):
        nothing = self.ask(report_of({"kind": "trace", "measured": []}), "return {text: document.getElementById('page').textContent};")
        self.assertIn("The part “trace” cannot be shown: it has no layers.", nothing["text"])
        empty = self.ask({"sections": [{"kind": "trace", "layers": [{}, None], "tokens": [None, {"text": 7}], "measured": [None]}]},
                         "return {text: document.getElementById('page').textContent};")
        self.assert_quiet(empty)
        self.assertIn("Nothing is known of the gates yet.", empty["text"])

    def test_prints_the_text_and_the_map(self):
        paper = self.folder / "trace.pdf"
        page = self.page_of(report_of(made_up_trace(tokens=300)), "trace")
        base.run_browser(self.browser, self.folder, "--virtual-time-budget=3000", "--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri())
        self.keep(paper)
        if shutil.which("pdftotext"):
            text = subprocess.run(["pdftotext", "-layout", paper, "-"], check=True, capture_output=True, text=True).stdout
            # The words on the map too, which is drawn anew for paper, in bands.
            for part in ("would go linear", "Nonlinearity, layer by layer", "Where each token would go at threshold 0.50"):
                self.assertIn(part, text)
            self.assertGreater(text.count("Nonlinearity, layer by layer"), 1)
            self.assertEqual(text.count("captain"), 25)

    def test_looks_like_something(self):
        page = self.page_of(report_of(made_up_trace(tokens=200, layers=12)), "trace")
        for name, width, extra in (("trace-day", 1280, []), ("trace-night", 1280, ["--blink-settings=preferredColorScheme=0"]), ("trace-phone", 390, [])):
            picture = self.folder / f"{name}.png"
            base.run_browser(self.browser, self.folder, f"--window-size={width},1600", "--virtual-time-budget=3000", f"--screenshot={picture}", *extra, page.as_uri())
            self.keep(picture)
            self.assertGreater(len(set(base.scanlines(picture.read_bytes()))), 200, f"{name} is blank")


if __name__ == "__main__":
    base.RENDER = sys.argv[1]
    base.run_tests(sys.argv[2:])
