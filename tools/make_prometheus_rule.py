#!/usr/bin/env python3
"""Writes the PrometheusRule of deploy/kubernetes from the rules of deploy/prometheus.

  tools/make_prometheus_rule.py            writes it
  tools/make_prometheus_rule.py --check    says whether it is as it would be written
"""

import pathlib
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / "deploy/kubernetes/components/monitoring/prometheus-rule.yaml"
HEAD = """# Written by tools/make_prometheus_rule.py from deploy/prometheus/rules: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gatehouse
  labels:
    app.kubernetes.io/name: gatehouse
spec:
  groups:
"""


def prometheus_rule() -> str:
    """The manifest: the groups of all files, as they are, comments included."""
    text = HEAD
    for path in sorted((ROOT / "deploy/prometheus/rules").glob("*.yml")):
        _, groups = path.read_text().split("\ngroups:\n")
        for line in groups.rstrip().splitlines():
            text += f"  {line}".rstrip() + "\n"
    if yaml.safe_load(text)["spec"]["groups"] is None:
        raise ValueError("there are no rules")
    return text


def main() -> int:
    text = prometheus_rule()
    if sys.argv[1:] == ["--check"]:
        if TARGET.exists() and TARGET.read_text() == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is not what deploy/prometheus/rules says: run tools/make_prometheus_rule.py")
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
