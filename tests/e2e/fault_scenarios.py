"""Scenarios do something to a running cluster and see what came of it: the bodies that the short
fault tests and the long chaos run share. Each returns the numbers it measured and a
list of problems, which must be empty."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from baton_server import wait_until
from fault_work import (
    HEARD_S,
    Load,
    Stream,
    detected_after,
    ended,
    interrupted,
    live_requests,
    make_request,
    refused_slices,
    run_streams,
    stop_amid,
    wait_clean,
    wait_serving,
)
from memory_group import MemoryGroup


def ms(seconds):
    return round(seconds * 1000, 1)


def summary(work, streams):
    """The part of a result that all rounds have."""
    answered = [s.answer() for s in streams if s.error is None]
    return {
        "streams": len(streams),
        "problems": work.problems(streams),
        "resumed": sum(a.timings.resumes > 0 for a in answered),
    }


# ---- Moments: each waits, while the streams run, until it is time for the fault.


def after(wait_s):
    """`wait_s` of the work have passed."""
    return lambda cluster, streams: time.sleep(wait_s)


def any_token(cluster, streams):
    """Some client has a token."""
    wait_until(lambda: any(stream.times for stream in streams), 60, "a first token")


def all_begun(cluster, streams):
    """Every client has a token."""
    wait_until(lambda: all(stream.times for stream in streams), 60, "the last first token")


def in_prefill(worker_id):
    """The worker computes a prompt, and is stopped there: a kill then meets that prompt."""

    def is_now(row):
        is_under_way = row["state"] in ("PREFILLING", "TRANSFERRING") and row["num_tokens"] == 0
        return row["prefill_worker"] == worker_id and is_under_way

    def moment(cluster, streams):
        pid = next(w["pid"] for w in cluster.workers() if w["worker_id"] == worker_id)

        def is_caught():
            if not any(map(is_now, live_requests(cluster))):
                return False
            os.kill(pid, signal.SIGSTOP)
            time.sleep(HEARD_S)
            if any(map(is_now, live_requests(cluster))):
                return True
            os.kill(pid, signal.SIGCONT)  # it had just ended the prompt
            return False

        wait_until(is_caught, 60, f"a prefill on {worker_id}")

    return moment


def in_decode(worker_id):
    """The worker decodes two requests that are far from their ends, and is stopped there."""

    def is_now(row):
        return row["worker"] == worker_id and 1 <= row["num_tokens"] <= 12

    def moment(cluster, streams):
        what = f"two sequences on {worker_id}"
        wait_until(lambda: stop_amid(cluster, is_now, num_rows=2), 60, what)

    return moment


# ---- What is done.


def kill_worker(cluster, work, moment, pick, width):
    """kill -9 of `pick(workers)` at the moment; serve starts it again."""
    num_processes = len(cluster.topology())
    facts = {}

    def during(streams):
        moment(cluster, streams)
        victim = pick(cluster.workers())
        facts["worker"], facts["role"] = victim["worker_id"], victim["role"]
        facts["before"] = interrupted(cluster, victim["role"])
        unix, facts["at"] = time.time(), time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)
        facts["detect_ms"] = ms(detected_after(cluster, victim["worker_id"], unix))
        wait_until(
            lambda: victim["pid"] not in [p["pid"] for p in cluster.topology()], 10, "it is missed"
        )
        wait_serving(cluster, num_processes)
        facts["whole_again_ms"] = ms(time.monotonic() - facts["at"])

    streams = run_streams([Stream(cluster, f) for f in work.requests], width, during)
    at = facts.pop("at")
    facts["interrupted"] = interrupted(cluster, facts.pop("role")) - facts.pop("before")
    stalls = [stream.stall_s(at) for stream in streams if stream.ran_at(at)]
    clean_s = wait_clean(cluster)
    return {
        **facts,
        **summary(work, streams),
        "running": len(stalls),
        "stalls_ms": [ms(s) for s in stalls],
        "clean_ms": ms(clean_s),
    }


def only(worker_id):
    """A choice for kill_worker and freeze_worker: this worker."""
    return lambda workers: next(w for w in workers if w["worker_id"] == worker_id)


def decoding_worker(cluster, num_tokens):
    """A choice for kill_worker: one that decodes a stream of fewer tokens, and is stopped there."""

    def is_now(row):
        return 1 <= row["num_tokens"] < num_tokens

    def pick(workers):
        return wait_until(lambda: stop_amid(cluster, is_now), 60, "a worker amid a stream")

    return pick


def freeze_worker(cluster, work, moment, pick, freeze_s, width):
    """SIGSTOP of `pick(workers)` for `freeze_s`; it must find itself fenced when it wakes."""
    num_processes = len(cluster.topology())
    facts = {}

    def during(streams):
        moment(cluster, streams)
        victim = pick(cluster.workers())
        facts["worker"] = victim["worker_id"]
        unix, at = time.time(), time.monotonic()
        os.kill(victim["pid"], signal.SIGSTOP)
        try:
            facts["detect_ms"] = ms(detected_after(cluster, victim["worker_id"], unix))
            time.sleep(max(0.0, at + freeze_s - time.monotonic()))
        finally:
            os.kill(victim["pid"], signal.SIGCONT)
        woken = time.monotonic()
        wait_serving(cluster, num_processes)
        facts["whole_again_ms"] = ms(time.monotonic() - woken)
        lives = {p["worker_id"]: p["pid"] for p in cluster.topology()}
        assert lives[victim["worker_id"]] == victim["pid"], "it was not to be replaced"

    streams = run_streams([Stream(cluster, f) for f in work.requests], width, during)
    return {**facts, **summary(work, streams), "clean_ms": ms(wait_clean(cluster))}


class ProxyCut:
    """The proxy of one decode worker holds back what prefill workers send to that worker."""

    means = "tcp proxy"

    def __init__(self, cluster, worker_id):
        self.faults = cluster.proxies[worker_id].faults

    def __enter__(self):
        self.faults.is_cut = True

    def __exit__(self, *exc):
        self.faults.is_cut = False


class PacketCut:
    """Packets to the KV port of one decode worker are dropped; its own packets still pass."""

    means = "iptables"

    def __init__(self, cluster, worker_id):
        row = next(p for p in cluster.topology() if p["worker_id"] == worker_id)
        port = row["kv"].rsplit(":", 1)[1]
        self.rule = ["INPUT", "-i", "lo", "-p", "tcp", "--dport", port, "-j", "DROP"]

    @staticmethod
    def why_not():
        """Why packets cannot be dropped here; None when they can."""
        if os.geteuid() != 0:
            return "needs root"
        if shutil.which("iptables") is None:
            return "iptables is not installed"
        probe = subprocess.run(["iptables", "-S", "INPUT"], capture_output=True, text=True)
        return None if probe.returncode == 0 else probe.stderr.strip().splitlines()[-1]

    def __enter__(self):
        subprocess.run(["iptables", "-w", "-I", *self.rule], check=True)

    def __exit__(self, *exc):
        subprocess.run(["iptables", "-w", "-D", *self.rule], check=True)


def cut_link(cluster, work, moment, cut, cut_s, width):
    """For `cut_s` nothing that prefill workers send reaches one decode worker."""
    num_processes = len(cluster.topology())
    facts = {"means": cut.means}

    def during(streams):
        moment(cluster, streams)
        with cut:
            time.sleep(cut_s)
        healed = time.monotonic()
        wait_serving(cluster, num_processes)
        facts["whole_again_ms"] = ms(time.monotonic() - healed)

    streams = run_streams([Stream(cluster, f) for f in work.requests], width, during)
    facts["waited"] = sum(stream.longest_silence_s() > cut_s / 2 for stream in streams)
    return {**facts, **summary(work, streams), "clean_ms": ms(wait_clean(cluster))}


def abort_over_http(cluster, fields, after_s):
    """A raw client that leaves with a reset."""
    host, port = cluster.router["http"].split(":")
    prompt = fields.get("prompt_token_ids") or fields["prompt"]
    body = json.dumps(
        {"prompt": prompt, "max_tokens": fields["max_tokens"], "stream": True, "ignore_eos": True}
    ).encode()
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        time.sleep(after_s)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def abort_one(cluster, number, seed):
    """A request that leaves at a random moment: over what, and what was strange about it."""
    rng = random.Random(seed * 100_000 + number)
    fields = make_request(rng, number, max_prompt=400, max_tokens=64)
    # Squared: half of them leave within the first quarter, while the prompt is computed.
    after_s = 1.2 * rng.random() ** 2
    if number % 2:
        abort_over_http(cluster, fields, after_s)
        return "http", None
    stream = Stream(cluster, fields)
    timer = threading.Timer(after_s, stream.abort)
    timer.start()
    stream.run()
    timer.cancel()
    if stream.error is None:
        return "too_late", None
    is_cancelled = stream.error.startswith("CANCELLED")
    return "grpc", None if is_cancelled else f"aborted request {number}: {stream.error}"


def abort_storm(cluster, work, num_aborts, num_clients, width=16, seed=1):
    """`num_aborts` requests that leave at a random moment, beside clients that stay. Those that
    were over before are `too_late`; `cancelled` is what the router ended for its client's sake."""
    cancelled = ended(cluster)[499]
    with Load(cluster, work, num_clients, seed) as load:
        with ThreadPoolExecutor(width) as pool:
            ends = list(pool.map(lambda i: abort_one(cluster, i, seed), range(num_aborts)))
        # Whoever runs beside them must still get answers afterwards.
        done = load.num_done
        wait_until(lambda: load.num_done >= done + num_clients, 120, "normal clients go on")
    clean_s = wait_clean(cluster)
    cancelled = ended(cluster)[499] - cancelled
    problems = load.problems + [strange for _, strange in ends if strange]
    if 2 * cancelled < len(ends):
        problems.append(f"only {cancelled} of {len(ends)} aborts met a request of the router")
    counts = {kind: [k for k, _ in ends].count(kind) for kind in ("grpc", "http", "too_late")}
    return {
        "aborts": len(ends) - counts["too_late"],
        "cancelled": cancelled,
        **counts,
        "streams": load.num_done,
        "problems": problems,
        "clean_ms": ms(clean_s),
    }


