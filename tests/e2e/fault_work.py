"""Requests for fault tests, the answers that they get without faults, and what must hold after.

The answer of a request is fixed by the request (greedy, or seeded). Each is asked for once in a
quiet cluster. Every later answer, whatever happened meanwhile, must have the same token ids,
log-probabilities, texts and ends. Every token index must come once and in order.
"""

import collections
import datetime
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc

from baton_server import (
    BIN,
    PATIENCE_S,
    Answer,
    generated_stubs,
    http_json,
    metrics_text,
    wait_until,
)
from roles_cluster import is_whole

BLOCK = 16
BLOCK_BYTES = 30 * 2 * 3 * 64 * 2 * BLOCK  # of SmolLM2: layers, K and V, KV heads, head size, bf16
# Longer than a lease, and than the reaper may take after it.
CLEAN_LIMIT_S = 60
# A prompt that fills a pool of thousands of tokens takes minutes on a machine that others use.
STREAM_LIMIT_S = 600
MIX = (
    dict(temperature=0),
    dict(temperature=0.8, top_p=0.95),
    dict(temperature=0.9, top_k=40, presence_penalty=0.5, frequency_penalty=0.3, logprobs=2),
    dict(temperature=0, repetition_penalty=1.2, logprobs=0, n=2),
    dict(temperature=1.0, min_p=0.02, n=2, logprobs=1),
)


def pool_args(num_blocks):
    """Worker flags for a pool of so many blocks and the longest context that it allows."""
    return [
        "--kv-memory",
        str(num_blocks * BLOCK_BYTES),
        "--max-context",
        str((num_blocks - 1) * BLOCK),
    ]


def make_request(rng, index, max_prompt, max_tokens):
    """One request of the mix; every third is text with a stop string, the others token ids."""
    fields = dict(MIX[index % len(MIX)], seed=1000 + index, max_tokens=max_tokens)
    length = int(max_prompt ** rng.random())  # log-uniform in 1..max_prompt
    if index % 3 == 2:
        words = ["rain", "iron", "bees", "tea", "rivers", "glass", "bread", "snow"]
        text = " ".join(rng.choice(words) for _ in range(max(1, length - 8)))
        stop = [".\n", " the", "\n\n"]
        return dict(fields, prompt=f"Tell number {index} about {text}:", stop=stop)
    ids = [rng.randrange(17, 49000) for _ in range(length)]
    return dict(fields, prompt_token_ids=ids, ignore_eos=True)


def describe(fields):
    rest = {k: v for k, v in fields.items() if k not in ("prompt", "prompt_token_ids")}
    return f"{len(fields.get('prompt_token_ids') or fields['prompt'])} long, {rest}"


class Stream:
    """One streamed request: what came, when, and how it ended."""

    def __init__(self, cluster, fields, on_chunk=None):
        self.cluster, self.fields, self.on_chunk = cluster, fields, on_chunk
        self.chunks, self.times = [], []
        self.error = None
        self.call = None
        self.aborted = False

    def run(self):
        pb2, pb2_grpc = generated_stubs()
        stub = pb2_grpc.CompletionServiceStub(self.cluster.channel)
        self.started = time.monotonic()
        self.call = stub.StreamComplete(
            pb2.CompletionRequest(**self.fields), timeout=STREAM_LIMIT_S
        )
        if self.aborted:  # before there was a call
            self.call.cancel()
        try:
            for chunk in self.call:
                self.times.append(time.monotonic())
                self.chunks.append(chunk)
                if self.on_chunk:
                    self.on_chunk(self, chunk)
        except grpc.RpcError as error:
            self.error = f"{error.code().name} {error.details()}"
        return self

    def abort(self):
        self.aborted = True
        if self.call is not None:
            self.call.cancel()

    def answer(self):
        return Answer(self.chunks)

    def stall_s(self, when, until_s=10.0):
        """The longest pause between two tokens that ends within `until_s` after `when`."""
        pauses = [
            after - before
            for before, after in zip(self.times, self.times[1:])
            if when < after < when + until_s
        ]
        return max(pauses, default=0.0)

    def longest_silence_s(self):
        """The longest time without a token, the time to the first one included."""
        moments = [self.started, *self.times]
        return max((b - a for a, b in zip(moments, moments[1:])), default=0.0)

    def ran_at(self, when):
        return bool(self.times) and self.times[0] < when < self.times[-1]


