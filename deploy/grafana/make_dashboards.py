#!/usr/bin/env python3
"""Writes the dashboards beside it, dashboards/*.json.

    deploy/grafana/make_dashboards.py            write them
    deploy/grafana/make_dashboards.py --check    fail where a file is not what this writes
"""

import json
import pathlib
import sys
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

# What the variables at the top of each dashboard choose.
SERVER = 'job=~"$job", instance=~"$instance"'
MODEL = SERVER + ', model=~"$model"'

Json = dict[str, Any]


def rate(metric: str, by: str, where: str = "", select: str = MODEL) -> str:
    """The rate of a counter, summed by labels; `where` narrows it."""
    return f"sum by ({by}) (rate({metric}{{{select}{', ' if where else ''}{where}}}[$__rate_interval]))"


def share(metric: str, by: str, where: str) -> str:
    """What part of a counter's rate is `where`; no value while there is none."""
    return f"{rate(metric, by, where)} / ({rate(metric, by)} > 0)"


def quantile(q: float, metric: str, by: str = "model") -> str:
    return f"histogram_quantile({q}, {rate(metric + '_bucket', by + ', le')})"


def mean(metric: str, by: str = "model") -> str:
    return f"{rate(metric + '_sum', by)} / ({rate(metric + '_count', by)} > 0)"


def gauge(metric: str, by: str, select: str = MODEL) -> str:
    return f"sum by ({by}) ({metric}{{{select}}})"


LINEAR = 'path="linear"'
TOKENS = "gatehouse_mlp_tokens_total"
REQUESTS = "gatehouse_requests_total"
# As in ../prometheus/rules/recording.yml.
SERVER_ERRORS = 'code=~"DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED|UNAVAILABLE|UNKNOWN"'
# Two digits, so that layer 10 comes after layer 9.
LAYERS = f'label_replace({share(TOKENS, "model, layer", LINEAR)}, "layer", "0$1", "layer", "(.)")'


def panel(kind: str, title: str, about: str, queries: dict[str, str], unit: str = "short", *, width: int = 12,
          height: int = 8, instant: bool = False, least: float | None = 0, most: float | None = None,
          options: Json | None = None, custom: Json | None = None, target: Json | None = None,
          **more: Any) -> Json:
    """A panel; `queries` maps legends to expressions."""
    defaults: Json = {"unit": unit, "custom": custom or {}}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    defaults.update(more.pop("defaults", {}))
    targets = [{"refId": chr(ord("A") + n), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend,
                "instant": instant, "range": not instant, **(target or {})}
               for n, (legend, expr) in enumerate(queries.items())]
    return {"type": kind, "title": title, "description": about, "datasource": DATASOURCE, "targets": targets,
            "gridPos": {"h": height, "w": width}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options or {}, **more}


def lines(title: str, about: str, queries: dict[str, str], unit: str = "short", *, stacked: str = "none",
          **more: Any) -> Json:
    """Curves over time; `stacked` is "normal" or "percent"."""
    custom = {"lineWidth": 1, "fillOpacity": 10 if stacked == "none" else 60, "showPoints": "never",
              "stacking": {"mode": stacked, "group": "A"}}
    options = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"],
                          "showLegend": True},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, about, queries, unit, custom=custom, options=options, **more)


def number(title: str, about: str, queries: dict[str, str], unit: str = "short", **more: Any) -> Json:
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
               "graphMode": "area", "textMode": "auto", "justifyMode": "auto", "orientation": "auto"}
    return panel("stat", title, about, queries, unit, width=more.pop("width", 6), height=4, options=options, **more)


def bars(title: str, about: str, queries: dict[str, str], unit: str = "short", **more: Any) -> Json:
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
               "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True}
    return panel("bargauge", title, about, queries, unit, options=options,
                 defaults={"color": {"mode": "continuous-BlYlRd"}}, **more)


def heat_map(title: str, about: str, query: str, legend: str, unit: str, *, buckets: bool, **more: Any) -> Json:
    """Rows of colour over time: one a series, or the buckets of a histogram."""
    options = {"calculate": False, "cellGap": 1, "yAxis": {"axisPlacement": "left", "unit": unit},
               "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, **({} if buckets else {"min": 0, "max": 1})},
               "legend": {"show": True}, "tooltip": {"show": True, "yHistogram": buckets},
               "rowsFrame": {"layout": "auto"}, "cellValues": {"unit": "short" if buckets else "percentunit"}}
    return panel("heatmap", title, about, {legend: query}, unit, options=options,
                 target={"format": "heatmap" if buckets else "time_series"}, maxDataPoints=120, **more)


