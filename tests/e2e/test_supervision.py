"""Workers that die come back, workers that are asked to leave lose nothing, and the ledger is
audited from outside."""

import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from baton_server import (
    BIN,
    MODEL,
    PATIENCE_S,
    PATIENT,
    Server,
    complete,
    http_json,
    pool_flags,
    wait_until,
)
from fault_scenarios import rolling_restart
from fault_work import (
    Stream,
    Work,
    audit_ledger,
    is_serving,
    live_requests,
    pool_args,
    wait_clean,
    wait_serving,
)

NUM_PROCESSES = 5


def baton(*args, timeout=600):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def cluster():
    # Its processes are stopped for as long as a test needs.
    args = ("--prefill", "2", "--decode", "2", "--silence-timeout", "0", *PATIENT, *pool_args(128))
    with Server(*args) as running:
        wait_serving(running, NUM_PROCESSES)
        yield running


@pytest.fixture(scope="module")
def work(cluster):
    return Work(seed=9, num=10, max_prompt=200, max_tokens=24).record(cluster)


@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
def test_a_killed_process_is_started_again(cluster, role):
    before = {p["worker_id"]: p for p in cluster.topology()}
    victim = next(p for p in before.values() if p["role"] == role)
    start = time.monotonic()
    os.kill(victim["pid"], signal.SIGKILL)

    def row():
        rows = [p for p in cluster.topology() if p["worker_id"] == victim["worker_id"]]
        return rows[0] if rows and rows[0]["pid"] != victim["pid"] else None

    new = wait_until(row, 20, f"topology.json has the next {role}")
    assert new["incarnation"] != victim["incarnation"]
    others = {p["worker_id"]: p for p in cluster.topology() if p["worker_id"] != new["worker_id"]}
    for name, process in others.items():
        assert process["pid"] == before[name]["pid"], f"{name} was left alone"
    if role == "router":
        assert (new["http"], new["grpc"], new["admin"]) == (
            victim["http"],
            victim["grpc"],
            victim["admin"],
        )
        cluster.router = new
    wait_serving(cluster, NUM_PROCESSES)
    print(f"{role}: whole again after {1000 * (time.monotonic() - start):.0f} ms")

    def answers():
        status, _, answer = cluster.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3})
        return status == 200 and answer["timings"]["path"] == "disagg"

    wait_until(answers, 20, "requests are served by a pair")