class Work:
    """Requests and their answers without faults."""

    def __init__(self, seed, num, max_prompt=1500, max_tokens=48):
        rng = random.Random(seed)
        print(f"work of seed {seed}")
        self.requests = [make_request(rng, i, max_prompt, max_tokens) for i in range(num)]
        self.expected = None

    def record(self, cluster, width=8):
        streams = run_streams([Stream(cluster, fields) for fields in self.requests], width)
        for stream in streams:
            assert stream.error is None, f"without a fault: {stream.error}: {stream.fields}"
        self.expected = [stream.answer().bits() for stream in streams]
        return self

    def problem(self, index, stream):
        """The fault of the answer to request `index`; None when it is the clean run's answer."""
        what = f"request {index} ({describe(self.requests[index])})"
        if stream.error is not None:
            return f"{what} failed after {len(stream.chunks)} chunks: {stream.error}"
        try:
            bits = stream.answer().bits()
        except AssertionError as error:
            return f"{what}: {error}"
        for name, now, clean in zip(
            ("tokens", "logprobs", "texts", "finish"), bits, self.expected[index]
        ):
            if now != clean:
                resumes = stream.answer().timings.resumes
                return f"{what}: other {name} after {resumes} resumes: {now} instead of {clean}"
        return None

    def problems(self, streams):
        found = [self.problem(i, stream) for i, stream in enumerate(streams)]
        return [problem for problem in found if problem]


def run_streams(streams, width, during=None):
    """Runs all, at most `width` at a time; `during(streams)` runs beside them."""
    with ThreadPoolExecutor(max(1, min(width, len(streams)))) as pool:
        runs = [pool.submit(stream.run) for stream in streams]
        if during:
            during(streams)
    for run in runs:
        run.result()  # raises what its thread raised
    return streams


class Load:
    """Clients that ask for the work's requests again and again until the block ends."""

    def __init__(self, cluster, work, width, seed=1):
        self.cluster, self.work, self.width, self.seed = cluster, work, width, seed
        self.stop = threading.Event()
        self.problems, self.times = [], []
        self.num_done = 0
        self.running = [None] * width  # the stream of each client

    def _client(self, number):
        rng = random.Random(self.seed * 1000 + number)
        while not self.stop.is_set():
            index = rng.randrange(len(self.work.requests))
            stream = self.running[number] = Stream(self.cluster, self.work.requests[index])
            stream.run()
            problem = self.work.problem(index, stream)
            self.num_done += 1
            self.times.extend(stream.times)
            if problem:
                self.problems.append(problem)

    def wait_for_tokens(self, limit_s=60):
        """Until each stream that runs now has a token that it had not, or has ended. A request that
        loses a second worker without a token between is given up, as the design says."""
        before = [(i, s, len(s.chunks)) for i, s in enumerate(self.running) if s is not None]

        def goes_on(client, stream, num_chunks):
            return self.running[client] is not stream or len(stream.chunks) > num_chunks

        wait_until(lambda: all(goes_on(*b) for b in before), limit_s, "every stream goes on")

    def __enter__(self):
        self.pool = ThreadPoolExecutor(self.width)
        self.clients = [self.pool.submit(self._client, i) for i in range(self.width)]
        return self

    def __exit__(self, *exc):
        self.stop.set()
        self.pool.shutdown()
        for client in self.clients:
            client.result()  # raises what its thread raised


# ---- What must hold after a fault.


def owners(worker):
    """Rows of /debug/blocks that are held by somebody."""
    rows = http_json(f"http://{worker['admin']}/debug/blocks")[2]
    return [row for row in rows if row["state"] not in ("free", "cached")]


def is_serving(cluster, num_processes):
    """All processes of a `serve` or by hand are there, ready and linked."""
    try:
        rows = cluster.topology()
        if len(rows) != num_processes:
            return False
        seen = http_json(cluster.http + "/v1/topology", timeout=PATIENCE_S)[2]
    except OSError:
        return False
    return is_whole(seen, {row["worker_id"]: row["incarnation"] for row in rows})


def wait_serving(cluster, num_processes, limit_s=60):
    start = time.monotonic()
    wait_until(lambda: is_serving(cluster, num_processes), limit_s, "every process serves again")
    return time.monotonic() - start


def wait_clean(cluster, limit_s=CLEAN_LIMIT_S):
    """Seconds until no worker holds a block for anybody but a probe of the router's own: on a slow
    machine one probe of a link may follow the other."""
    start = time.monotonic()

    def is_clean():
        try:
            held = {row["request_uid"] for w in cluster.workers() for row in owners(w)}
            probes = {row["request_uid"] for row in router_requests(cluster) if is_probe(row)}
            return held <= probes and (held or cluster.ledger_is_clean())
        except (OSError, ValueError):  # a worker that starts, or has no time to list them
            return False

    wait_until(is_clean, limit_s, "only free and cached blocks")
    return time.monotonic() - start