def table(title: str, about: str, query: str, hidden: list[str], **more: Any) -> Json:
    hide = {"id": "organize", "options": {"excludeByName": {name: True for name in hidden}}}
    return panel("table", title, about, {"": query}, instant=True, least=None, options={"showHeader": True},
                 target={"format": "table"}, transformations=[hide], **more)


def quantiles(title: str, about: str, metric: str, **more: Any) -> Json:
    return lines(title, about, {f"{{{{model}}}} p{q * 100:g}": quantile(q, metric) for q in (0.5, 0.95, 0.99)}, "s",
                 **more)


def linear_path() -> list[Json]:
    return [
        number("Linear fraction", "Of all decisions, token by layer, those that took the linear path.",
               {"{{model}}": share(TOKENS, "model", LINEAR)}, "percentunit", most=1),
        number("Not in full", "Decisions for any path cheaper than the full MLP: linear, ladder or skip.",
               {"{{model}}": share(TOKENS, "model", 'path!="full"')}, "percentunit", most=1),
        number("Decisions per second", "Token positions times layers.", {"{{model}}": rate(TOKENS, "model")}),
        number("Drift", "The linear fraction of the last 5 minutes less that of the last hour.",
               {"{{model}}": share(TOKENS, "model", LINEAR).replace("$__rate_interval", "5m") + " - " +
                share(TOKENS, "model", LINEAR).replace("$__rate_interval", "1h")}, "percentunit", least=None),
        heat_map("Linear fraction by layer",
                 "One row a layer, from the first at the bottom. A row that stays dark is one that the calibration "
                 "does not gate.", LAYERS, "{{model}} {{layer}}", "short", buckets=False, width=24, height=11),
        lines("Linear fraction by model", "It moves when clients change their thresholds.",
              {"{{model}}": share(TOKENS, "model", LINEAR)}, "percentunit", most=1),
        bars("Linear fraction by layer, now", "", {"{{model}} {{layer}}": LAYERS}, "percentunit", most=1),
        lines("Paths", "What share of decisions took which path.", {"{{path}}": rate(TOKENS, "path")}, "percentunit",
              stacked="percent"),
        lines("Linear fraction by phase", "Prompts, generated tokens, and texts that were scored or analysed.",
              {"{{model}} {{phase}}": share(TOKENS, "model, phase", LINEAR)}, "percentunit", most=1),
        lines("Linear fraction by replica", "They differ where their calibrations or their callers do.",
              {"{{instance}} {{model}}": share(TOKENS, "instance, model", LINEAR)}, "percentunit", most=1),
        table("Calibrations", "What each replica gates by; the fingerprints of one model should be the same.",
              f"gatehouse_calibration_info{{{MODEL}}}", ["Time", "Value", "__name__", "job"]),
    ]


def latency() -> list[Json]:
    return [
        quantiles("Time to first token", "From the arrival of a generation.", "gatehouse_time_to_first_token_seconds"),
        quantiles("Between tokens", "Of one generation.", "gatehouse_inter_token_seconds"),
        heat_map("Time to first token, distribution", "", rate("gatehouse_time_to_first_token_seconds_bucket", "le"),
                 "{{le}}", "s", buckets=True),
        heat_map("Between tokens, distribution", "", rate("gatehouse_inter_token_seconds_bucket", "le"), "{{le}}", "s",
                 buckets=True),
        lines("Calls, p95", "From arrival to end, of completed calls.",
              {"{{model}} {{method}}": quantile(0.95, "gatehouse_request_seconds", "model, method")}, "s"),
        lines("Waiting for admission, p95", "Of completed calls.",
              {"{{model}} {{method}}": quantile(0.95, "gatehouse_queue_seconds", "model, method")}, "s"),
        lines("Prefill and decode, mean", "Of completed generations.",
              {"{{model}} prefill": mean("gatehouse_prefill_seconds"),
               "{{model}} decode": mean("gatehouse_decode_seconds")}, "s"),
        quantiles("One step of the engine", "All rows of a batch together.", "gatehouse_step_seconds"),
    ]


