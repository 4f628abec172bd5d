#!/usr/bin/env python3
"""What a server does with more requests than it can serve: open loops beyond a measured capacity.

  benchmarks/serve/overload.py --model FILE|NAME [--out FILE.json]
      [--seconds 60] [--loads 1,1.5,3,10] [--streams 1,2,4,8,16,32] [--serve-args="--max-batch 16"]
      [--llama-cpp DIR] [--peer vllm=http://127.0.0.1:8000]

First closed loops find the capacity: for each number of clients (--streams), each client asks again
as soon as it has its answer. The number with the most answers a second is measured again, for as
long as a load: that is the capacity. Then, for each load, a server that has just started gets
Poisson arrivals at that many times the capacity, whatever became of those before. Requests have
--prompt tokens and ask for --tokens tokens. Printed for each load:
  offered        arrivals, in parts of the capacity: at 1x chance gives some more or less
  first15, all   answers a second that ended in the first 15 s and in the whole time, and the same
                 in parts of the capacity
  refused        answers of 429 and 503, and the 99th percentile of their age
  ttft, itl      of the accepted: median and 99th percentile, ms
  lost           neither answered nor refused, which must be 0
  cores          processor seconds a second, up to the last arrival: of the client, of each process
                 of Baton, and of all that the machine ran
Times count from the intended start of a request. A row whose client was late (99th percentile
above 1 % of the median TTFT) is void. The client is `baton bench`: it has the machine in common
with the server, and its cores are not the server's.

Peers get the same loads: so many times *Baton's* capacity, with the same arrivals and prompts, one
server at a time, A B B A ... over the loads; their closed loops tell their own capacity, to which
their parts refer. --llama-cpp starts llama-server of that build for each load, as
benchmarks/compare does; --peer is a server with OpenAI's API and the same model that runs already,
such as vLLM for processors. A peer must be idle while others are asked. Uses the standard library
only.
"""

import argparse
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from serving import ROOT, Server, argument_parser

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "compare"))
import servers as programs  # noqa: E402
from machine import (  # noqa: E402
    count,
    counts,
    free_port,
    machine_cpu_s,
    own_cpu_s,
    positive,
    positives,
    quantile,
    record,
    wait_or_kill,
)

WARM_UP_S = 5
EARLY_S = 15
# A request that waits and then streams for longer is lost.
TIMEOUT_S = 120
MAX_LAG_SHARE = 0.01
TOKEN_IDS = "1000:39999"
STATUS = re.compile(r"status (\d+)")


class Answer:
    """One request: when it was due, sent, answered and over, in seconds since the start."""

    def __init__(self, due, sent):
        self.due, self.sent = due, sent
        self.ended = None
        self.status = 0  # 0 = neither answered nor refused
        self.arrivals = []


# Servers: `open()` gives host and port, `close()` ends what was started.


class Baton:
    """`baton serve`, started anew for each load."""

    name, model = "baton", None

    def __init__(self, args):
        self.args = args

    def open(self):
        self.server = Server(self.args, shlex.split(self.args.serve_args))
        return "127.0.0.1", self.server.port

    def limit(self):
        for line in self.server.admin("router-0", "/metrics").splitlines():
            if line.startswith("baton_batch_limit"):
                return float(line.rsplit(" ", 1)[1])
        return None

    def pids(self):
        rows = {row["worker_id"]: row["pid"] for row in self.server.processes()}
        return {**rows, "serve": self.server.process.pid}

    def close(self):
        self.server.stop()


class LlamaServer:
    """llama-server of a build, started anew for each load."""

    name, model = "llama.cpp", None

    def __init__(self, args):
        self.args = args
        if not Path(args.model).is_file():
            raise SystemExit(f"--model {args.model}: llama-server needs a .gguf file")
        programs.llama_tool(args.llama_cpp, "llama-server")  # said now, not after an hour

    def open(self):
        port = free_port()
        argv = programs.llama_argv(self.args, self.args.model, 0, port)
        self.server = programs.Server(self.name, argv, port)
        try:
            self.server.wait_ready()
        except SystemExit:
            self.close()
            raise
        return "127.0.0.1", port

    def limit(self):
        return None

    def pids(self):
        return {self.name: self.server.process.pid}

    def close(self):
        self.server.stop()