def fill_pool(cluster, num_decode=1):
    """One request for each decode worker that needs every block there is; all must succeed.

    Each decodes for longer than a prefill worker whose pool the first one fills takes to say that
    it has room for the next.
    """
    topology = http_json(cluster.http + "/v1/topology")[2]
    decode = next(p for p in topology["processes"] if p["role"] == "decode")
    num_blocks = sum(decode["kv_blocks"].values())
    rng = random.Random(time.monotonic_ns())
    max_tokens = 128
    length = (num_blocks - 1) * BLOCK - max_tokens
    streams = [
        Stream(
            cluster,
            dict(
                prompt_token_ids=[rng.randrange(17, 49000) for _ in range(length)],
                max_tokens=max_tokens,
                temperature=0,
                ignore_eos=True,
            ),
        )
        for _ in range(num_decode)
    ]
    run_streams(streams, num_decode)
    for stream in streams:
        assert stream.error is None, f"a request for the whole pool: {stream.error}"
        assert len(stream.answer().tokens[0]) == max_tokens
    used = {stream.answer().timings.decode_worker for stream in streams}
    assert len(used) == num_decode, used


def audit_ledger(cluster, wait_s=CLEAN_LIMIT_S):
    """`baton doctor --ledger` of the cluster: (exit code, its JSON)."""
    done = subprocess.run(
        [BIN, "doctor", "--ledger", "--json", "--wait", str(wait_s), "--admin"]
        + [cluster.router["admin"]],
        capture_output=True,
        text=True,
        timeout=wait_s + 60,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def router_requests(cluster):
    """Rows of the router's /debug/requests."""
    url = f"http://{cluster.router['admin']}/debug/requests"
    return json.loads(urllib.request.urlopen(url, timeout=PATIENCE_S).read())


def is_probe(row):
    return row["request_id"] == "probe"


def live_requests(cluster):
    """Those of clients: the router's own prompts try a link."""
    return [row for row in router_requests(cluster) if not is_probe(row)]


# Messages that a worker sent before it stopped are read by then; far below any lease.
HEARD_S = 0.1


def stop_amid(cluster, is_now, num_rows=1):
    """Stops a worker that so many rows of live_requests() name for which `is_now`, if the rows are
    still so when all is heard that it had sent. Returns its row of the topology; None: no worker
    was met so, and each runs on."""
    found = [row["worker"] for row in live_requests(cluster) if is_now(row)]
    for worker in cluster.workers():
        name, pid = worker["worker_id"], worker["pid"]
        if found.count(name) < num_rows:
            continue
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        time.sleep(HEARD_S)
        rows = [row for row in live_requests(cluster) if row["worker"] == name and is_now(row)]
        if len(rows) >= num_rows:
            return worker
        os.kill(pid, signal.SIGCONT)  # it had gone on
    return None


def ended(cluster):
    """How many requests the router has ended, by HTTP status."""
    pattern = r'^baton_requests_total{[^}]*code="(\d+)"[^}]*} (\S+)$'
    rows = re.findall(pattern, metrics_text(cluster.router), re.M)
    return collections.Counter({int(code): int(float(count)) for code, count in rows})


def sum_metric(page, name, labels=""):
    """The sum of the rows of `name` in a page of metrics whose labels match the pattern."""
    rows = re.findall(rf"^{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", page, re.M)
    return int(sum(map(float, rows)))


def interrupted(cluster, role):
    """How many requests were placed again because a worker of this role was lost under them. The
    other worker of a hand-off may be the first to say so: that its connection broke."""
    reasons = f'reason="(?:{role}_lost|transfer)"'
    return sum_metric(metrics_text(cluster.router), "baton_resumes_total", reasons)


def refused_slices(cluster):
    """How many slices the decode workers refused for their checksum: each is asked for again."""
    pages = [metrics_text(w) for w in cluster.workers() if w["role"] == "decode"]
    return sum(sum_metric(page, "baton_kv_checksum_fail_total") for page in pages)


def log_times(cluster, process, pattern):
    """[(unix time, line)] of a process's log lines that match."""
    rows = []
    with open(os.path.join(cluster.dir, f"{process}.log"), errors="replace") as file:
        for line in file:
            if re.search(pattern, line):
                moment = datetime.datetime.strptime(line[:23], "%Y-%m-%dT%H:%M:%S.%f")
                rows.append((moment.timestamp(), line.rstrip()))
    return rows


def detected_after(cluster, worker_id, since, limit_s=10):
    """Seconds from `since` (unix time) until the router called the worker gone.

    Log lines are stamped in whole milliseconds, so it may be 1 ms less than it was.
    """
    pattern = rf"worker {worker_id} (is gone|ended)"

    def first():
        rows = log_times(cluster, "router-0", pattern)
        later = [moment for moment, _ in rows if moment >= since - 0.001]
        return later[:1]

    return wait_until(first, limit_s, f"the router misses {worker_id}")[0] - since
