"""A real Prometheus with the rules of deploy/prometheus, and Grafana's queries as Grafana asks them."""

import json
import math
import pathlib
import re
import urllib.error
import urllib.parse
import urllib.request

import yaml

from service import SOURCE, Process, free_port

PROMETHEUS = SOURCE / "deploy/prometheus"


class Watch(Process):
    """A Prometheus that scrapes one server every second; ends with its `with` block."""

    def __init__(self, directory: pathlib.Path, target: str):
        configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["rule_files"] = [str(PROMETHEUS / files) for files in configuration["rule_files"]]
        [job] = configuration["scrape_configs"]
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [target]}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self.url = f"http://127.0.0.1:{free_port()}"
        super().__init__(["prometheus", f"--config.file={directory / 'prometheus.yml'}",
                          f"--storage.tsdb.path={directory / 'data'}",
                          f"--web.listen-address={self.url.removeprefix('http://')}"], directory / "prometheus.log")
        try:
            self.wait_for("Server is ready to receive web requests")
        except Exception:
            self.stop()
            raise

    def get(self, path, **query):
        """The result of one of the query paths; ValueError says what is wrong with a query."""
        try:
            url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{query}: {error.read().decode()}") from error

    def ask(self, expression):
        """The finite values of an expression now, as (labels, value)."""
        values = [(series["metric"], float(series["value"][1])) for series in self.get("query", query=expression)]
        return [(labels, value) for labels, value in values if math.isfinite(value)]

    def value(self, expression):
        """The only value; None where there is none."""
        values = self.ask(expression)
        assert len(values) <= 1, expression
        return values[0][1] if values else None

    def history(self, expression, start, end, step):
        """The finite values of a time range, as (labels, [(time, value), ...])."""
        rows = self.get("query_range", query=expression, start=start, end=end, step=step)
        return [(row["metric"], [(time, float(value)) for time, value in row["values"] if math.isfinite(float(value))])
                for row in rows]


def in_browser(expression, interval="20s"):
    """The expression as Grafana asks it, with every server and model chosen."""
    values = {"$__rate_interval": interval, "$__range": "5m", "$job": ".*", "$instance": ".*", "$model": ".*"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in re.sub(r'"0\$1"', "", expression), expression
    return expression
