#!/usr/bin/env python3
"""The cost of one server on this machine around its model: start, hand-off, router, idle, memory.

  benchmarks/serve/serving.py --model FILE|NAME [--out FILE.json] [--rounds 3]

Measures, with one prefill and one decode worker unless said otherwise:
  start       from exec of `baton serve` to the first token of a first request
  second      gap between tokens 0 and 1 after a prompt of 512 tokens, disaggregated and aggregated,
              interleaved, in decode steps (the median later gap of the same streams)
  router      client's TTFT less the prefill worker's step (its baton_step_seconds), short prompt:
              HTTP, routing, two gRPC hops and this client
  idle        processor time of each process over 10 s without requests
  memory      PSS of the decode worker after traffic, less its weights and the KV pages it holds
Uses the standard library only.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import (  # noqa: E402
    count,
    free_port,
    own_cpu_s,
    program,
    record,
    result_file,
    wait_or_kill,
)

WORDS = "river stone winter engine paper garden music window letter silver morning forest".split()
PROMPT_TOKENS = 512
IDLE_S = 10


class Server:
    """A running `baton serve`, its port and its processes."""

    def __init__(self, args, extra=()):
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        self.started = time.monotonic()
        self.log = tempfile.TemporaryFile()
        self.process = self.launch(args, extra)
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def launch(self, args, extra):
        argv = [args.baton, "serve", args.model, "--http", f"127.0.0.1:{self.port}"]
        argv += ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        argv += ["--run-dir", self.folder.name, "--threads", str(args.threads), *extra]
        return subprocess.Popen(argv, stdout=self.log, stderr=self.log)

    def wait_ready(self):
        while True:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            if time.monotonic() - self.started > 60 or self.process.poll() is not None:
                self.log.seek(0)
                raise SystemExit(
                    f"the server did not start: {self.log.read()[-500:].decode(errors='replace')}"
                )
            time.sleep(0.005)

    def processes(self):
        return json.loads(Path(self.folder.name, "topology.json").read_text())["processes"]

    def admin(self, worker_id, path):
        row = next(p for p in self.processes() if p["worker_id"] == worker_id)
        connection = http.client.HTTPConnection(row["admin"], timeout=10)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def stop(self):
        self.end(self.process)
        self.folder.cleanup()

    @staticmethod
    def end(process):
        process.send_signal(signal.SIGINT)
        wait_or_kill(process, 15)


def stream(port, prompt, max_tokens):
    """(send time, [arrival time of each token], timings of the last chunk)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    sent = time.monotonic()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()[:300]}")
    arrivals, timings = [], {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        now = time.monotonic()
        chunk = json.loads(line[6:])
        timings = chunk.get("timings") or timings
        if any(c.get("text") for c in chunk["choices"]):
            arrivals.append(now)
    return sent, arrivals, timings


def token_prompt(rng, count):
    """Token ids, so that the length is exact."""
    return [rng.randrange(1000, 40000) for _ in range(count)]


def measure_start(args):
    samples = []
    for _ in range(args.rounds):
        server = Server(args)
        _, arrivals, _ = stream(server.port, "Hello", 2)
        samples.append((arrivals[0] - server.started) * 1e3)
        server.stop()
    return samples


def measure_second(args):
    """Per mode: gaps 0->1 and later gaps, in ms; servers A B B A."""
    modes = {"disagg": [], "aggregated": ["--mode", "aggregated", "--prefill", "0"]}
    result = {m: {"second_ms": [], "step_ms": []} for m in modes}
    for k in range(args.rounds):
        for mode in list(modes) if k % 2 == 0 else list(modes)[::-1]:
            # Aggregated: one decode worker with one thread, as the decode worker of the pair has.
            threads = args.threads if mode == "disagg" else max(1, args.threads // 2)
            server = Server(argparse.Namespace(**{**vars(args), "threads": threads}), modes[mode])
            rng = random.Random(k)
            for i in range(12):
                _, arrivals, timings = stream(server.port, token_prompt(rng, PROMPT_TOKENS), 20)
                if i < 2:
                    continue  # warm-up
                gaps = [(b - a) * 1e3 for a, b in zip(arrivals, arrivals[1:])]
                want = "disagg" if mode == "disagg" else "local"
                if timings["path"] != want or len(gaps) < 10:
                    raise SystemExit(f"{mode}: unexpected answer {timings}")
                result[mode]["second_ms"].append(gaps[0])
                result[mode]["step_ms"] += gaps[1:]
            server.stop()
    return result


def prefill_seconds(server):
    """(steps, seconds) that the prefill worker has computed so far."""
    row = next(p for p in server.processes() if p["role"] == "prefill")
    text = urllib.request.urlopen(f"http://{row['admin']}/metrics", timeout=5).read().decode()
    found = re.findall(r'^baton_step_seconds_(count|sum){[^}]*"prefill"} (\S+)$', text, re.M)
    values = {name: float(value) for name, value in found}
    return values["count"], values["sum"]


def measure_router(server, rounds):
    samples = []
    for i in range(60 * rounds):
        before = prefill_seconds(server)
        sent, arrivals, _ = stream(server.port, f"{i} {WORDS[i % len(WORDS)]} is", 2)
        after = prefill_seconds(server)
        if after[0] != before[0] + 1:
            raise SystemExit(f"{after[0] - before[0]} prefill steps for one short prompt")
        if i >= 10:
            samples.append((arrivals[0] - sent - (after[1] - before[1])) * 1e3)
    return samples


def measure_idle(server):
    time.sleep(2)
    rows = {p["worker_id"]: p["pid"] for p in server.processes()}
    rows["serve"] = server.process.pid
    before = {name: own_cpu_s(pid) for name, pid in rows.items()}
    time.sleep(IDLE_S)
    return {n: (own_cpu_s(pid) - before[n]) / IDLE_S * 100 for n, pid in rows.items()}


def measure_memory(server):
    pid = next(p["pid"] for p in server.processes() if p["worker_id"] == "decode-0")
    total = kv = shared = 0
    is_pool = False  # the worker's own arena; a peer's is mapped read-only
    is_weights = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_pool = " rw-s " in line and "baton-kv-arena" in line
            is_weights = "baton-weights" in line
        elif line.startswith("Pss:"):
            kib = int(line.split()[1])
            total += kib
            kv += kib if is_pool else 0
            shared += kib if is_weights else 0
    log = Path(server.folder.name, "decode-0.log").read_text()
    weights = float(re.search(r"weights ([\d.]+) MiB", log)[1])
    return {
        "pss_mib": total / 1024,
        "weights_mib": weights,
        "kv_touched_mib": kv / 1024,
        "over_mib": (total - kv - shared) / 1024 - (0 if shared else weights),
    }


def fill_pool(server):
    """Long prompts side by side, so that most blocks have been written once."""
    import threading

    rng = random.Random(7)
    threads = [
        threading.Thread(target=stream, args=(server.port, token_prompt(rng, 2000), 40))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def argument_parser(description):
    """A parser of the arguments that every script of this folder takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    baton = str(ROOT / "build" / "release" / "baton")
    parser.add_argument("--baton", type=program, default=baton)
    parser.add_argument("--threads", type=count, default=os.cpu_count())
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--out", type=result_file)
    return parser


def main():
    args = argument_parser(__doc__).parse_args()
    result = {
        **record("serving", args.threads),
    }
    result["start_ms"] = measure_start(args)
    result["second"] = measure_second(args)
    server = Server(args)
    result["router_ms"] = measure_router(server, args.rounds)
    result["idle_percent"] = measure_idle(server)
    fill_pool(server)
    result["memory"] = measure_memory(server)
    server.stop()
    step = statistics.median(result["second"]["aggregated"]["step_ms"])
    delay = statistics.median(result["second"]["disagg"]["second_ms"]) - statistics.median(
        result["second"]["aggregated"]["second_ms"]
    )
    result["summary"] = {
        "start_to_first_token_ms": statistics.median(result["start_ms"]),
        "second_token_delay_steps": delay / step,
        "decode_step_ms": step,
        "router_ttft_p50_ms": statistics.median(result["router_ms"]),
        "idle_percent_max": max(result["idle_percent"].values()),
        "decode_pss_over_mib": result["memory"]["over_mib"],
    }
    for name, value in result["summary"].items():
        print(f"{name:28} {value:10.2f}")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
