"""Fixtures of the Python tests: tests/python (the Python client) and tests/deploy."""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))

import service  # noqa: E402


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server on the smaller embedded model, for tests that only ask it things."""
    with service.Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """The folder that pip has installed client/python into, as a user's pip does but for its dependencies."""
    for needed in ("grpc", "grpc_tools", "pandas"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: tools/requirements-test.txt")
    target = tmp_path_factory.mktemp("package")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps",
                    "--no-index", "--no-compile", "--target", target, service.SOURCE / "client/python"], check=True,
                   timeout=300, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return target


@pytest.fixture(scope="session")
def gh(package):
    """The installed module `gatehouse`."""
    sys.path.insert(0, str(package))
    return importlib.import_module("gatehouse")
