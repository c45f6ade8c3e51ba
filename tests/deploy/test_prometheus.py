"""The rules of Prometheus and the dashboards of Grafana, asked of a real Prometheus that scrapes a loaded server."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
import yaml
from service import SOURCE, Server, gatehouse, wait_until
from watch import PROMETHEUS, Watch, in_browser

GRAFANA = SOURCE / "deploy/grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
KNOWN_ANSWERS = sorted((SOURCE / "tests/deploy/prometheus").glob("*.yml"))
MODEL = "novella-neox-4m"

# Empty while nothing is wrong; tests/deploy/prometheus/alerts.yml has series on which it is not.
RIGHTLY_EMPTY = {'ALERTS{alertname=~"Gatehouse.+", alertstate="firing"}'}

pytestmark = pytest.mark.skipif(not (shutil.which("prometheus") and shutil.which("promtool")),
                                reason="prometheus and promtool are not installed: apt-get install prometheus")


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def rules(kind):
    """name: [rule, ...] of the recording rules ("record") or the alerts ("alert")."""
    found = {}
    for path in sorted((PROMETHEUS / "rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                if kind in rule:
                    found.setdefault(rule[kind], []).append(rule)
    return found


def panels():
    """(dashboard, panel, expression) of every query of every dashboard."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield path.stem, panel["title"], target["expr"]


# ---- On paper


def test_prometheus_takes_the_configuration_and_the_rules():
    promtool("check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.parametrize("path", KNOWN_ANSWERS, ids=lambda path: path.stem)
def test_rules_give_the_answers_that_are_known(path):
    promtool("test", "rules", path)


def test_every_rule_has_an_answer_that_is_known():
    tests = [test for path in KNOWN_ANSWERS for test in yaml.safe_load(path.read_text())["tests"]]
    for name in rules("record"):
        assert any(name in case["expr"] and case.get("exp_samples")
                   for test in tests for case in test.get("promql_expr_test", [])), name
    for name in rules("alert"):
        cases = [case for test in tests for case in test.get("alert_rule_test", []) if case["alertname"] == name]
        assert any(case.get("exp_alerts") for case in cases), f"no series on which {name} fires"
        assert any(not case.get("exp_alerts") for case in cases), f"no series on which {name} does not fire"


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    for name, [rule] in rules("alert").items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], name
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#alert-{name.lower()}"


def test_dashboards_are_what_their_script_writes():
    subprocess.run([sys.executable, GRAFANA / "make_dashboards.py", "--check"], check=True)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafanas_own_types_know_every_field_of_a_dashboard(path):
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog import encoder, plugins
    plugins.register_default_plugins()
    written = json.loads(path.read_text())
    read = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(written)))
    assert lost(written, read) == []


def lost(written, read, where=""):
    """Where `read` does not have what `written` has."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [at for key in written for at in lost(written[key], read.get(key), f"{where}.{key}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [at for n, (a, b) in enumerate(zip(written, read)) for at in lost(a, b, f"{where}[{n}]")]
    return [] if written == read else [f"{where}: {written!r} became {read!r}"]


def test_panels_do_not_overlap_and_fill_the_width():
    for path in DASHBOARDS:
        taken = set()
        for panel in json.loads(path.read_text())["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24 and not cells & taken, f"{path.stem}: {panel['title']}"
            taken |= cells


def test_provisioning_finds_the_dashboards_and_the_prometheus():
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/gatehouse.yml").read_text())["providers"]
    assert provider["type"] == "file" and provider["options"]["path"] == "/var/lib/grafana/dashboards"
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["type"] == "prometheus" and source["jsonData"]["timeInterval"] == scraped


# ---- For real


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A server of its own, so that nothing else is counted."""
    with Server(tmp_path_factory.mktemp("server"), "--max-waiting=4") as server:
        yield server


@pytest.fixture(scope="module")
def watch(tmp_path_factory, loaded):
    with Watch(tmp_path_factory.mktemp("prometheus"), loaded.metrics) as running:
        # A rate begins with the first sample, so that must come before the first call.
        wait_until(lambda: running.ask('up{job="gatehouse"} == 1'), "the first scrape")
        yield running


def generate(server, *flags, tokens=40):
    done = gatehouse("generate", "-m", MODEL, "--prompt", "The captain walked slowly up the hill and",
                     "-n", tokens, "--ignore-eos", *flags, server=server.address)
    assert done.returncode == 0, done.stderr


