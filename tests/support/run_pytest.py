#!/usr/bin/env python3
"""Runs pytest on the files named, for ctest: exits with 77 where pytest is absent or every test was skipped."""

import sys

try:
    import pytest
except ImportError as absent:
    print(f"skipped: {absent}")
    sys.exit(77)


class Outcomes:
    def __init__(self):
        self.ran = 0

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call" and not report.skipped


outcomes = Outcomes()
status = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[outcomes])
sys.exit(77 if status == 0 and outcomes.ran == 0 else status)
