"""Fixtures of the tests of the Python client."""

import importlib
import os
import subprocess
import sys

import pytest

import service


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


@pytest.fixture(scope="session")
def client(gh, server):
    with gh.connect(server.address) as connected:
        yield connected