def child(process, role, other_than=None):
    """The pid of the worker of a server's process in that role as soon as it exists; None while
    there is none."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for pid in (int(word) for word in children.read_text().split()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # It ended since the list was read.
            continue
        if pid != other_than and role.encode() in command:
            return pid
    return None


def kill_once(server, role, victim, is_over):
    """Kills a worker; the pid of its next life, or None when `is_over()` comes first."""
    os.kill(victim, signal.SIGKILL)
    pid = wait_until(
        lambda: is_over() or child(server.process, role, other_than=victim), 30, f"the next {role}"
    )
    return None if pid is True else pid


def kill_until_said(server, role, line):
    """Kills a worker as often as it starts until the server says `line`: five times in a row, each
    within 10 s of its start; the first life may have been longer."""
    victim = child(server.process, role)
    for _ in range(6):
        victim = kill_once(server, role, victim, lambda: line in server.log_since(0))
        if victim is None:
            return
    raise AssertionError(f"not said: {line}")


KEEPS_DYING = (
    "prefill-0 ended by signal 9 (SIGKILL), 5 times in a row; starting it again in 20000 ms"
)


def test_a_worker_that_keeps_dying_waits_and_the_last_one_that_decodes_ends_the_server():
    with Server(*pool_args(64)) as server:
        kill_until_said(server, "prefill", KEEPS_DYING)
        victim = child(server.process, "decode")
        for _ in range(6):
            victim = kill_once(server, "decode", victim, lambda: server.process.poll() is not None)
            if victim is None:
                break
        assert server.process.wait(timeout=PATIENCE_S) == 1
        assert "decode-0 keeps dying" in server.log_since(0)


@pytest.mark.long
def test_a_worker_that_keeps_dying_is_tried_on_and_one_long_life_is_a_new_beginning():
    with Server(*pool_args(64)) as server:
        victim = child(server.process, "decode")
        kill_until_said(server, "prefill", KEEPS_DYING)
        # A death after a long life is no quick one (10 s; the process is older than its report).
        time.sleep(10.5)
        assert child(server.process, "prefill") is None, "it has to wait for longer than the others"

        def has_ended():
            return server.process.poll() is not None

        for _ in range(5):
            victim = kill_once(server, "decode", victim, has_ended)
            assert victim is not None

        def answers():
            body = {"prompt": "Hi", "max_tokens": 3}
            return server.post("/v1/completions", body)[0] == 200

        wait_until(answers, 60, "requests are answered after one death and four quick ones")
        wait_until(lambda: child(server.process, "prefill"), 40, "it is started again")
        # The first of these is a slow one where the server needs long to answer.
        for _ in range(6):
            victim = kill_once(server, "decode", victim, has_ended)
            if victim is None:
                break
        assert server.process.wait(timeout=PATIENCE_S) == 1
        assert "decode-0 keeps dying" in server.log_since(0)


@pytest.fixture
def unready(tmp_path):
    """A server whose decode worker is stopped before it reports: the server's process, the worker's
    pid, and the file of what the server says."""
    command = [BIN, "serve", MODEL, "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"]
    command += ["--admin=127.0.0.1:0", f"--run-dir={tmp_path}/run", *pool_flags(MODEL)]
    errors = tmp_path / "errors"
    with errors.open("w") as out:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)
    try:
        decode = wait_until(lambda: child(process, "decode"), 20, "the decode worker starts")
        os.kill(decode, signal.SIGSTOP)
        yield process, decode, errors
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)


def test_a_crash_at_the_start_is_told_by_its_signal(unready):
    process, decode, errors = unready
    os.kill(decode, signal.SIGABRT)
    os.kill(decode, signal.SIGCONT)
    assert process.wait(timeout=PATIENCE_S) == 1
    assert "decode-0 did not start: it ended by signal 6 (SIGABRT)" in errors.read_text()


def test_a_crash_is_told_by_its_signal(cluster):
    mark = cluster.log_size()
    victim = next(p for p in cluster.workers() if p["worker_id"] == "decode-1")
    os.kill(victim["pid"], signal.SIGABRT)
    said = "decode-1 ended by signal 6 (SIGABRT); starting it again in "
    wait_until(lambda: said in cluster.log_since(mark), 20, "the crash")
    wait_serving(cluster, NUM_PROCESSES)


def test_a_start_that_takes_long_says_what_was_logged_last(unready, tmp_path):
    _, decode, errors = unready
    said = "s; the last line of router-0: "
    wait_until(lambda: said in errors.read_text(), 20, "what is awaited")
    os.kill(decode, signal.SIGCONT)
    line = next(text for text in errors.read_text().splitlines() if said in text)
    seconds, _, last = line.removeprefix("not ready after ").partition(said)
    assert int(seconds) >= 10
    assert last in (tmp_path / "run" / "router-0.log").read_text()


def test_a_server_that_says_it_is_ready_has_all_links_and_replaces_who_stands_still():
    args = ("--prefill", "2", "--decode", "2", "--silence-timeout", "10", *pool_args(64))
    with Server(*args) as server:
        rows = http_json(server.http + "/v1/topology")[2]["processes"]
        workers = [row for row in rows if row["role"] != "router"]
        links = [(row["ready"], [link["up"] for link in row.get("links", [])]) for row in workers]
        assert sorted(links) == 2 * [(True, [])] + 2 * [(True, [True, True])]

        frozen = {p["worker_id"]: p["pid"] for p in server.topology() if p["worker_id"][-1] == "0"}
        assert sorted(frozen) == ["decode-0", "prefill-0", "router-0"]
        for pid in frozen.values():
            os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda: not any(os.path.exists(f"/proc/{pid}") for pid in frozen.values()),
            60,
            "they are killed",
        )

        def is_whole():
            lives = {p["worker_id"]: p["pid"] for p in server.topology()}
            return len(lives) == NUM_PROCESSES and not set(lives.values()) & set(frozen.values())

        wait_until(is_whole, 30, "topology.json has the next ones")
        said = server.log_since(0)
        for name in frozen:
            line = rf"{name} has not answered for \d\d s \(.+\); it is killed"
            assert len(re.findall(line, said)) == 1, said
        server.router = next(p for p in server.topology() if p["role"] == "router")
        wait_serving(server, NUM_PROCESSES)
        assert server.log_since(0).count("it is killed") == len(frozen), "nobody else was"


def test_a_process_whose_files_are_gone_is_started_again(cluster):
    row = next(p for p in cluster.workers() if p["worker_id"] == "decode-1")
    log = os.path.join(cluster.dir, "decode-1.log")
    os.rename(log, log + ".kept")
    os.mkdir(log)
    os.remove(os.path.join(cluster.dir, "cluster-secret"))
    mark = cluster.log_size()
    try:
        os.kill(row["pid"], signal.SIGKILL)
        wait_until(
            lambda: "decode-1 logs here" in cluster.log_since(mark), 20, "serve has its log"
        )
        wait_serving(cluster, NUM_PROCESSES)
    finally:
        os.rmdir(log)
        os.rename(log + ".kept", log)
    assert f"cannot write {log}: " in cluster.log_since(mark)


STORY = dict(prompt="Once upon a time", ignore_eos=True, temperature=0.7, seed=3)


def long_stream(cluster, fields):
    """A running stream with some tokens, its thread, and the decode worker that serves it."""
    stream = Stream(cluster, fields)
    thread = threading.Thread(target=stream.run)
    thread.start()

    def workers():
        return [row["worker"] for row in live_requests(cluster) if row["num_tokens"] > 3]

    found = wait_until(lambda: stream.error or workers(), 30, "it runs")
    assert stream.error is None, stream.error
    return stream, thread, found[0]


def drained(cluster, fields, *args):
    """Drains the decode worker of a stream; returns the stream's answer and that worker."""
    clean = complete(cluster, **fields).bits()
    before = {p["worker_id"]: p["incarnation"] for p in cluster.topology()}
    stream, thread, worker = long_stream(cluster, fields)
    mark = cluster.log_size()
    done = baton("drain", worker, "--admin", cluster.router["admin"], *args)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"{worker} left after \d+ ms\n", done.stdout), done.stdout
    thread.join()
    assert stream.error is None, stream.error
    assert stream.answer().bits() == clean
    wait_serving(cluster, NUM_PROCESSES)
    now = {p["worker_id"]: p["incarnation"] for p in cluster.topology()}
    assert now.pop(worker) != before.pop(worker), "serve has started it again"
    assert now == before, "nobody else was touched"
    assert f"{worker} ended with exit code 0" in cluster.log_since(mark)
    return stream.answer(), worker