class Peer:
    """A server that runs already."""

    def __init__(self, name, url):
        where = urllib.parse.urlsplit(url)
        self.name, self.host, self.port = name, where.hostname, where.port
        self.model = self.first_model()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            raise SystemExit(f"--peer {self.name}: {self.host}:{self.port}: {error}") from None
        finally:
            connection.close()

    def first_model(self):
        status, body = self.ask("GET", "/v1/models")
        try:
            return json.loads(body)["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            raise SystemExit(f"--peer {self.name}: /v1/models answers {status}: {body[:200]!r}")

    def open(self):
        """Returns once it answers a short request: what came before is over."""
        body = {"model": self.model, "prompt": [1000], "max_tokens": 1}
        status, said = self.ask("POST", "/v1/completions", json.dumps(body))
        if status != 200:
            raise SystemExit(f"--peer {self.name}: a short request: {status}: {said[:200]!r}")
        return self.host, self.port

    def limit(self):
        return None

    def pids(self):
        return {}  # its processes are not known

    def close(self):
        pass


def peer_of(text):
    """(name, URL) of NAME=http://HOST:PORT."""
    name, _, url = text.partition("=")
    try:
        where = urllib.parse.urlsplit(url)
        is_right = where.scheme == "http" and where.hostname and where.port
    except ValueError:
        is_right = False
    if not name or not is_right or where.path not in ("", "/"):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=http://HOST:PORT")
    return name, url


def all_servers(args):
    names = [Baton.name, LlamaServer.name] + [name for name, _ in args.peer]
    if len(set(names)) != len(names):
        raise SystemExit(f"--peer: two servers have one name: {', '.join(names)}")
    started = [Baton(args)] + ([LlamaServer(args)] if args.llama_cpp else [])
    return started + [Peer(name, url) for name, url in args.peer]


def answer_of(request):
    """One record of `baton bench` as an Answer."""
    answer = Answer(request["intended_us"] / 1e6, request["sent_us"] / 1e6)
    if request["end_us"] >= 0:
        answer.ended = request["end_us"] / 1e6
    if request["outcome"] == "ok":
        answer.status = 200
    elif request["outcome"] == "http_error":
        answer.status = int(STATUS.match(request["error"])[1])
    if "first_token_us" in request:
        at = request["first_token_us"]
        answer.arrivals = [at / 1e6]
        for gap in request["gaps_us"]:
            at += gap
            answer.arrivals.append(at / 1e6)
    return answer


def load(where, args, model, pids, flags):
    """Answers of one run of the client, and who took how many cores until `--duration`."""
    host, port = where
    seconds = float(flags[flags.index("--duration") + 1].rstrip("s"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run.json")
        argv = [args.baton, "bench", f"http://{host}:{port}", "--api", "completions"]
        argv += ["--token-ids", TOKEN_IDS, "--input", str(args.prompt), "--output"]
        argv += [str(args.tokens), "--timeout", f"{TIMEOUT_S}s", "--json", str(out), *flags]
        argv += [] if model is None else ["--model", model]
        with open(Path(folder, "said.txt"), "w+") as said:
            client = subprocess.Popen(argv, stdout=said, stderr=said)
            try:
                cores = cores_of({"client": client.pid, **pids}, client, seconds)
                client.wait(seconds + 2 * TIMEOUT_S)
            finally:
                wait_or_kill(client, 0)
            if not out.exists():
                said.seek(0)
                raise SystemExit(f"{' '.join(argv[:3])} failed: {said.read()[-500:]}")
        run = json.loads(out.read_text())["runs"][0]
    if run["report"]["cut_short"]:
        raise SystemExit(f"{' '.join(argv[:3])} broke off: {run['report']['cut_short']}")
    return [answer_of(request) for request in run["requests"]], cores


def cores_of(pids, client, seconds):
    """Processor seconds a second of each process and of the whole machine, until the client ends or
    its last request may have been sent."""

    def sample():
        return {**{n: own_cpu_s(pid) for n, pid in pids.items()}, "machine": machine_cpu_s()}

    start = at = time.monotonic()
    before = after = sample()
    while (left := start + seconds - at) > 0:
        try:
            client.wait(min(left, 1))
            break
        except subprocess.TimeoutExpired:
            after, at = sample(), time.monotonic()
    took = max(at - start, 1e-9)
    return {name: round((after[name] - before[name]) / took, 4) for name in after}


def closed_loop(where, args, model, num_clients, seconds, seed):
    """Answers of clients that each have one request under way, after a warm-up."""
    flags = ["--users", str(num_clients), "--duration", f"{WARM_UP_S + seconds:g}s"]
    return load(where, args, model, {}, [*flags, "--seed", str(seed)])[0]


def open_loop(where, args, model, pids, rate):
    """Answers to Poisson arrivals, and the cores that they took."""
    flags = ["--rate", f"{rate:.6g}", "--duration", f"{args.seconds:g}s"]
    return load(where, args, model, pids, [*flags, "--seed", str(args.seed)])


def gaps_ms(answers):
    return [
        (b - a) * 1e3
        for answer in answers
        if answer.status == 200
        for a, b in zip(answer.arrivals, answer.arrivals[1:])
    ]


def measure_loop(server, where, args, num_clients, seconds, seed):
    """Answers a second of a closed loop, and the tail of their gaps."""
    answers = closed_loop(where, args, server.model, num_clients, seconds, seed)
    end = WARM_UP_S + seconds
    served = [a for a in answers if a.status == 200]
    rate = sum(WARM_UP_S < a.ended <= end for a in served) / seconds
    row = {"clients": num_clients, "seconds": seconds, "per_s": rate}
    row["itl_p99_ms"] = quantile(gaps_ms(served), 0.99)
    said = f"{rate:7.2f}/s, ITL p99 {row['itl_p99_ms']:.0f} ms"
    print(f"{server.name}: closed loop of {num_clients:3}: {said}", flush=True)
    return row


def measure_capacity(server, args):
    """The capacity, and all closed loops. The best of several short loops was lucky too, so its
    number of clients is measured again, for as long as an open loop takes. Each loop has a seed of
    its own: prompts that came before are in the server's prefix cache, and cost nothing."""
    where = server.open()
    try:
        loops = [
            measure_loop(server, where, args, n, args.closed_seconds, args.seed + 1 + i)
            for i, n in enumerate(args.streams)
        ]
        best = max(loops, key=lambda loop: loop["per_s"])
        if best["per_s"] == 0:
            raise SystemExit(f"{server.name} answered nothing in any closed loop")
        seed = args.seed + 1 + len(loops)
        capacity = measure_loop(server, where, args, best["clients"], args.seconds, seed)
    finally:
        server.close()
    return {"capacity": capacity, "closed": loops}


def row_of(answers, seconds, capacity):
    """The numbers of one open loop."""
    served = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status in (429, 503)]
    gaps = gaps_ms(served)
    ttft = [(a.arrivals[0] - a.due) * 1e3 for a in served if a.arrivals]
    early = min(EARLY_S, seconds)
    first = sum(a.ended <= early for a in served) / early
    whole = sum(a.ended <= seconds for a in served) / seconds
    ages = [a.ended - a.due for a in refused]
    lag_p99_ms = quantile([(a.sent - a.due) * 1e3 for a in answers], 0.99)
    return {
        "offered_per_s": len(answers) / seconds,
        "offered_to_capacity": len(answers) / seconds / capacity["per_s"],
        "first15_per_s": first,
        "first15_to_capacity": first / capacity["per_s"],
        "all_per_s": whole,
        "all_to_capacity": whole / capacity["per_s"],
        "served": len(served),
        "refused": len(refused),
        "refusal_age_p50_s": quantile(ages, 0.5),
        "refusal_age_p99_s": quantile(ages, 0.99),
        "ttft_p50_ms": quantile(ttft, 0.5),
        "ttft_p99_ms": quantile(ttft, 0.99),
        "itl_p50_ms": quantile(gaps, 0.5),
        "itl_p99_ms": quantile(gaps, 0.99),
        "itl_p99_to_capacity": quantile(gaps, 0.99) / capacity["itl_p99_ms"],
        "failed": sum(a.status not in (0, 200, 429, 503) for a in answers),
        "lost": sum(a.status == 0 for a in answers),
        "lag_p99_ms": lag_p99_ms,
        "void": lag_p99_ms > MAX_LAG_SHARE * quantile(ttft, 0.5),
        # due, first token, end (seconds), status, tokens
        "requests": [
            [round(a.due, 4), round(a.arrivals[0], 4) if a.arrivals else None]
            + [None if a.ended is None else round(a.ended, 4), a.status, len(a.arrivals)]
            for a in answers
        ],
    }


def measure_load(server, args, rate, capacity):
    where = server.open()
    try:
        answers, cores = open_loop(where, args, server.model, server.pids(), rate)
        limit = server.limit()
    finally:
        server.close()
    return {**row_of(answers, args.seconds, capacity), "batch_limit": limit, "cores": cores}


def say(times, row):
    void = f"; VOID: the client was {row['lag_p99_ms']:.0f} ms late" if row["void"] else ""
    print(
        f"{row['server']} {times:4.1f}x: offered {row['offered_to_capacity']:.2f};"
        f" first15 {row['first15_per_s']:6.2f}/s "
        f"({row['first15_to_capacity']:.2f}), all {row['all_per_s']:6.2f}/s "
        f"({row['all_to_capacity']:.2f}); refused {row['refused']} "
        f"at p99 {row['refusal_age_p99_s']:.3f} s; TTFT {row['ttft_p50_ms']:.0f} /"
        f" {row['ttft_p99_ms']:.0f} ms; ITL p99 {row['itl_p99_ms']:.0f} ms"
        f" ({row['itl_p99_to_capacity']:.2f}); failed {row['failed']}, lost {row['lost']};"
        f" limit {row['batch_limit']}; cores "
        + ", ".join(f"{name} {cores:.3f}" for name, cores in row["cores"].items())
        + void,
        flush=True,
    )


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=positive, default=60.0)
    parser.add_argument("--closed-seconds", type=positive, default=15.0)
    parser.add_argument("--loads", type=positives, default=[1.0, 1.5, 3.0, 10.0])
    parser.add_argument("--streams", type=counts, default=[1, 2, 4, 8, 16, 24, 32])
    parser.add_argument("--prompt", type=count, default=64)
    parser.add_argument("--tokens", type=count, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-args", default="")
    parser.add_argument("--llama-cpp", metavar="DIR")
    parser.add_argument("--peer", type=peer_of, action="append", default=[], metavar="NAME=URL")
    args = parser.parse_args()
    result = {**record("overload", args.threads), "model": Path(args.model).name}
    result |= {"seed": args.seed, "prompt": args.prompt, "tokens": args.tokens}
    result |= {"seconds": args.seconds, "serve_args": args.serve_args}
    result |= {"peers": dict(args.peer), "load_before": os.getloadavg()}
    servers = all_servers(args)
    result["servers"] = {server.name: measure_capacity(server, args) for server in servers}
    capacity = {name: row["capacity"] for name, row in result["servers"].items()}
    result["open"] = []
    for k, times in enumerate(args.loads):
        rate = times * capacity["baton"]["per_s"]
        for server in servers if k % 2 == 0 else servers[::-1]:
            row = measure_load(server, args, rate, capacity[server.name])
            own = rate / capacity[server.name]["per_s"]
            row = {"server": server.name, "times": times, "times_own": own, **row}
            result["open"].append(row)
            say(times, row)
    result["load_after"] = os.getloadavg()
    if args.out:
        for row in result["open"]:
            for key, value in row.items():  # JSON knows no NaN
                row[key] = None if value != value else value
        Path(args.out).write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
