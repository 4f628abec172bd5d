"""`serve --colocate`: a prefill and a decode worker in one process, on the processor and on the
runner of the CUDA sources: the same bits as two processes and as one worker, one copy of the
weights, and both roles come, leave and die together."""

import json
import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from baton_server import (
    BIN,
    PATIENCE_S,
    Server,
    complete,
    http_json,
    metric,
    pool_flags,
    wait_until,
)
from fault_scenarios import all_begun, any_token, decoding_worker, kill_worker
from fault_work import Stream, Work, audit_ledger, pool_args, wait_clean, wait_serving

TINY = str(Path(__file__).resolve().parents[1] / "golden" / "tiny_head64_llama.gguf")
CPU = ("--device", "cpu")
SIMT = ("--device", "simt", "--kv-memory", "16MiB")
STORY = dict(prompt="Once upon a time", ignore_eos=True, temperature=0.7, seed=3)
NUM_PROCESSES = 3  # rows of the topology


def baton(*args, timeout=120):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=timeout)


def build_has_runner():
    probe = baton("decode", "--router", "127.0.0.1:1", "--model", "no.gguf", "--device", "simt")
    return "not in this build" not in probe.stderr


needs_runner = pytest.mark.skipif(
    not build_has_runner(),
    reason="the runner needs x86-64, gcc and a build without ThreadSanitizer",
)


@pytest.fixture(scope="module")
def colocated():
    with Server("--colocate", *CPU) as running:
        yield running


def requests(sizes, first=17):
    """Greedy, sampled, and several choices, for prompts of these sizes."""
    rows = []
    for i, size in enumerate(sizes):
        prompt = [first + (i * 131 + j * 17) % 200 for j in range(size)]
        fields = dict(prompt_token_ids=prompt, ignore_eos=True, logprobs=3, max_tokens=8)
        rows.append(dict(fields, temperature=0))
        rows.append(dict(fields, temperature=0.9, seed=1000 + i, top_p=0.95, top_k=40))
        rows.append(dict(fields, temperature=0.8, seed=7, n=2, repetition_penalty=1.1))
    return rows


def test_a_build_with_cuda_says_why_it_computes_on_the_processor():
    asked = baton("decode", "--router", "127.0.0.1:1", "--model", TINY, "--device", "cuda")
    why = asked.stderr.strip().removeprefix("baton decode: ")
    if "no GPU can be used" not in why:
        pytest.skip("this build has no CUDA, or this machine a GPU")
    for args, reason in (((), why), (("--kv-dtype", "f32"), "--kv-dtype f32 is of the processor")):
        with Server("--colocate", *args, model=TINY) as server:
            rows = [line for line in server.log_since(0).splitlines() if " pid " in line]
        assert len(rows) == 2 and all(row.endswith(f"({reason})") for row in rows), rows


def both_rows(server):
    rows = {row["role"]: row for row in server.workers()}
    assert set(rows) == {"prefill", "decode"}
    return rows


def test_two_workers_are_one_process(colocated):
    rows = both_rows(colocated)
    assert {row["worker_id"] for row in rows.values()} == {"prefill-0", "decode-0"}
    assert rows["prefill"]["pid"] == rows["decode"]["pid"] != colocated.router["pid"]
    for key in ("incarnation", "grpc", "admin"):
        assert rows["prefill"][key] != rows["decode"][key]
    assert [row["kv"] for row in rows.values()] == ["", ""], "nobody listens for KV"
    seen = {p["worker_id"]: p for p in colocated.get("/v1/topology")[2]["processes"]}
    for row in rows.values():
        assert seen[row["worker_id"]]["pid"] == row["pid"]
        assert seen[row["worker_id"]]["ready"]
    (link,) = seen["prefill-0"]["links"]
    assert (link["to"], link["transport"], link["up"]) == ("decode-0", "local", True)
    said = colocated.log_since(0)
    assert all(re.search(rf"^{name} +pid {rows['decode']['pid']} ", said, re.M)
               for name in ("prefill-0", "decode-0"))  # fmt: skip
    log = Path(colocated.dir, "prefill-0+decode-0.log").read_text()
    assert log.count("decode-0 computes with the weights of prefill-0") == 1


def test_bits_are_those_of_two_processes_and_of_one_worker(colocated):
    asked = requests((1, 16, 17, 80, 300))
    given = [complete(colocated, **fields) for fields in asked]
    for answer in given:
        assert (answer.timings.path, answer.timings.transport) == ("disagg", "local")
        assert answer.timings.prefill_worker == "prefill-0"
        assert answer.timings.decode_worker == "decode-0"
    with Server("--mode", "aggregated", *CPU) as server:
        local = [complete(server, **fields) for fields in asked]
    with Server("--transport", "shm", *CPU) as server:
        remote = [complete(server, **fields) for fields in asked]
    assert {a.timings.path for a in local} == {"local"}
    assert {a.timings.transport for a in remote} == {"shm"}
    assert [a.bits() for a in given] == [a.bits() for a in remote]
    assert [a.bits() for a in given] == [a.bits() for a in local]