def test_the_ratio_moves_when_a_client_changes_its_threshold(watch, loaded):
    [panel] = {expr for dashboard, title, expr in panels()
               if dashboard == "gatehouse-linear-path" and title == "Linear fraction by model"}
    shown = in_browser(panel, interval="6s")
    recorded = "job_model:gatehouse_linear_fraction:ratio_rate5m"

    generate(loaded, "--gating=gated", "--threshold=1")
    wait_until(lambda: watch.value(shown) == 0 and watch.value(recorded) == 0, "a share of 0 at threshold 1")
    generate(loaded, "--gating=gated", "--threshold=0")
    wait_until(lambda: (watch.value(shown) or 0) > 0.2, "a share above 0.2 at threshold 0")
    # Every decision since the start is in the recorded window: it is the quotient of the counters themselves.
    counted = watch.value('sum(gatehouse_mlp_tokens_total{path="linear"}) / sum(gatehouse_mlp_tokens_total)')
    assert counted > 0.05
    wait_until(lambda: watch.value(recorded) == pytest.approx(counted, rel=1e-6), f"a recorded share of {counted}")

    def back():
        generate(loaded, "--gating=gated", "--threshold=1", tokens=5)
        return watch.value(shown) == 0
    wait_until(back, "a share of 0 at threshold 1 again")


@pytest.fixture(scope="module")
def busy(watch, loaded, tmp_path_factory):
    """The watched server, while clients do everything that it counts."""
    book = tmp_path_factory.mktemp("texts") / "book.txt"
    book.write_text((SOURCE / "tests/data/corpus/treasure_island.txt").read_text()[:40000])
    text = ["--text", "The captain walked slowly up the hill."]
    started = gatehouse("experiment", "nonlinearity", "-m", MODEL, "--corpus", book, server=loaded.address)
    assert started.returncode == 0, started.stderr
    calls = [["generate", "-m", MODEL, "--prompt", "It was", "-n", "12", "--gating=full"],
             ["generate", "-m", MODEL, "--prompt", "It was", "-n", "12", "--gating=gated", "--threshold=0.5"],
             ["generate", "-m", MODEL, "--prompt", "It was", "-n", "12", "--gating=linear"],
             ["score", "-m", MODEL, *text, "--gating=gated"],
             ["nonlinearity", "-m", MODEL, *text],
             ["consensus", "-m", MODEL, *text],
             # Mistakes that the server finds: a model it has not, and a threshold where there is no gate.
             ["generate", "-m", "no-such-model", "--prompt", "It was"],
             ["generate", "-m", MODEL, "--prompt", "It was", "--calibration", "no-such-calibration", "--gating=gated"]]
    over = threading.Event()

    def load():
        while not over.wait(0.2):
            for call in calls:
                gatehouse(*call, server=loaded.address)
    thread = threading.Thread(target=load)
    thread.start()
    yield watch
    over.set()
    thread.join()


def all_have_data(watch, expressions):
    """Waits until every expression, by its name, has data; names those that have not."""
    without = dict(expressions)

    def answered():
        for name in [name for name, expression in without.items() if watch.ask(expression)]:
            del without[name]
        return not without
    try:
        wait_until(answered, "data", timeout=60)
    except TimeoutError:
        pytest.fail("no data for " + ", ".join(f"{name}: {expression}" for name, expression in without.items()),
                    pytrace=False)


def test_every_recording_rule_records(busy):
    labels = {name: [rule.get("labels", {}) for rule in found] for name, found in rules("record").items()}
    all_have_data(busy, {f"{name}{label}": name + "{" + ", ".join(f'{k}="{v}"' for k, v in label.items()) + "}"
                         for name, found in labels.items() for label in found})


def test_every_query_of_every_dashboard_returns_data(busy):
    expressions = {f"{dashboard}, {title}, {n}": in_browser(expression)
                   for n, (dashboard, title, expression) in enumerate(panels()) if expression not in RIGHTLY_EMPTY}
    assert len(expressions) > 50
    all_have_data(busy, expressions)
    for expression in RIGHTLY_EMPTY:
        assert expression in {query for _, _, query in panels()}
        assert busy.ask(expression) == []
        metric, selector = expression.rstrip("}").split("{")
        assert f"{metric}{{{selector}" in (SOURCE / "tests/deploy/prometheus/alerts.yml").read_text()


def test_the_variables_of_every_dashboard_have_values(busy):
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            assert all(labels[label] for labels, _ in busy.ask(in_browser(series))), variable["name"]
            assert busy.ask(in_browser(series)), variable["name"]


def test_the_layers_of_the_heat_map_come_in_order(busy):
    [heat_map] = {expr for _, title, expr in panels() if title == "Linear fraction by layer"}
    now = time.time()
    layers = [labels["layer"] for labels, _ in busy.history(in_browser(heat_map), now - 10, now, 1)]
    assert layers == sorted(layers) and layers[0] == "00" and len(set(map(len, layers))) == 1


def test_no_alert_fires_while_all_is_well_and_all_that_alerts_look_at_is_there(busy):
    for name, [rule] in rules("alert").items():
        assert busy.ask(rule["expr"]) == [], name
    named = {name for [rule] in rules("alert").values()
             for name in re.findall(r"\b(?:\w+:)?gatehouse_\w+(?::\w+)?", rule["expr"])}
    all_have_data(busy, {name: name for name in named | {"up"}})
