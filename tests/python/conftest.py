"""Fixtures of the tests of the Python client."""

import pytest


@pytest.fixture(scope="session")
def client(gh, server):
    with gh.connect(server.address) as connected:
        yield connected
