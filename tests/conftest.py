"""Fixtures of the Python tests: tests/python (the Python client) and tests/deploy."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))

import service  # noqa: E402


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server on the smaller embedded model, for tests that only ask it things."""
    with service.Server(tmp_path_factory.mktemp("server")) as running:
        yield running