def capacity() -> list[Json]:
    used, pages = gauge("gatehouse_kv_pages_used", "instance, model"), gauge("gatehouse_kv_pages_capacity",
                                                                             "instance, model")
    return [
        number("Generated tokens per second", "", {"{{model}}": rate("gatehouse_generated_tokens_total", "model")}),
        number("Prompt tokens per second", "Prompts, and texts that were scored or analysed.",
               {"{{model}}": rate("gatehouse_prompt_tokens_total", "model")}),
        number("Running", "Calls that take part in steps.",
               {"{{model}}": gauge("gatehouse_requests_running", "model")}),
        number("Waiting", "Calls that wait for admission.",
               {"{{model}}": gauge("gatehouse_requests_waiting", "model")}),
        lines("Running and waiting", "Where calls wait for long, more replicas help.",
              {"{{model}} running": gauge("gatehouse_requests_running", "model"),
               "{{model}} waiting": gauge("gatehouse_requests_waiting", "model")}),
        lines("Prompt tokens that wait", "The work that the waiting calls bring.",
              {"{{model}}": gauge("gatehouse_waiting_prompt_tokens", "model")}),
        lines("Memory for keys and values", "Of each replica. At 100 % calls wait until others end.",
              {"{{instance}} {{model}}": f"{used} / ({pages} > 0)"}, "percentunit", most=1),
        lines("Memory for keys and values, bytes", "In use.",
              {"{{instance}} {{model}}": f"{used} * {gauge('gatehouse_kv_page_bytes', 'instance, model')}"}, "bytes"),
        lines("Rows of a step, mean", "Calls that were computed together: the batch.",
              {"{{model}}": mean("gatehouse_step_rows")}),
        lines("Token positions of a step, mean", "", {"{{model}}": mean("gatehouse_step_tokens")}),
        heat_map("Rows of a step, distribution", "", rate("gatehouse_step_rows_bucket", "le"), "{{le}}", "short",
                 buckets=True),
        lines("Busy", "The share of time that each replica's engine is in a step.",
              {"{{instance}}": rate("gatehouse_step_seconds_sum", "instance")}, "percentunit"),
        lines("Tokens per second", "By model.",
              {"{{model}} generated": rate("gatehouse_generated_tokens_total", "model"),
               "{{model}} prompt": rate("gatehouse_prompt_tokens_total", "model")}),
        lines("Memory of the process", "", {"{{instance}}": f"process_resident_memory_bytes{{{SERVER}}}"}, "bytes"),
    ]


def operations() -> list[Json]:
    ended = "gatehouse_operations_ended_total"
    return [
        number("Running", "Calibrations and experiments.",
               {"": f'sum(gatehouse_operations{{{SERVER}, state="running"}})'}),
        number("Waiting", "One runs at a time on each replica.",
               {"": f'sum(gatehouse_operations{{{SERVER}, state="waiting"}})'}),
        number("Progress", "Of the one that runs.", {"{{instance}}": f"gatehouse_operation_progress{{{SERVER}}}"},
               "percentunit", most=1),
        number("Failed", "In the time range.", {"": f'sum(increase({ended}{{{SERVER}, state="failed"}}[$__range]))'}),
        lines("Waiting and running by kind", "", {"{{kind}} {{state}}": gauge("gatehouse_operations", "kind, state",
                                                                              SERVER)}, stacked="normal"),
        lines("Ended, per hour", "", {"{{kind}} {{state}}": "3600 * " + rate(ended, "kind, state", select=SERVER)}),
        lines("Progress", "", {"{{instance}}": f"gatehouse_operation_progress{{{SERVER}}}"}, "percentunit", most=1),
        lines("Since the engine last went round",
              "At most a second when idle; beyond 60 s the server calls itself dead.",
              {"{{instance}}": f"gatehouse_heartbeat_age_seconds{{{SERVER}}}"}, "s"),
        table("Models", "What each replica serves; the fingerprints of one model should be the same.",
              f"gatehouse_model_info{{{MODEL}}}", ["Time", "Value", "__name__", "job"]),
        table("Calibrations", "", f"gatehouse_calibration_info{{{MODEL}}}", ["Time", "Value", "__name__", "job"]),
        table("Versions", "", f"gatehouse_build_info{{{SERVER}}}", ["Time", "Value", "__name__", "job"]),
        panel("state-timeline", "Alerts that fire", "Of ../prometheus/rules/alerts.yml; empty is good.",
              {"{{alertname}} {{instance}} {{model}}": 'ALERTS{alertname=~"Gatehouse.+", alertstate="firing"}'},
              options={"mergeValues": True, "showValue": "never", "legend": {"showLegend": False,
                                                                             "displayMode": "list",
                                                                             "placement": "bottom"}}),
    ]


