"""Clients for Node.js: each script asserts what it reads and ends with 0."""

from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).resolve().parent.glob("*.mjs"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_client_of_node_works(server, node, script):
    node(script, server.http)
