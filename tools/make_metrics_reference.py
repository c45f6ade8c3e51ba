#!/usr/bin/env python3
"""Writes the reference part of docs/metrics.md, which gatehouse-server prints.

    tools/make_metrics_reference.py [SERVER]            write it
    tools/make_metrics_reference.py [SERVER] --check    fail where the page is not up to date

SERVER is the program, by default build/release/bin/gatehouse-server.
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/metrics.md"
BEGIN = "<!-- begin: gatehouse-server --describe-metrics -->\n"
END = "<!-- end -->\n"


def with_reference(page: str, reference: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + reference + END + rest.split(END, 1)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="?", default=ROOT / "build/release/bin/gatehouse-server")
    parser.add_argument("--check", action="store_true", help="fail where the page is not up to date")
    arguments = parser.parse_args()
    reference = subprocess.run([arguments.server, "--describe-metrics"], capture_output=True, text=True,
                               check=True).stdout
    page = PAGE.read_text()
    wanted = with_reference(page, reference)
    if not arguments.check:
        PAGE.write_text(wanted)
    elif page != wanted:
        print("docs/metrics.md is not what the server says of its metrics: run tools/make_metrics_reference.py",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