def damaged_link(cluster, work, width, rounds=1):
    """The work while the proxies do what their faults say."""
    streams, problems, resumed = 0, [], 0
    before = [dict(p.counts.as_dict()) for p in cluster.proxies.values()]
    refused = refused_slices(cluster)
    for _ in range(rounds):
        part = run_streams([Stream(cluster, f) for f in work.requests], width)
        result = summary(work, part)
        streams += result["streams"]
        problems += result["problems"]
        resumed += result["resumed"]
    after = [p.counts.as_dict() for p in cluster.proxies.values()]
    done = {key: sum(a[key] - b[key] for a, b in zip(after, before)) for key in after[0]}
    return {
        "streams": streams,
        "problems": problems,
        "resumed": resumed,
        "refused": refused_slices(cluster) - refused,
        **done,
        "clean_ms": ms(wait_clean(cluster)),
    }


def raw_stream(cluster, fields):
    """A raw HTTP client of one streamed completion; its socket."""
    host, port = cluster.router["http"].split(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    body = json.dumps({**fields, "stream": True}).encode()
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    return client


def kill_router(cluster, work, num_streams, width):
    """kill -9 of the router in the middle of streams: none of them may look whole."""
    num_processes = len(cluster.topology())
    fields = dict(prompt="Count: 1, 2, 3,", max_tokens=600, temperature=0, ignore_eos=True)
    clients = [raw_stream(cluster, fields) for _ in range(num_streams)]
    data = [b"" for _ in clients]
    for i, client in enumerate(clients):
        while data[i].count(b"data:") < 4:
            piece = client.recv(65536)
            assert piece, data[i]
            data[i] += piece
    router = next(p for p in cluster.topology() if p["role"] == "router")
    at = time.monotonic()
    os.kill(router["pid"], signal.SIGKILL)
    problems = []
    for i, client in enumerate(clients):
        try:
            while piece := client.recv(65536):
                data[i] += piece
        except ConnectionResetError:
            pass
        client.close()
        if b"[DONE]" in data[i] or b'"finish_reason":"' in data[i]:
            problems.append(f"a stream of a killed router looks whole: {data[i][-200:]}")
    wait_until(
        lambda: any(
            p["role"] == "router" and p["pid"] != router["pid"] for p in cluster.topology()
        ),
        30,
        "serve starts a router",
    )
    cluster.router = next(p for p in cluster.topology() if p["role"] == "router")
    wait_serving(cluster, num_processes)
    whole_again_ms = ms(time.monotonic() - at)
    clean_s = wait_clean(cluster)
    cluster.channel.close()
    cluster.channel = grpc.insecure_channel(cluster.grpc)
    streams = run_streams([Stream(cluster, f) for f in work.requests], width)
    result = summary(work, streams)
    return {
        **result,
        "problems": problems + result["problems"],
        "broken_streams": num_streams,
        "whole_again_ms": whole_again_ms,
        "clean_ms": ms(clean_s),
    }


# One answer with everything that must survive a cut: seeded sampling, penalties, log-probabilities,
# a stop text of which beginnings occur (they are held back), two choices.
CUT_REQUEST = dict(
    prompt="Once upon a time in the mountains there was",
    max_tokens=72,
    ignore_eos=True,
    seed=7,
    temperature=0.8,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    repetition_penalty=1.1,
    logprobs=3,
    stop=[" the end of all", "\n\n\n\n"],
    n=2,
)


def cut_at_index(cluster, work, index):
    """The decode worker of a request is killed when the client has token `index`; by hand. The
    request is asked again where its worker had sent all by then."""
    return wait_until(lambda: _cut_once(cluster, work, index), 300, f"a kill at token {index}")


def _cut_once(cluster, work, index):
    fields = work.requests[0]
    facts = {"looked": False}

    def on_chunk(stream, chunk):
        if facts["looked"] or chunk.token_index < index:
            return
        facts["looked"] = True
        victim = stop_amid(cluster, lambda row: 1 <= row["num_tokens"] < fields["max_tokens"])
        if victim is not None:
            facts["victim"], facts["at"] = victim["worker_id"], time.monotonic()
            cluster.roles[victim["worker_id"]].process.kill()

    stream = Stream(cluster, fields, on_chunk).run()
    result = summary(work, [stream])
    if "victim" not in facts:
        assert result["problems"] == []
        return None
    cluster.roles[facts["victim"]].process.wait()
    cluster.start(facts["victim"])
    wait_until(cluster.is_whole, 30, "the decode worker is back")
    return {**result, "index": index, "stalls_ms": [ms(stream.stall_s(facts["at"]))]}


def reuse_ports(cluster, work, victim, width=4):
    """A worker is killed and its next life takes the same ports at once, under load."""
    with Load(cluster, work, width) as load:
        wait_until(lambda: load.num_done >= width, 60, "the load runs")
        before = cluster.roles[victim].report
        cluster.kill(victim)
        cluster.start(victim)
        after = cluster.roles[victim].report
        assert (after["grpc"], after["kv"]) == (before["grpc"], before["kv"])
        assert after["incarnation"] != before["incarnation"]
        wait_until(cluster.is_whole, 30, "its next life serves")
        done = load.num_done
        wait_until(lambda: load.num_done >= done + width, 120, "the load goes on")
    return {
        "worker": victim,
        "streams": load.num_done,
        "problems": load.problems,
        "clean_ms": ms(wait_clean(cluster)),
    }


# The limit counts only memory that a new life did not touch while it started. Its first requests
# touch more than this.
MEMORY_LIMIT_BYTES = 256 << 10


def exceed_memory(cluster, work, victim, width=4):
    """A worker gets a memory limit and works until the kernel kills it for that; by hand."""
    facts = {"worker": victim}
    cluster.kill(victim)
    cluster.start(victim)
    wait_until(cluster.is_whole, 30, "its next life serves")
    with MemoryGroup(MEMORY_LIMIT_BYTES) as group:
        process = cluster.roles[victim].process
        group.add(process.pid)
        with Load(cluster, work, width) as load:
            wait_until(lambda: process.poll() is not None, 120, "the kernel ends it")
            assert process.returncode == -signal.SIGKILL and group.num_killed() == 1
            at = time.monotonic()
            cluster.start(victim)
            wait_until(cluster.is_whole, 30, "the life after it serves")
            facts["whole_again_ms"] = ms(time.monotonic() - at)
            done = load.num_done
            wait_until(lambda: load.num_done >= done + width, 120, "the load goes on")
    return {
        **facts,
        "streams": load.num_done,
        "problems": load.problems,
        "clean_ms": ms(wait_clean(cluster)),
    }


def rolling_restart(cluster, work, num_clients, leave):
    """Each worker in turn is asked to leave by `leave(row)` under load; serve starts it again."""
    num_processes = len(cluster.topology())
    rows, problems = [], []
    with Load(cluster, work, num_clients) as load:
        wait_until(lambda: load.num_done >= num_clients, 60, "the load runs")
        for worker in sorted(cluster.workers(), key=lambda row: row["worker_id"]):
            start = time.monotonic()
            mark = cluster.log_size()
            leave(worker)
            wait_until(
                lambda: worker["pid"] not in [p["pid"] for p in cluster.topology()],
                90,
                f"{worker['worker_id']} leaves",
            )
            left_ms = ms(time.monotonic() - start)
            wait_serving(cluster, num_processes)
            rows.append({"worker": worker["worker_id"], "drain_ms": left_ms})
            said = cluster.log_since(mark)
            if f"{worker['worker_id']} ended with exit code 0" not in said:
                problems.append(f"{worker['worker_id']} did not end with exit code 0: {said}")
        done = load.num_done
        wait_until(lambda: load.num_done >= done + num_clients, 120, "the load goes on")
    return {
        "workers": rows,
        "streams": load.num_done,
        "problems": problems + load.problems,
        "clean_ms": ms(wait_clean(cluster)),
    }