def errors() -> list[Json]:
    budget = (f"1 - (sum by (model) (increase({REQUESTS}{{{MODEL}, {SERVER_ERRORS}}}[$__range]))"
              f" / (sum by (model) (increase({REQUESTS}{{{MODEL}}}[$__range])) > 0)) / 0.001")
    return [
        number("Error ratio", "Calls that failed through no fault of their callers.",
               {"{{model}}": share(REQUESTS, "model", SERVER_ERRORS)}, "percentunit"),
        number("Error budget left", "Of 0.1 % of the calls in the time range; choose 30 days.", {"{{model}}": budget},
               "percentunit", least=None, most=1),
        number("Refused", "Per second, for want of room: RESOURCE_EXHAUSTED.",
               {"{{model}}": rate(REQUESTS, "model", 'code="RESOURCE_EXHAUSTED"')}),
        number("Callers' mistakes", "Per second.",
               {"{{model}}": rate(REQUESTS, "model", 'code=~"FAILED_PRECONDITION|INVALID_ARGUMENT|NOT_FOUND|'
                                                     'OUT_OF_RANGE"')}),
        lines("Error ratio", "Calls that failed through no fault of their callers.",
              {"{{model}}": share(REQUESTS, "model", SERVER_ERRORS)}, "percentunit"),
        lines("Calls by status", "A model without a name is one that this server has not.",
              {"{{code}}": rate(REQUESTS, "code") + " > 0"}, stacked="normal"),
        lines("Failed calls by method", "Other than OK.",
              {"{{method}} {{code}}": rate(REQUESTS, "method, code", 'code!="OK"') + " > 0"}),
        lines("Calls by method", "", {"{{method}}": rate(REQUESTS, "method")}, stacked="normal"),
        lines("Ends of generations", "", {"{{reason}}": rate("gatehouse_finish_reasons_total", "reason")},
              stacked="normal"),
        lines("Error ratio by replica", "One that stands out is ill; the balancer should have left it.",
              {"{{instance}}": share(REQUESTS, "instance", SERVER_ERRORS)}, "percentunit"),
    ]


DASHBOARDS = {
    "gatehouse-linear-path": ("Gatehouse / Linear path", linear_path),
    "gatehouse-latency": ("Gatehouse / Latency", latency),
    "gatehouse-capacity": ("Gatehouse / Capacity", capacity),
    "gatehouse-operations": ("Gatehouse / Operations", operations),
    "gatehouse-errors": ("Gatehouse / Errors", errors),
}


def arranged(panels: list[Json]) -> list[Json]:
    """Numbers the panels and lays them from left to right, row after row."""
    x = y = row = 0
    for number_, each in enumerate(panels, 1):
        size = each["gridPos"]
        if x + size["w"] > COLUMNS:
            x, y, row = 0, y + row, 0
        each["id"] = number_
        size.update(x=x, y=y)
        x, row = x + size["w"], max(row, size["h"])
    return panels


def variable(name: str, query: str) -> Json:
    return {"name": name, "label": name.capitalize(), "type": "query", "datasource": DATASOURCE,
            "query": {"query": query, "refId": "StandardVariableQuery"}, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all", "selected": True}}


def dashboard(uid: str, title: str, panels: list[Json]) -> Json:
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
        variable("job", "label_values(gatehouse_build_info, job)"),
        variable("instance", 'label_values(gatehouse_build_info{job=~"$job"}, instance)'),
        variable("model", f"label_values(gatehouse_model_info{{{SERVER}}}, model)"),
    ]
    link = {"title": "Gatehouse", "type": "dashboards", "tags": ["gatehouse"], "asDropdown": True, "includeVars": True,
            "keepTime": True, "icon": "external link", "tooltip": "", "url": "", "targetBlank": False}
    return {"uid": uid, "title": title, "tags": ["gatehouse"], "schemaVersion": 38, "editable": True, "graphTooltip": 1,
            "time": {"from": "now-1h", "to": "now"}, "timezone": "", "refresh": "30s",
            "templating": {"list": variables}, "links": [link], "annotations": {"list": []},
            "panels": arranged(panels)}


def files() -> dict[pathlib.Path, str]:
    return {FOLDER / f"{uid}.json": json.dumps(dashboard(uid, title, panels()), indent=2) + "\n"
            for uid, (title, panels) in DASHBOARDS.items()}


def main() -> int:
    written = files()
    if "--check" not in sys.argv[1:]:
        for path, text in written.items():
            path.write_text(text)
        return 0
    stale = [path.name for path, text in written.items() if not path.exists() or path.read_text() != text]
    stale += [path.name for path in FOLDER.glob("*.json") if path not in written]
    for name in stale:
        print(f"{name} is not what make_dashboards.py writes: run it", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