def test_a_router_that_stood_still_blames_nobody(cluster):
    clean = complete(cluster, **STORY, max_tokens=200).bits()
    stream, thread, _ = long_stream(cluster, dict(STORY, max_tokens=200))
    os.kill(cluster.router["pid"], signal.SIGSTOP)
    try:
        assert len(stream.chunks) < 200, "it was to be stopped in the middle"
        time.sleep(4)  # a worker's silence of 2 s is its death
    finally:
        os.kill(cluster.router["pid"], signal.SIGCONT)
    thread.join(600)
    assert not thread.is_alive(), "the stream goes on"
    assert stream.error is None, stream.error
    assert stream.answer().bits() == clean
    assert stream.answer().timings.resumes == 0, "its workers were there all the time"
    wait_serving(cluster, NUM_PROCESSES)


def test_drain_moves_running_streams(cluster):
    answer, worker = drained(cluster, dict(STORY, max_tokens=300))
    assert answer.timings.resumes == 1 and answer.timings.decode_worker != worker


def test_drain_waits_for_what_does_not_move(cluster):
    # Several choices stay: their tokens would have to be computed again.
    answer, worker = drained(cluster, dict(STORY, max_tokens=200, n=2), "--timeout", "600")
    assert answer.timings.resumes == 0 and answer.timings.decode_worker == worker


def test_drain_lets_nothing_be_lost_at_its_deadline(cluster):
    answer, worker = drained(cluster, dict(STORY, max_tokens=450, n=2), "--timeout", "1")
    assert answer.timings.resumes == 1 and answer.timings.decode_worker != worker


def connections_to(pid, address):
    """Local ports of the process's TCP connections to `address` on this host."""
    port = int(address.rpartition(":")[2])
    inodes = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:  # closed meanwhile
            continue
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if int(row[2].rpartition(":")[2], 16) == port and f"socket:[{row[9]}]" in inodes
    }


def test_drain_waits_for_a_worker_that_is_only_out_of_sight(cluster):
    row = next(p for p in cluster.workers() if p["worker_id"] == "decode-1")
    os.kill(row["pid"], signal.SIGSTOP)
    drain = subprocess.Popen(
        [BIN, "drain", "decode-1", "--admin", cluster.router["admin"]],
        stdout=subprocess.PIPE,
        text=True,
    )

    def is_missed():
        seen = http_json(cluster.http + "/v1/topology")[2]["processes"]
        return "decode-1" not in [p["worker_id"] for p in seen]

    asked = set()

    def has_asked_twice():
        assert drain.poll() is None, drain.communicate()
        asked.update(connections_to(drain.pid, row["admin"]))
        return len(asked) >= 2

    try:
        wait_until(is_missed, 10, "it counts as dead")
        wait_until(has_asked_twice, 30, "drain asks the process itself, and again")
    finally:
        os.kill(row["pid"], signal.SIGCONT)
    assert drain.wait(PATIENCE_S) == 0
    wait_until(lambda: not os.path.exists(f"/proc/{row['pid']}"), 10, "its process is gone")
    assert "decode-1 left" in drain.stdout.read()
    wait_serving(cluster, NUM_PROCESSES)


