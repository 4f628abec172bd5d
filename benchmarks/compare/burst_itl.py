#!/usr/bin/env python3
"""Inter-token latency of running streams while long prompts arrive, server against server.

Starts each server alone in turn (A B B A ...), the same model file, the same number of threads, the
same prompts. Four streams generate; once all run, three prompts of about 2000 tokens arrive 0.6 s
apart. Reported per server: gaps between consecutive tokens of the four streams from the first long
prompt's arrival to the last one's first token, and the TTFT of the long prompts. Latencies of long
prompts count from the intended send time.

  benchmarks/compare/burst_itl.py --model FILE --llama-server PATH [--rounds 2] [--out FILE.json]

Uses the standard library only. The client's own lag (a timer due every millisecond, how late it
woke) is measured and printed beside the result.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import free_port, quantile, record  # noqa: E402

NUM_STREAMS = 4
NUM_LONG = 3
LONG_GAP_S = 0.6
LONG_TOKENS = 2000
WORDS = (
    "river stone winter engine paper garden music window letter silver morning forest bridge "
    "market ocean candle mirror desert thunder harbor"
).split()


def flash_attention(server):
    """The switch has taken a value since 2025; before, it stood alone."""
    usage = subprocess.run([server, "--help"], capture_output=True, text=True).stdout
    return ["-fa", "on"] if re.search(r"--flash-attn \[?on", usage) else ["-fa"]


def commands(args, port):
    """{name: argv} of the servers under test."""
    threads = str(args.threads)
    rows = {
        "baton": [
            args.baton,
            "serve",
            args.model,
            "--http",
            f"127.0.0.1:{port}",
            "--grpc",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--threads",
            threads,
        ]
    }
    if args.llama_server:
        base = [
            args.llama_server,
            "-m",
            args.model,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "-t",
            threads,
            "-np",
            str(NUM_STREAMS + NUM_LONG),
            "-c",
            str(4096 * (NUM_STREAMS + NUM_LONG)),
            *flash_attention(args.llama_server),
            "--no-webui",
        ]
        rows["llama-server"] = base
        rows["llama-server -b 256"] = base + ["-b", "256", "-ub", "256"]
        rows["llama-server -b 64"] = base + ["-b", "64", "-ub", "64"]
    return rows


class Stream(threading.Thread):
    """One streamed completion; token_s = arrival time of each token."""

    def __init__(self, port, prompt, max_tokens, intended_s):
        super().__init__(daemon=True)
        self.port, self.prompt, self.max_tokens, self.intended_s = (
            port,
            prompt,
            max_tokens,
            intended_s,
        )
        self.token_s = []
        self.error = None

    def run(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            body = {
                "prompt": self.prompt,
                "max_tokens": self.max_tokens,
                "stream": True,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {response.read()[:200]}")
            for line in response:
                if line.startswith(b"data:") and b'"choices"' in line and b'"text"' in line:
                    self.token_s.append(time.monotonic())
        except Exception as error:  # noqa: BLE001 - reported with the result
            self.error = repr(error)


class LagProbe(threading.Thread):
    """How late a 1 ms timer of this client wakes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.late_s, self.stop = [], threading.Event()

    def run(self):
        while not self.stop.is_set():
            due = time.monotonic() + 0.001
            time.sleep(0.001)
            self.late_s.append(time.monotonic() - due)


def text_of(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def measure(port, seed):
    rng = random.Random(seed)
    lag = LagProbe()
    streams = [
        Stream(port, f"Story {i}: " + text_of(rng, 30), 1500, time.monotonic())
        for i in range(NUM_STREAMS)
    ]
    for stream in streams:
        stream.start()
    deadline = time.monotonic() + 60
    while any(len(s.token_s) < 20 for s in streams):
        if time.monotonic() > deadline or any(s.error for s in streams):
            raise RuntimeError(f"streams did not start: {[s.error for s in streams]}")
        time.sleep(0.01)
    lag.start()
    begin = time.monotonic()
    longs = []
    for k in range(NUM_LONG):
        due = begin + k * LONG_GAP_S
        time.sleep(max(0, due - time.monotonic()))
        longs.append(Stream(port, text_of(rng, LONG_TOKENS), 2, due))
        longs[-1].start()
    for stream in longs:
        stream.join(120)
    end = max((s.token_s[0] for s in longs if s.token_s), default=time.monotonic())
    lag.stop.set()
    gaps = []
    for stream in streams:
        times = stream.token_s
        gaps += [b - a for a, b in zip(times, times[1:]) if b >= begin and a <= end]
        if times and times[-1] < end and len(times) < 1500:
            gaps.append(end - times[-1])  # silent to the end of the window
    return {
        "itl_ms": [g * 1e3 for g in gaps],
        "window_s": end - begin,
        "long_ttft_ms": [(s.token_s[0] - s.intended_s) * 1e3 for s in longs if s.token_s],
        "errors": [s.error for s in streams + longs if s.error],
        "client_lag_p99_ms": quantile(lag.late_s, 0.99) * 1e3,
    }


def run_server(name, argv, port, seed):
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    if (
                        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status
                        == 200
                    ):
                        break
                except OSError:
                    pass
                if time.monotonic() > deadline or process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{name} did not start: {log.read()[-500:]}")
                time.sleep(0.05)
            return measure(port, seed)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--baton", default=str(ROOT / "build" / "baton"))
    parser.add_argument("--llama-server")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    names = list(commands(args, 0))
    order = []
    for r in range(args.rounds):
        order += names if r % 2 == 0 else names[::-1]
    runs = {name: [] for name in names}
    for k, name in enumerate(order):
        port = free_port()
        runs[name].append(run_server(name, commands(args, port)[name], port, seed=k // len(names)))
    result = {
        **record("burst_itl", args.threads),
        "workload": {
            "streams": NUM_STREAMS,
            "long_prompts": NUM_LONG,
            "words": LONG_TOKENS,
            "gap_s": LONG_GAP_S,
        },
        "runs": runs,
    }
    print(
        f"{'server':24} {'itl p50':>8} {'itl p99':>8} {'itl max':>8} {'long TTFT p50':>14} "
        f"{'lag p99':>8}  (ms)"
    )
    for name in names:
        gaps = [g for run in runs[name] for g in run["itl_ms"]]
        ttft = [t for run in runs[name] for t in run["long_ttft_ms"]]
        lag = max(run["client_lag_p99_ms"] for run in runs[name])
        errors = sum(len(run["errors"]) for run in runs[name])
        print(
            f"{name:24} {quantile(gaps, .5):8.1f} {quantile(gaps, .99):8.1f} {max(gaps):8.1f} "
            f"{quantile(ttft, .5):14.1f} {lag:8.2f}  n={len(gaps)} errors={errors}"
        )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
