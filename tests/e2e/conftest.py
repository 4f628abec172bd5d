"""One disaggregated server over the automatic transport for the tests that only read from it."""

import pytest

from baton_server import Server


@pytest.fixture(scope="session")
def server():
    with Server() as running:
        yield running