def test_a_rolling_restart_loses_nothing(cluster, work):
    result = rolling_restart(
        cluster, work, 8, lambda worker: os.kill(worker["pid"], signal.SIGTERM)
    )
    print(result)
    assert result["problems"] == []
    assert len(result["workers"]) == 4


def test_drain_says_what_is_wrong(cluster):
    unknown = baton("drain", "decode-7", "--admin", cluster.router["admin"])
    assert unknown.returncode == 1
    assert "decode-7" in unknown.stderr and "prefill-1" in unknown.stderr
    for args in (["drain"], ["drain", "no/name"], ["drain", "a", "--timeout", "-1"]):
        result = baton(*args)
        assert result.returncode == 2, result
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    worker = next(p for p in cluster.topology() if p["role"] == "decode")["admin"]
    for admin in (cluster.router["http"], worker):
        result = baton("drain", "decode-0", "--admin", admin)
        assert result.returncode == 1
        assert f"{admin} has no" in result.stderr
        assert "it is not the admin port of a router" in result.stderr
    nobody = baton("drain", "decode-0", "--admin", "127.0.0.1:1")
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr
    assert is_serving(cluster, NUM_PROCESSES)


# ---- doctor


def test_doctor_finds_a_busy_cluster_clean(cluster):
    streams = [long_stream(cluster, dict(STORY, max_tokens=300))]
    code, ledger = audit_ledger(cluster)
    assert code == 0 and ledger["clean"] and ledger["orphans"] == [], ledger
    held = {w["worker"]: sum(w["states"].values()) for w in ledger["workers"]}
    assert len(held) == 4 and all(held.values())
    for _, thread, _ in streams:
        thread.join()
    wait_clean(cluster)
    table = baton("doctor", "--ledger", "--admin", cluster.router["admin"])
    assert table.returncode == 0 and "ledger clean: 0 held blocks" in table.stdout, table


class FakeAdmin:
    """An admin port that answers what it was told."""

    def __init__(self):
        self.pages = {}
        self.after = None  # called with each path that was answered
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                page = outer.pages.get(self.path)
                body = json.dumps(page).encode()
                self.send_response(200 if page is not None else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                if outer.after is not None:
                    outer.after(self.path)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def test_a_ledger_without_workers_is_not_called_clean():
    router = FakeAdmin()
    router.pages = {
        "/v1/topology": {"model": "m", "processes": [{"role": "router"}]},
        "/debug/requests": [],
    }
    result = baton("doctor", "--ledger", "--wait", "0", "--admin", router.address)
    assert result.returncode == 1 and "no worker is registered" in result.stderr, result


@pytest.fixture
def leaking():
    """A router without requests and a worker that still holds a block for one."""
    router, worker = FakeAdmin(), FakeAdmin()
    row = {"role": "decode", "worker_id": "decode-0", "incarnation": "02", "admin": worker.address}
    router.pages = {
        "/v1/topology": {"model": "m", "processes": [{"role": "router"}, row]},
        "/debug/requests": [],
    }
    block = {"index": 4, "generation": 9, "request_uid": "aa", "refs": 1, "kept": False}
    worker.pages = {
        "/debug/blocks": [
            {**block, "state": "bound"},
            {**block, "index": 5, "state": "free", "request_uid": "", "refs": 0},
        ],
        "/debug/requests": [],
    }
    yield router, worker
    router.server.shutdown()
    worker.server.shutdown()


def test_doctor_names_an_orphan(leaking):
    router, _ = leaking
    args = ["doctor", "--ledger", "--wait", "1", "--admin", router.address]
    table = baton(*args)
    assert table.returncode == 1
    (line,) = [x for x in table.stdout.splitlines() if "aa" in x.split()]
    assert line.split()[:4] == ["decode-0", "4", "9", "bound"]
    assert line.endswith("its worker does not know the owner")
    (orphan,) = json.loads(baton(*args, "--json").stdout)["orphans"]
    assert orphan["worker"] == "decode-0" and orphan["index"] == 4
    assert orphan["generation"] == 9 and orphan["request_uid"] == "aa"


def test_doctor_forgives_what_is_freed_while_it_looks(leaking):
    router, worker = leaking

    def free(path):
        if path == "/debug/blocks":
            worker.pages[path] = worker.pages[path][-1:]

    worker.after = free
    result = baton("doctor", "--ledger", "--wait", "60", "--admin", router.address)
    assert result.returncode == 0, result.stdout
    assert len(worker.pages["/debug/blocks"]) == 1, "it was looked at"


def test_doctor_does_not_call_an_unread_ledger_clean(leaking):
    router, worker = leaking
    del worker.pages["/debug/blocks"]
    result = baton("doctor", "--ledger", "--wait", "1", "--admin", router.address)
    assert result.returncode == 1 and "/debug/blocks" in result.stderr
    assert baton("doctor", "--ledger", "--fix-plan").returncode == 2
