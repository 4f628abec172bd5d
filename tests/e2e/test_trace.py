"""`baton trace` and `baton why` beside a running cluster."""

import json
import subprocess
import urllib.request

import pytest

from baton_server import BIN, complete, in_parallel

SECRET_WORDS = "a walrus in Copenhagen"


def baton(*args):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60)


def debug_trace(address):
    with urllib.request.urlopen(f"http://{address}/debug/trace") as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def traced(server):
    """The server after three streams at once; the one that tests look at has a name."""

    def ask(i):
        return complete(
            server,
            prompt=f"A long story of {SECRET_WORDS}, told {i} times: " * 20,
            max_tokens=24,
            ignore_eos=True,
            request_id=f"traced-{i}",
        )

    in_parallel([lambda i=i: ask(i) for i in range(3)], 3)
    return server


def test_the_stages_sum_to_the_answers_own_time(traced):
    page = json.loads(debug_trace(traced.router["admin"]))
    rows = {row["request_id"]: row for row in page["requests"]}
    for i in range(3):
        row = rows[f"traced-{i}"]
        took_us = row["end_us"] - row["accepted_us"]
        assert row["status"] == 200 and row["path"] == "disagg" and row["kv_bytes"] > 0
        assert abs(sum(row["stages_us"].values()) - took_us) <= 0.01 * took_us
        assert row["stages_us"]["prefill"] > 0 and row["stages_us"]["decode"] > 0


def test_trace_is_a_file_for_perfetto_with_every_process(traced, tmp_path):
    out = tmp_path / "trace.json"
    result = baton("trace", "--admin", traced.router["admin"], "--out", str(out))
    assert result.returncode == 0, result.stderr
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["args"]["name"].split(" ")[0] for e in events if e["name"] == "process_name"}
    assert names == {row["worker_id"] for row in traced.topology()}
    whole = next(e for e in events if e.get("args", {}).get("request_id") == "traced-1")
    inside = [
        e
        for e in events
        if e["ph"] == "X"
        and (e["pid"], e["tid"]) == (whole["pid"], whole["tid"])
        and whole["ts"] <= e["ts"] < whole["ts"] + whole["dur"]
        and e is not whole
    ]
    assert sum(e["dur"] for e in inside) == pytest.approx(whole["dur"], rel=0.01)
    # The worker's own clock and the router's tell the same story: its prefill has a step inside.
    prefill = next(e for e in events if e["name"].startswith("prefill cmpl"))
    steps = [e for e in events if e["pid"] == prefill["pid"] and e["name"] == "prefill step"]
    end = prefill["ts"] + prefill["dur"]
    assert any(e["ts"] < end and prefill["ts"] < e["ts"] + e["dur"] for e in steps)


def test_why_names_the_stages_and_the_load(traced):
    admin = traced.router["admin"]
    text = baton("why", "traced-2", "--admin", admin)
    assert text.returncode == 0, text.stderr
    assert "traced-2" in text.stdout and "<- longest" in text.stdout
    assert "Its path has the reason pair: " in text.stdout
    for row in traced.topology():
        if row["role"] != "router":
            assert row["worker_id"] in text.stdout
    root = json.loads(baton("why", "traced-2", "--json", "--admin", admin).stdout)
    total = sum(stage["ms"] for stage in root["stages"])
    assert total == pytest.approx(root["end_to_end_ms"], rel=0.01)
    assert root["longest"] == max(root["stages"], key=lambda stage: stage["ms"])["name"]
    assert root["steps"]["num_steps"] >= 20, "24 tokens are 23 steps of the decode worker"


def test_the_slowest_is_found_without_a_name_and_unknown_names_are_exit_1(traced):
    admin = traced.router["admin"]
    assert baton("why", "--admin", admin).returncode == 0
    unknown = baton("why", "nobody", "--admin", admin)
    assert unknown.returncode == 1 and unknown.stderr.count("\n") == 1
    worker = next(row for row in traced.topology() if row["role"] == "decode")
    wrong = baton("trace", "--admin", worker["admin"])
    assert wrong.returncode == 1 and "not the admin port of a router" in wrong.stderr


def test_no_text_of_prompts_or_answers_is_in_a_trace(traced):
    for row in traced.topology():
        assert "walrus" not in debug_trace(row["admin"])
    assert "walrus" not in baton("trace", "--admin", traced.router["admin"]).stdout


def test_a_full_disk_is_an_error_and_leaves_no_half_file(traced):
    result = baton("trace", "--admin", traced.router["admin"], "--out", "/dev/full/trace.json")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