def test_what_crosses_is_counted(colocated):
    decode = both_rows(colocated)["decode"]
    labels = 'transport="local"'
    before = metric(decode, "baton_kv_transfer_bytes_total", labels)
    answer = complete(colocated, prompt_token_ids=list(range(40, 140)), max_tokens=3, seed=1)
    assert answer.timings.kv_bytes > 0
    after = metric(decode, "baton_kv_transfer_bytes_total", labels)
    assert after - before == answer.timings.kv_bytes
    assert metric(decode, "baton_kv_transfer_seconds_count", labels) > 0
    assert metric(decode, "baton_kv_checksum_fail_total") == 0
    wait_clean(colocated)


def works_late(pid):
    """Its pool still gets memory, or it measures the machine, in buffers of its own."""
    for name in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):  # that thread has ended
            if name.read_text() == "late-work\n":
                return True
    return False


def anonymous_kib(pid):
    wait_until(lambda: not works_late(pid), PATIENCE_S, "the late work is done")
    (text,) = re.findall(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(text)


def test_the_weights_are_there_once():
    own = ("--share-weights", "off", *CPU)  # else two processes have them once, too
    with Server("--colocate", *own) as server:
        log = Path(server.dir, "prefill-0+decode-0.log").read_text()
        once = anonymous_kib(both_rows(server)["decode"]["pid"])
    sizes = set(re.findall(r"weights ([\d.]+) MiB", log))
    assert len(sizes) == 1, "of both the same"
    weights_kib = float(sizes.pop()) * 1024
    with Server("--transport", "shm", *own) as server:
        twice = sum(anonymous_kib(row["pid"]) for row in server.workers())
    print(f"{once} KiB in one process, {twice} KiB in two, weights {weights_kib:.0f} KiB")
    assert once < twice - 0.8 * weights_kib


def test_the_tools_know_both_workers(colocated):
    admin = colocated.router["admin"]
    frame = baton("top", "--admin", admin)
    assert frame.returncode == 0 and "prefill-0" in frame.stdout and "decode-0" in frame.stdout
    links = json.loads(baton("topo", "--json", "--admin", admin).stdout)["links"]
    assert [(link["from"], link["to"]) for link in links] == [("prefill-0", "decode-0")]
    _, headers, _ = colocated.post(
        "/v1/completions", {"prompt": "Hi", "max_tokens": 3}, headers={"X-Request-Id": "both"}
    )
    assert headers["X-Request-Id"] == "both"
    why = baton("why", "both", "--admin", admin)
    assert why.returncode == 0 and "decode-0" in why.stdout, why.stderr
    code, audit = audit_ledger(colocated)
    assert code == 0, audit
    assert {row["worker"] for row in audit["workers"]} >= {"prefill-0", "decode-0"}


@pytest.mark.parametrize(
    "worker", ["decode-0", pytest.param("prefill-0", marks=pytest.mark.long)]
)
def test_who_drains_one_drains_both(worker):
    with Server("--colocate", *CPU) as server:
        fields = dict(STORY, max_tokens=150)
        clean = complete(server, **fields).bits()
        before = both_rows(server)
        stream = Stream(server, fields)
        thread = threading.Thread(target=stream.run)
        thread.start()
        wait_until(lambda: len(stream.chunks) > 3, 30, "it runs")
        done = baton("drain", worker, "--admin", server.router["admin"])
        thread.join()
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(rf"{worker} left after \d+ ms\n", done.stdout), done.stdout
        assert stream.error is None and stream.answer().bits() == clean
        assert stream.answer().timings.resumes == 0, "it ended where it ran"
        wait_serving(server, NUM_PROCESSES)
        after = both_rows(server)
        assert after["prefill"]["pid"] == after["decode"]["pid"] != before["decode"]["pid"]
        assert "prefill-0+decode-0 ended with exit code 0" in server.log_since(0)
        assert complete(server, **fields).bits() == clean
        assert server.stop() == 0, server.output()


def test_sigterm_lets_streams_end():
    with Server("--colocate", *CPU) as server:
        fields = dict(STORY, max_tokens=120)
        clean = complete(server, **fields).bits()
        stream = Stream(server, fields)
        thread = threading.Thread(target=stream.run)
        thread.start()
        wait_until(lambda: len(stream.chunks) > 3, 30, "it runs")
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert stream.error is None and stream.answer().bits() == clean
        assert server.process.wait(PATIENCE_S) == 0, server.output()


def test_a_second_sigterm_is_fast():
    with Server("--colocate", "--drain-timeout", "600", *CPU) as server:
        stream = Stream(server, dict(STORY, max_tokens=8000))
        thread = threading.Thread(target=stream.run)
        thread.start()
        wait_until(lambda: len(stream.chunks) > 3, 30, "it runs")
        (pid,) = {row["pid"] for row in server.workers()}
        server.process.send_signal(signal.SIGTERM)
        # Two that nobody has taken yet are one.
        wait_until(lambda: http_json(server.http + "/health")[0] == 503, 10, "it drains")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0, server.output()
        thread.join()
        assert stream.error is not None, "a cut answer does not look whole"
        assert not os.path.exists(f"/proc/{pid}")


def killed(cluster, work, moment):
    """Checks what kill -9 of the process does to all streams; both rows are new, of one process."""
    before = both_rows(cluster)
    width = len(work.requests)
    pick = decoding_worker(cluster, work.requests[0]["max_tokens"] * 3 // 4)
    result = kill_worker(cluster, work, moment, pick, width=width)
    print(result)
    after = both_rows(cluster)
    assert after["prefill"]["pid"] == after["decode"]["pid"]
    for role, row in after.items():
        assert row["pid"] != before[role]["pid"]
        assert row["incarnation"] != before[role]["incarnation"]
    return result


@pytest.mark.parametrize(
    "moment", [all_begun, pytest.param(any_token, marks=pytest.mark.long)]
)
def test_a_killed_process_changes_no_answer(moment):
    with Server("--colocate", *CPU, *pool_args(256)) as cluster:
        work = Work(seed=4, num=8, max_prompt=200, max_tokens=160).record(cluster)
        result = killed(cluster, work, moment)
        assert result["problems"] == []
        assert result["resumed"] > 0, "it was killed in the middle"
        assert cluster.stop() == 0, cluster.output()


@needs_runner
@pytest.mark.parametrize(
    "name", ["head64_llama", pytest.param("head64_qwen3moe", marks=pytest.mark.long)]
)
def test_a_device_gives_the_bits_of_two_processes(name):
    model = TINY.replace("head64_llama", name)
    asked = requests((20, 100, 128), first=3)
    with Server("--colocate", *SIMT, model=model) as server:
        given = [complete(server, **fields) for fields in asked]
        decode = both_rows(server)["decode"]
        crossed = metric(decode, "baton_kv_transfer_bytes_total", 'transport="local"')
        assert crossed == sum(a.timings.kv_bytes for a in given) > 0
        wait_clean(server)
    with Server(*SIMT, model=model) as server:
        remote = [complete(server, **fields) for fields in asked]
    assert {(a.timings.path, a.timings.transport) for a in given} == {("disagg", "local")}
    assert {a.timings.path for a in remote} == {"disagg"}
    assert [a.bits() for a in given] == [a.bits() for a in remote]


@needs_runner
def test_a_killed_process_on_a_device_changes_no_answer():
    with Server("--colocate", *SIMT, model=TINY) as cluster:
        work = Work(seed=1, num=0)
        asked = requests((20, 100), first=3)[::2]  # of each kind one
        work.requests = [dict(fields, max_tokens=80) for fields in asked]
        work.record(cluster, width=len(work.requests))
        result = killed(cluster, work, all_begun)
        assert result["problems"] == []
        assert result["resumed"] > 0, "it was killed in the middle"
        assert cluster.stop() == 0, cluster.output()


@pytest.mark.parametrize(
    "flags",
    [("--prefill", "2"), ("--decode", "2"), ("--mode", "aggregated"), ("--transport", "tcp")],
    ids=lambda flags: flags[0][2:],
)
def test_what_does_not_go_together_is_named(flags):
    done = baton("serve", TINY, "--colocate", *flags)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert " ".join(flags) in line and "--colocate" in line


def test_another_process_is_not_paired_with_it(colocated, tmp_path):
    """KV of a colocated pair reaches nobody else: the other prefill worker gets no prompt."""
    args = [BIN, "prefill", "--router", colocated.router["grpc"], "--model", "smollm2:135m"]
    args += ["--worker-id", "prefill-9", "--colocate-decode", "decode-9", *CPU]
    args += ["--cluster-secret-file", f"{colocated.dir}/cluster-secret", "--threads", "1"]
    args += pool_flags("smollm2:135m")
    with open(tmp_path / "other.log", "w") as log:
        other = subprocess.Popen(args, stdout=log, stderr=log)
    try:

        def rows():
            seen = colocated.get("/v1/topology")[2]["processes"]
            found = {row["worker_id"]: row for row in seen if row["role"] != "router"}
            ready = len(found) == 4 and all(row["ready"] for row in found.values())
            # A pair that was ready before it was linked tells its link with its next report.
            linked = all(row["links"] for row in found.values() if row["role"] == "prefill")
            return found if ready and linked else None

        found = wait_until(rows, 60, "four workers are ready and linked")
        assert [link["to"] for link in found["prefill-0"]["links"]] == ["decode-0"]
        assert [link["to"] for link in found["prefill-9"]["links"]] == ["decode-9"]
        assert found["prefill-9"]["pid"] == found["decode-9"]["pid"] == other.pid
        for fields in requests((30, 90)):
            timings = complete(colocated, **fields).timings
            pair = (timings.prefill_worker[-1], timings.decode_worker[-1])
            assert (timings.path, *pair) in {("disagg", "0", "0"), ("disagg", "9", "9")}
    finally:
        other.terminate()
        assert other.wait(60) == 0
