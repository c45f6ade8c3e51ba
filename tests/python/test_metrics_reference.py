"""docs/metrics.md, what the server says of its metrics, and its page agree."""

import collections
import re
import subprocess
import sys
import urllib.request

import pytest
from service import BIN, SOURCE

# Labels whose every value the reference lists.
LISTED = ["path", "phase", "method", "reason", "state", "dtype", "device", "architecture"]


def rows(reference, heading):
    """The cells of the tables whose first column is headed so."""
    inside = False
    for line in reference.splitlines():
        if line.startswith(f"| {heading} |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def reference():
    return subprocess.run([BIN / "gatehouse-server", "--describe-metrics"], capture_output=True, text=True,
                          check=True).stdout


@pytest.fixture(scope="module")
def page(server):
    return urllib.request.urlopen(f"http://{server.metrics}/metrics").read().decode()


def samples(page):
    """(family, labels) of every sample."""
    families = re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M)
    types = dict(families)
    for name, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? \S+$", page, re.M):
        family = name if name in types else re.sub("_(bucket|sum|count)$", "", name)
        values = dict(re.findall(r'([a-z]+)="([^"]*)"', labels))
        values.pop("le", None)
        yield family, values


def test_the_page_of_the_documentation_is_up_to_date():
    subprocess.run([sys.executable, SOURCE / "tools/make_metrics_reference.py", BIN / "gatehouse-server", "--check"],
                   check=True)


def test_the_reference_names_what_the_server_exports_and_nothing_else(reference, page):
    documented = {name.strip("`"): (kind, text) for name, kind, _, text in rows(reference, "name")}
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", page, re.M))
    assert {name: (types[name], helps[name]) for name in types} == documented
    assert {family for family, _ in samples(page)} == set(documented)


def test_the_reference_names_the_labels_of_every_family(reference, page):
    documented = {name.strip("`"): set(re.findall("`([a-z]+)`", labels))
                  for name, _, labels, _ in rows(reference, "name")}
    for family, labels in samples(page):
        assert set(labels) == documented[family], family
    explained = {label.strip("`") for label, _ in rows(reference, "label")}
    assert explained == set().union(*documented.values())


def test_the_reference_lists_the_values_of_labels_that_have_few(reference, page):
    listed = {label.strip("`"): set(re.findall("`([a-z0-9_]+)`", values)) for label, values in rows(reference, "label")}
    seen = collections.defaultdict(set)
    for _, labels in samples(page):
        for label, value in labels.items():
            seen[label].add(value)
    for label in LISTED:
        assert seen[label] <= listed[label], label
    for label in ["path", "phase", "method", "reason", "state"]:
        assert seen[label] == listed[label], label
