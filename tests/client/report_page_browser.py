#!/usr/bin/env python3
"""Opens pages of reports in a headless Chromium and looks at what became of them.

  report_page_browser.py RENDER_REPORT REPORT.json [TEST...]

RENDER_REPORT makes a page of a report's JSON.  Set KEEP_PAGES to a folder to keep the
pages and pictures.  Skipped (exit code 77) where no browser starts.
"""
import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import zlib

BROWSERS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
RENDER, EXAMPLE = None, None

# Counts what the page tried to load, from before its first element on.
WATCH = """<script>
window.blocked = [];
addEventListener('securitypolicyviolation', (e) => blocked.push(e.violatedDirective + ' ' + e.blockedURI));
window.alerts = 0;
window.alert = () => { ++window.alerts; };
</script>"""

# Runs `probe` when the page is complete and leaves its result where --dump-dom shows it.
ASK = """<script>
addEventListener('load', () => setTimeout(() => {
  let answer;
  try { answer = (() => { %s })(); } catch (error) { answer = {error: String(error.stack)}; }
  answer.blocked = window.blocked;
  answer.alerts = window.alerts;
  answer.loaded = performance.getEntriesByType('resource').map((entry) => entry.name);
  const out = document.createElement('pre');
  out.id = 'answer';
  out.textContent = JSON.stringify(answer);
  document.body.append(out);
}, 200));
</script>"""

LOOK = r"""
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const figures = all('figure.plot').map((figure) => ({
    title: figure.querySelector('h3').textContent,
    pictures: all('.canvas svg', figure).length,
    named: figure.querySelector('.canvas svg > title')?.textContent,
    described: (figure.querySelector('.canvas svg > desc')?.textContent ?? '').length > 20,
    marks: all('.canvas .mark', figure).length,
    lines: all('.canvas .line', figure).length,
    bands: all('.canvas .band', figure).length,
    whiskers: all('.canvas .interval', figure).length,
    legend: all('.legend button', figure).length,
    broken: all('.canvas svg *', figure).filter((e) => /NaN|undefined|Infinity/.test(e.outerHTML)).length,
    caption: figure.querySelector('figcaption').textContent,
  }));
  const tables = all('section.table').map((table) => ({
    title: table.querySelector('h3').textContent,
    rows: all('tbody tr', table).length,
    columns: all('thead th', table).length,
  }));
  return {title: document.title, heading: document.querySelector('h1').textContent, figures, tables,
    failures: all('.failure').map((e) => e.textContent),
    text: document.getElementById('page').textContent,
    images: all('img').length, scripts: all('script').length, handlers: all('[onerror],[onclick]').length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    width: document.documentElement.clientWidth,
    background: getComputedStyle(document.body).backgroundColor};
"""

USE = r"""
  const table = document.querySelector('section.table');
  const column = (i) => [...table.querySelectorAll('tbody tr')].map((row) => row.children[i].textContent);
  const header = [...table.querySelectorAll('thead button')].find((b) => b.textContent === 'R²');
  const orders = [column(0)];
  const sorts = [];
  for (let click = 0; click < 3; ++click) {
    header.click();
    orders.push(column(0));
    sorts.push(header.parentNode.getAttribute('aria-sort'));
  }
  const figure = [...document.querySelectorAll('figure.plot')].find((f) => f.querySelector('.legend'));
  const marks = () => figure.querySelectorAll('.canvas .mark').length;
  const before = marks();
  const entry = figure.querySelector('.legend button');
  entry.click();
  const hidden = [marks(), entry.getAttribute('aria-pressed')];
  entry.click();
  const picture = document.querySelector('.canvas svg');
  const tooltip = document.getElementById('tooltip');
  const asleep = tooltip.hidden;
  picture.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));
  const spoken = document.getElementById('announcer').textContent;
  const keyed = tooltip.textContent;
  picture.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
  const escaped = tooltip.hidden;
  const bars = picture.querySelectorAll('rect.mark');
  const area = bars[bars.length - 1].getBoundingClientRect();
  picture.dispatchEvent(new PointerEvent('pointermove', {clientX: area.x + area.width / 2, clientY: area.y + 3}));
  const pointed = tooltip.textContent;
  const written = (name, description, values) => values.map((v) => formatNumber(v, numberStyle(name, description, values)));
  const formats = [
    written('share', '', [0.5, 0.25, 0.00001, null]),
    written('cost', 'relative change of perplexity', [0.0123, -0.5, 0, 227.8]),
    written('base_rate', 'share of tokens whose δCE is small', [0.45]),
    written('neuron', 'index', [123456]), written('tokens', '', [123456]),
    written('loss', 'nats', [3.70123, 40.1, 0.00004])];
  // Ticks that are elsewhere or say something else than their value.
  const wrong = [];
  for (const make of [linearScale, logScale, symlogScale]) {
    for (const [low, high] of [[0.5, 2], [1e-3, 40], [3, 3], [39.97, 40.31], [0.9, 1.2e6]]) {
      for (const count of [2, 5, 9]) {
        const style = numberStyle('y', '', []);
        const scale = make({low, high, from: 300, to: 10, count, style, values: [low, high]});
        const off = scale.ticks.filter(({value, text}) => Math.abs(Number(text.replace(/,/g, '')) / value - 1) > 1e-6 && value !== 0);
        const out = scale.ticks.filter(({value}) => !(scale.map(value) <= 300.5 && scale.map(value) >= 9.5));
        if (scale.ticks.length < 1 || scale.ticks.length > 22 || off.length + out.length > 0) wrong.push([make.name, low, high, count, off, out, scale.ticks.length]);
      }
    }
  }
  return {wrong, formats, orders, sorts, before, hidden, again: marks(), asleep, keyed, spoken, escaped, pointed,
    csv: csvOf(readTable(JSON.parse(document.getElementById('report').textContent).tables[4], 4))};
"""

