"""More load than the cluster can do, clients that do not read, and a long run of mixed faults: what
the long fault run measures beside single faults. As in fault_scenarios.py each returns its numbers
and a list of problems, which must be empty."""

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from baton_server import BIN, wait_until
from fault_scenarios import abort_over_http, ms
from fault_work import (
    Load,
    Stream,
    ended,
    live_requests,
    make_request,
    run_streams,
    wait_clean,
    wait_serving,
)

# ---- Overload.

FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)
HELD = 0.9
TRIES = 3  # of a run; a void one, whose client had to wait for a core, says nothing


def bench(cluster, *args):
    """(report, router's ends by status) of one run of `baton bench` with prompts of 128 tokens and
    answers of 32."""
    path = os.path.join(cluster.dir, "bench.json")
    for _ in range(TRIES):
        if os.path.exists(path):  # of the run before
            os.unlink(path)
        before = ended(cluster)
        done = subprocess.run(
            [BIN, "bench", "grpc://" + cluster.grpc, "--api", "completions"]
            + ["--token-ids", "1000:40000", "--input", "128", "--output", "32"]
            + ["--json", path, *args],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if "void: the client's own lag" not in done.stderr:
            break
        print(f"  {done.stderr.strip()}", flush=True)
    assert done.returncode == 0, done.stderr
    with open(path) as file:
        return json.load(file)["runs"][0]["report"], ended(cluster) - before


class Limits:
    """The times that a client wants of its answer, and the router's flags that keep them.

    They follow from what this cluster shows at half of its capacity, so that the run judges whether
    goodput is held and not how fast the machine is: three times the p90 of TTFT, at least 1 s, and
    three times the p90 of TPOT, at least 100 ms. A quarter of the TTFT each may pass in the
    router's queue and in a prefill worker's. Half of it is left for the prompt itself, which takes
    longer than at half load: decode steps have the cores more often.
    """

    def __init__(self, cluster, duration_s):
        duration = ("--duration", f"{duration_s}s")
        # As many users as keep all workers busy and none refused.
        quiet, _ = bench(cluster, "--users", "6", *duration)
        self.capacity = quiet["requests_per_s"]
        half, _ = bench(cluster, "--rate", f"{0.5 * self.capacity:.3f}", *duration)
        self.ttft_ms = max(1000, round(3 * half["ttft"]["p90_us"] / 1000))
        self.tpot_ms = max(100, round(3 * half["tpot"]["p90_us"] / 1000))
        self.slo = f"ttft={self.ttft_ms}ms,tpot={self.tpot_ms}ms"
        quarter = str(self.ttft_ms // 4)
        self.flags = ("--queue-wait-ms", quarter, "--prefill-wait-ms", quarter)


def overload(cluster, limits, duration_s):
    """Open loop at 0.5 to 3 times what the cluster can do; goodput must be held, and whoever is
    not answered must be told so by 429."""
    rows, problems = [], []
    for factor in FACTORS:
        report, counted = bench(
            cluster,
            *("--rate", f"{factor * limits.capacity:.3f}", "--duration", f"{duration_s}s"),
            *("--slo", limits.slo),
        )
        refused = counted.pop(429, 0)
        rows.append(
            {
                "factor": factor,
                "attempted": report["attempted"],
                "ok": report["ok"],
                "refused": refused,
                "goodput_per_s": round(report["goodput_per_s"], 3),
                "ttft_p90_ms": ms(report["ttft"]["p90_us"] / 1e6),
                "ttft_max_ms": ms(report["ttft"]["max_us"] / 1e6),
            }
        )
        answered = counted.pop(200, 0)
        if counted or (answered, refused) != (report["ok"], report["attempted"] - report["ok"]):
            problems.append(
                f"at {factor} x capacity the router ended {answered} with 200, {refused} with 429,"
                f" others {dict(counted)}: {report}"
            )
    best = max(row["goodput_per_s"] for row in rows)
    for row in rows:
        row["of_best"] = round(row["goodput_per_s"] / best, 3)
        if row["factor"] > 1 and row["of_best"] < HELD:
            problems.append(f"goodput at {row['factor']} x capacity: {row['of_best']} of the best")
    return {
        "streams": sum(row["attempted"] for row in rows),
        "problems": problems,
        "clean_ms": ms(wait_clean(cluster)),
        "report": {
            "capacity_per_s": round(limits.capacity, 3),
            "slo": limits.slo,
            "flags": " ".join(limits.flags),
            "rates": rows,
        },
    }


# ---- Clients that do not read.

NUM_COMPANIONS = 8
NUM_IDLE = 200
NUM_NORMAL = 4
ITL_LIMIT = 1.2
# 1.7 KB a token. The router pauses a client at 256 KiB, and the kernel takes some 64 KiB.
PAUSED_AT = 250
COMPANION = {
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 700,
    "ignore_eos": True,
    "stream": True,
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 20,
}


class Companion:
    """A chat over a raw socket that reads all that comes, or nothing after the first piece."""

    def __init__(self, cluster, reads):
        host, port = cluster.router["http"].split(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((host, int(port)))
        body = json.dumps(COMPANION).encode()
        self.socket.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        self.thread = threading.Thread(target=self._read) if reads else None
        if reads:
            self.thread.start()

    def _read(self):
        try:
            while self.socket.recv(65536):
                pass
        except OSError:
            pass

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        if self.thread:
            self.thread.join()
        self.socket.close()


def gaps_beside(cluster, requests, reads):
    """ITLs in seconds of normal streams beside companions that read or do not, and how many of
    these there were when the streams began. Those that do not read must all be cut, while their
    sockets are open: after 30 s in which a connection takes no byte the server closes it, and the
    router counts 408, as for the idle connections with half a request."""
    before = ended(cluster)

    def num_ended(*codes):
        now = ended(cluster) - before
        return sum(now[code] for code in codes)

    companions = [Companion(cluster, reads) for _ in range(NUM_COMPANIONS)]
    def num_far():
        return sum(row["num_tokens"] >= PAUSED_AT for row in live_requests(cluster))

    # Where the machine is slow the first may have their ends before the last is as far.
    wait_until(
        lambda: num_far() + num_ended(200, 408, 499) >= NUM_COMPANIONS,
        300,
        f"each companion has {PAUSED_AT} tokens",
    )
    beside = num_far()
    idle = []
    if not reads:
        host, port = cluster.router["http"].split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(NUM_IDLE)]
        for half in idle[::4]:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    streams = run_streams([Stream(cluster, fields) for fields in requests], NUM_NORMAL)
    if not reads:
        cut = NUM_COMPANIONS + len(idle[::4])
        wait_until(lambda: num_ended(408) == cut, 60, "all of them are cut")
    for open_socket in idle:
        open_socket.close()
    for companion in companions:
        companion.close()
    gaps = []
    for stream in streams:
        assert stream.error is None, stream.error
        gaps += [b - a for a, b in itertools.pairwise(stream.times)]
    wait_clean(cluster, limit_s=60)
    return gaps, beside


def slow_readers(cluster, rounds):
    """Normal streams beside clients that read and beside as many that do not, in turns."""
    rng = random.Random(4)
    gaps_of = {True: [], False: []}
    fewest = NUM_COMPANIONS
    for _ in range(rounds):
        for reads in (True, False):
            requests = [
                dict(
                    prompt_token_ids=[rng.randrange(17, 49000) for _ in range(64)],
                    max_tokens=160,
                    temperature=0,
                    ignore_eos=True,
                )
                for _ in range(NUM_NORMAL)  # before the slow ones are cut
            ]
            gaps, num_beside = gaps_beside(cluster, requests, reads)
            gaps_of[reads] += gaps
            fewest = min(fewest, num_beside)
    p99 = {reads: sorted(gaps)[int(0.99 * len(gaps))] for reads, gaps in gaps_of.items()}
    ratio = p99[False] / p99[True]
    problems = [] if ratio <= ITL_LIMIT else [f"itl p99 is {ratio:.2f} times as long"]
    if fewest == 0:
        problems.append("the machine is too slow: no companion was left when the streams began")
    return {
        "streams": rounds * 2 * NUM_NORMAL,
        "problems": problems,
        "clean_ms": ms(wait_clean(cluster)),
        "report": {
            "slow": fewest,
            "cut": rounds * NUM_COMPANIONS,
            "idle": NUM_IDLE,
            "gaps": len(gaps_of[False]),
            "itl_p99_beside_readers_ms": ms(p99[True]),
            "itl_p99_beside_slow_ms": ms(p99[False]),
            "itl_ratio": round(ratio, 3),
        },
    }


# ---- Soak.

SLOPE_LIMIT_MIB = 1.0  # a minute
MAX_ARENAS = 4  # its own, two peers', and a dead peer's until the new one is met
BACK_S = 10
BACK_SHARE = 0.95
WARM_UP_S = 120


def memory_mib(pid):
    """Memory of a process that is its own: heap, stacks, private mappings. Not of the KV arenas,
    which are of a fixed size and become resident as their blocks are first used."""
    with open(f"/proc/{pid}/status") as file:
        row = next(line for line in file if line.startswith("RssAnon:"))
    return int(row.split()[1]) / 1024


def num_arenas(pid):
    """Mappings of memory files: a worker's own arena, and one of each peer it reads."""
    with open(f"/proc/{pid}/maps") as file:
        return sum("/memfd:baton-kv-arena" in line for line in file)


class MemoryWatch:
    """Samples processes that live through the run."""

    def __init__(self, pids):
        self.pids = pids  # name: pid
        self.samples = {name: [] for name in pids}
        self.max_arenas = dict.fromkeys(pids, 0)
        self.stop = threading.Event()
        self.pool = ThreadPoolExecutor(1)
        self.run = self.pool.submit(self._run)

    def _run(self):
        while not self.stop.wait(5):
            for name, pid in self.pids.items():
                self.samples[name].append((time.monotonic(), memory_mib(pid)))
                self.max_arenas[name] = max(self.max_arenas[name], num_arenas(pid))

    def slopes(self):
        """{name: MiB a minute} by least squares."""
        self.stop.set()
        self.pool.shutdown()
        self.run.result()  # raises what its thread raised
        return {name: round(slope(rows) * 60, 4) for name, rows in self.samples.items()}


def slope(rows):
    mean_x = sum(x for x, _ in rows) / len(rows)
    mean_y = sum(y for _, y in rows) / len(rows)
    over = sum((x - mean_x) * (y - mean_y) for x, y in rows)
    return over / sum((x - mean_x) ** 2 for x, _ in rows)


def rate_of(load, seconds):
    """Answers a second of a running load from now on."""
    before, start = load.num_done, time.monotonic()
    time.sleep(seconds)
    return (load.num_done - before) / (time.monotonic() - start)


class Mischief:
    """One fault after another against worker 0 of each role; worker 1 lives through the run."""

    def __init__(self, cluster, load, seed):
        self.cluster, self.load = cluster, load
        self.random = random.Random(seed)
        self.num_processes = len(cluster.topology())
        self.kinds = (self.kill, self.freeze, self.leave, self.aborts, self.unread)
        self.counts = dict.fromkeys((kind.__name__ for kind in self.kinds), 0)

    def victim(self):
        name = self.random.choice(("prefill-0", "decode-0"))
        return next(w for w in self.cluster.workers() if w["worker_id"] == name)

    def kill(self):
        self.end(self.victim(), signal.SIGKILL)

    def leave(self):
        self.end(self.victim(), signal.SIGTERM)

    def end(self, victim, how):
        os.kill(victim["pid"], how)
        wait_until(
            lambda: victim["pid"] not in [p["pid"] for p in self.cluster.topology()], 90, "it ends"
        )

    def freeze(self):
        victim = self.random.choice(self.cluster.workers())
        os.kill(victim["pid"], signal.SIGSTOP)
        time.sleep(3)
        os.kill(victim["pid"], signal.SIGCONT)

    def aborts(self):
        for number in range(20):
            fields = make_request(self.random, number, max_prompt=400, max_tokens=64)
            abort_over_http(self.cluster, fields, 0.3 * self.random.random())

    def unread(self):
        companions = [Companion(self.cluster, False) for _ in range(4)]
        time.sleep(3)
        for companion in companions:
            companion.close()

    def one(self):
        kind = self.random.choice(self.kinds)
        kind()
        self.counts[kind.__name__] += 1
        wait_serving(self.cluster, self.num_processes)
        self.load.wait_for_tokens()


def soak(cluster, work, minutes, num_clients=8, seed=1):
    """Clients that ask again and again while faults follow each other for so many minutes."""
    lasting = {"serve": cluster.process.pid}
    for row in cluster.topology():
        if not row["worker_id"].endswith("-0") or row["role"] == "router":
            lasting[row["worker_id"]] = row["pid"]
    part_s = min(120.0, 15 * minutes)  # that a rate is taken over
    with Load(cluster, work, num_clients, seed) as load:
        rate_of(load, min(WARM_UP_S, 10 * minutes))
        before = rate_of(load, part_s)
        watch = MemoryWatch(lasting)
        mischief = Mischief(cluster, load, seed)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            mischief.one()
        time.sleep(BACK_S)
        after = rate_of(load, part_s)
        slopes = watch.slopes()
    problems = list(load.problems)
    for name, mib in slopes.items():
        if mib >= SLOPE_LIMIT_MIB:
            problems.append(f"{name} grows by {mib} MiB a minute")
    for name, num in watch.max_arenas.items():
        if num > MAX_ARENAS:
            problems.append(f"{name} had {num} KV arenas mapped at a time")
    if after < BACK_SHARE * before:
        problems.append(f"{after:.2f} answers a second after the faults, {before:.2f} before")
    return {
        "streams": load.num_done,
        "problems": problems,
        "clean_ms": ms(wait_clean(cluster)),
        "report": {
            "minutes": minutes,
            "faults": mischief.counts,
            "memory_slope_mib_per_min": slopes,
            "max_arenas": watch.max_arenas,
            "answers_per_s_before": round(before, 2),
            "answers_per_s_after": round(after, 2),
        },
    }
