"""Tests what processes log: one JSON object a line where that was asked for, no text of users."""

import json
import signal
from pathlib import Path

import grpc
import pytest

from baton_server import Server, complete

SECRET_WORDS = "a walrus in Copenhagen"
PROMPT = f"A long story of {SECRET_WORDS}: " * 20


@pytest.fixture(scope="module", name="logs")
def fixture_logs():
    """{process: lines} of a cluster that has answered, refused, lost a worker and drained."""
    with Server("--log-format", "json", "--log-level", "debug") as server:
        answer = complete(server, prompt=PROMPT, max_tokens=8, request_id="answered-1")
        assert answer.timings.path == "disagg"
        with pytest.raises(grpc.RpcError):
            late = dict(max_tokens=2000, ignore_eos=True, timeout_ms=300, request_id="late-1")
            complete(server, prompt=PROMPT, **late)
        status, _, _ = server.post("/v1/completions", {"prompt": SECRET_WORDS, "temperature": 101})
        assert status == 400
        assert server.stop(signal.SIGTERM, limit_s=60) == 0
        files = sorted(Path(server.dir).glob("*.log"))
        yield {file.stem: file.read_text().splitlines() for file in files}


def test_every_line_of_every_process_is_an_object(logs):
    assert set(logs) == {"router-0", "prefill-0", "decode-0"}
    for process, lines in logs.items():
        assert lines, process
        for line in lines:
            row = json.loads(line)
            assert set(row) >= {"time", "level", "process", "thread", "source", "message"}, line
            assert row["process"] == process


def test_the_router_names_requests_by_both_their_ids(logs):
    rows = [json.loads(line) for line in logs["router-0"]]
    for name, words in (("answered-1", "is done"), ("late-1", "deadline")):
        found = [row for row in rows if name in row["message"]]
        assert found and all(len(row["request_uid"]) == 32 for row in found), name
        assert any(words in row["message"] for row in found), found


def test_no_line_has_text_of_a_prompt(logs):
    for lines in logs.values():
        assert not [line for line in lines if "walrus" in line]