# What the watch must notice, so that its silence means something.
MISBEHAVE = """<script>
new Image().src = 'http://203.0.113.7/pixel.png';
fetch('http://203.0.113.7/data').catch(() => {});
</script>"""


def run_browser(browser, folder, *arguments, timeout=90):
    """What the browser wrote on standard output."""
    headless = [] if "headless-shell" in browser else ["--headless"]
    command = [browser, *headless, "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}/profile", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.communicate(timeout=timeout)[0].decode("utf-8", "replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def find_browser():
    """A browser that starts here, or a reason why there is none."""
    tried = []
    for name in filter(None, (os.environ.get("GATEHOUSE_BROWSER"), *BROWSERS)):
        path = shutil.which(name)
        if path is None:
            continue
        tried.append(name)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                if "it runs" in run_browser(path, folder, "--dump-dom", "data:text/html,<p>it runs", timeout=30):
                    return path, ""
            except subprocess.TimeoutExpired:
                pass
    return None, f"these browsers do not start here: {', '.join(tried)}" if tried else "no Chromium is installed"


def scanlines(png):
    """The compressed picture's rows, as stored."""
    data, at, width, height = b"", 8, 0, 0
    while at < len(png):
        size, kind = int.from_bytes(png[at:at + 4], "big"), png[at + 4:at + 8]
        body = png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, channels = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big"), {2: 3, 6: 4}[body[9]]
        elif kind == b"IDAT":
            data += body
        at += 12 + size
    raw, stride = zlib.decompress(data), width * channels + 1
    return [raw[i * stride:(i + 1) * stride] for i in range(height)]


def shown_columns(table):
    """All but the ends of intervals, which stand beside what they bound."""
    names = [column["name"] for column in table["columns"]]
    return [n for n in names if not (n.endswith(("_low", "_high")) and n.rsplit("_", 1)[0] in names)]


def watched(page, probe):
    """The page with the watch after its policy, which then governs the watch too, and before its first element."""
    return page.replace('<link rel="icon"', WATCH + '<link rel="icon"', 1).replace("</body>", probe + "</body>", 1)


class PageTest(unittest.TestCase):
    browser = None
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def page_of(self, report, name="page"):
        source, page = self.folder / f"{name}.json", self.folder / f"{name}.html"
        source.write_text(report if isinstance(report, str) else json.dumps(report), encoding="utf-8")
        subprocess.run([RENDER, source, page], check=True)
        self.keep(page)
        return page

    def keep(self, path):
        if os.environ.get("KEEP_PAGES"):
            shutil.copy(path, os.environ["KEEP_PAGES"])

    def ask(self, report, probe=LOOK, width=1280, before=""):
        """The probe's answer in the page of the report."""
        page = self.page_of(report)
        page.write_text(watched(page.read_text(encoding="utf-8"), before + ASK % probe), encoding="utf-8")
        return self.answer_of(page.as_uri(), width)

    def answer_of(self, address, width=1280, budget=3000):
        """What the page at the address, which holds a probe, says."""
        dom = run_browser(self.browser, self.folder, f"--window-size={width},900", f"--virtual-time-budget={budget}", "--dump-dom", address)
        answer = re.search(r'<pre id="answer">(.*?)</pre>', dom, re.S)
        self.assertIsNotNone(answer, "the page did not come to an end")
        answer = json.loads(html.unescape(answer.group(1)))
        self.assertNotIn("error", answer)
        return answer

    def assert_quiet(self, answer):
        self.assertEqual((answer["blocked"], answer["loaded"], answer["alerts"]), ([], [], 0))


class Pages(PageTest):
    def test_shows_every_plot_and_every_table(self):
        answer = self.ask(EXAMPLE)
        self.assert_quiet(answer)
        self.assertEqual(answer["heading"], EXAMPLE["title"])
        figures = {figure["title"]: figure for figure in answer["figures"]}
        self.assertEqual(list(figures), [plot["title"] for plot in EXAMPLE["plots"][:-1]])
        counts = {title: tuple(f[k] for k in ("pictures", "marks", "lines", "bands", "whiskers", "legend")) for title, f in figures.items()}
        self.assertEqual(counts, {
            "What it costs to make one layer linear": (1, 8, 0, 0, 8, 0),
            "Threshold against perplexity": (1, 32, 4, 4, 0, 4),
            "The frontier: MLP work saved against perplexity": (1, 27, 3, 3, 0, 3),
            "Routability by what the gate sees": (1, 8, 0, 0, 8, 2),
            "No-fly tokens on two corpora <b>bold?</b>": (1, 20, 0, 0, 0, 0),
            "Training, with the control": (1, 82, 2, 0, 0, 2),
            "A single point": (1, 1, 0, 0, 0, 0),
            "Nothing to plot": (0, 0, 0, 0, 0, 0),
        })
        for figure in answer["figures"]:
            self.assertEqual(figure["broken"], 0, figure["title"])
            if figure["pictures"]:
                self.assertEqual((figure["named"], figure["described"]), (figure["title"], True))
        self.assertIn("1 row has no value", figures["No-fly tokens on two corpora <b>bold?</b>"]["caption"])
        self.assertEqual(answer["failures"], ["The plot “A plot of a table that is not there” cannot be shown: the report has no table “gone”."])
        self.assertEqual([(t["title"], t["rows"], t["columns"]) for t in answer["tables"]],
                         [(t["title"], len(t["columns"][0]["values"]), len(shown_columns(t))) for t in EXAMPLE["tables"]])
        for part in (*EXAMPLE["notes"], EXAMPLE["model_fingerprint"], *(c["sha256"] for c in EXAMPLE["corpora"]), "128,000 tokens", "+9.40\u202f%+8.16 to +10.64"):
            self.assertIn(part, answer["text"])
        self.assertLessEqual(answer["overflow"], 0)
        # Markup is shown and does not run.
        self.assertEqual(answer["title"], EXAMPLE["title"])
        # The data, the page's own program, and this test's two.
        self.assertEqual((answer["images"], answer["scripts"], answer["handlers"]), (0, 4, 0))
        for text in ("<img src=x onerror=alert(1)>", "</script><script>document.title='pwned'</script>", "\\u202ereversed", "⏎⏎"):
            self.assertIn(text, answer["text"])

    def test_fits_a_phone(self):
        answer = self.ask(EXAMPLE, width=360)
        self.assert_quiet(answer)
        self.assertEqual(answer["width"], 360)
        self.assertLessEqual(answer["overflow"], 0)
        self.assertEqual(sum(f["pictures"] for f in answer["figures"]), 7)

    def test_answers_to_pointer_and_keys(self):
        answer = self.ask(EXAMPLE, USE)
        self.assert_quiet(answer)
        plain = [str(i) for i in range(8)]
        # R² is 0.81 … and null in the last row, which stays last.
        self.assertEqual(answer["orders"], [plain, list("06152347"), list("43251607"), plain])
        self.assertEqual(answer["sorts"], ["ascending", "descending", "none"])
        self.assertEqual((answer["before"], answer["hidden"], answer["again"]), (32, [24, "false"], 32))
        self.assertEqual(answer["wrong"], [])
        self.assertEqual(answer["formats"], [
            ["50.00\u202f%", "25.00\u202f%", "0.001\u202f%", "–"], ["+1.2\u202f%", "−50.0\u202f%", "0.0\u202f%", "+22,780.0\u202f%"], ["45\u202f%"],
            ["123456"], ["123,456"], ["3.7012", "40.1000", "4·10⁻⁵"]])
        self.assertEqual((answer["asleep"], answer["escaped"]), (True, True))
        self.assertIn("+3.10\u202f% (+2.49\u202f% to +3.71\u202f%)", answer["keyed"])
        self.assertEqual(answer["spoken"], "layer 0, cost +3.10\u202f% (+2.49\u202f% to +3.71\u202f%)")
        self.assertIn("+9.40\u202f%", answer["pointed"])
        self.assertTrue(answer["csv"].startswith("token,delta_1,delta_2,count\r\n\" the\",0.12"), answer["csv"][:80])
        self.assertIn('"""quoted"", with comma"', answer["csv"])

    def test_the_watch_notices_what_a_page_may_not_load(self):
        answer = self.ask({"title": "t"}, before=MISBEHAVE)
        self.assertEqual(sorted(answer["blocked"]), [
            "connect-src http://203.0.113.7/data", "img-src http://203.0.113.7/pixel.png"])

    def test_bears_large_and_odd_reports(self):
        numbers = {"name": "t", "columns": [
            {"name": "x", "values": [i * 0.1 for i in range(4000)]},
            {"name": "y", "description": "relative change", "values": [(i * 7919 % 4000) / 1e3 - 1 for i in range(4000)]},
            {"name": "group", "values": [f"g{i % 12}" for i in range(4000)]},
            {"name": "nulls", "values": [None] * 4000},
            {"name": "same", "values": [3] * 4000},
            {"name": "tiny", "values": [1e-30 * (i + 1) for i in range(4000)]},
            {"name": "huge", "values": [1e300 * (i % 3 - 1) for i in range(4000)]}]}
        plots = [{"kind": kind, "title": f"{kind} {y} {log}", "table": "t", "x": x, "y": y, "series": "group" if x == "x" else "", "log_x": log, "log_y": log}
                 for kind, x in (("scatter", "x"), ("line", "x"), ("bar", "group")) for y in ("y", "nulls", "same", "tiny", "huge") for log in (False, True)]
        answer = self.ask({"title": "large", "tables": [numbers, {}, {"columns": [{}]}], "plots": plots, "notes": None, "settings": 7,
                           "sections": [{"kind": "constructor"}, {"kind": "heat"}]})
        self.assert_quiet(answer)
        self.assertEqual(len(answer["figures"]), 30)
        for figure in answer["figures"]:
            self.assertEqual(figure["broken"], 0, figure["title"])
        marks = {figure["title"]: figure["marks"] for figure in answer["figures"]}
        self.assertEqual((marks["scatter y False"], marks["scatter y True"]), (4000, 3999))
        self.assertEqual(marks["bar same False"], 4000)
        self.assertEqual(len(answer["failures"]), 2)
        self.assertLessEqual(answer["overflow"], 0)

    def test_says_what_it_cannot_read(self):
        for text in ("no JSON </script>", "[1]"):
            answer = self.ask(text, "return {heading: document.querySelector('h1').textContent};")
            self.assertEqual(answer["heading"], "This report cannot be read", text)

    def test_looks_like_something_by_day_and_by_night(self):
        page = self.page_of(EXAMPLE)
        backgrounds = []
        for name, width, extra in (("day", 1280, []), ("night", 1280, ["--blink-settings=preferredColorScheme=0"]), ("phone", 360, [])):
            picture = self.folder / f"{name}.png"
            run_browser(self.browser, self.folder, f"--window-size={width},1400", "--virtual-time-budget=3000", f"--screenshot={picture}", *extra, page.as_uri())
            self.keep(picture)
            rows = scanlines(picture.read_bytes())
            self.assertEqual(len(rows), 1400)
            self.assertGreater(len(set(rows)), 300, f"{name} is blank")
            backgrounds.append(rows[0][1:4])
        self.assertEqual(backgrounds[0], b"\xff\xff\xff")
        self.assertLess(max(backgrounds[1]), 64)

    def test_prints_plots_and_all_tables(self):
        paper = self.folder / "page.pdf"
        run_browser(self.browser, self.folder, "--virtual-time-budget=3000", "--no-pdf-header-footer", f"--print-to-pdf={paper}", self.page_of(EXAMPLE).as_uri())
        self.keep(paper)
        pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
        self.assertGreater(pages, 5)
        if shutil.which("pdftotext"):
            text = subprocess.run(["pdftotext", "-layout", paper, "-"], check=True, capture_output=True, text=True).stdout
            for part in (*(t["title"] for t in EXAMPLE["tables"]), *(n for n in EXAMPLE["notes"]), "made-up number 13", "held-out R²"):
                self.assertIn(part, text)
            self.assertEqual(text.count("equal-step control"), 42)
            self.assertNotIn("Copy as CSV", text)


def run_tests(arguments):
    """Runs the tests of the program where a browser starts."""
    PageTest.browser, reason = find_browser()
    if PageTest.browser is None:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *arguments])


if __name__ == "__main__":
    RENDER, EXAMPLE = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
    run_tests(sys.argv[3:])
