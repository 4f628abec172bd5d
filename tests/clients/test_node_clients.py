"""Clients for Node.js: each script asserts what it reads and ends with 0."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
PACKAGES = {
    "anthropic": ["npm:@anthropic-ai/sdk"],
    "ollama": ["npm:ollama"],
    "openai": ["npm:openai"],
    "vercel_ai": ["npm:ai", "npm:@ai-sdk/openai"],
}
SCRIPTS = [
    pytest.param(FOLDER / f"{name}.mjs", marks=pytest.mark.client(*packages), id=name)
    for name, packages in PACKAGES.items()
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_client_of_node_works(server, node, script):
    node(script, server.http)
