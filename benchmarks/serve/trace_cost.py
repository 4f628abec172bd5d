#!/usr/bin/env python3
"""Measures what sending spans costs: servers with --otlp-endpoint at a collector that lives here,
and servers without, get the same requests.

  build/venv/bin/python benchmarks/serve/trace_cost.py --model NAME [--out FILE] [--rounds 12]

A round is a server of each kind, the order alternating: two that live side by side differ by some
percent, whatever they do, by where their memory came to lie. Each gets 4 streams of 64 tokens to
warm up and then twice more. Compared is the processor time of its processes for that (without what
the collector and this client need), and the gap between tokens. Needs grpcio (scripts/deps.sh
--tests).
"""

import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path

from serving import ROOT, Server, argument_parser, stream, token_prompt

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/e2e")]
from machine import record, spread  # noqa: E402
from otlp_collector import Collector  # noqa: E402

STREAMS = 4
TOKENS = 64
PROMPT_TOKENS = 64
ROUNDS_A_SERVER = 2


def cpu_ms(server):
    """Processor time that the threads of router and workers have had; they live as long as it."""
    spent_ns = 0
    for process in server.processes():
        for task in Path(f"/proc/{process['pid']}/task").iterdir():
            try:
                spent_ns += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                pass  # one of the library's that has just ended
    return spent_ns / 1e6


def one_round(server, rng):
    """(processor ms, median gap in ms) of STREAMS streams at once."""
    prompts = [token_prompt(rng, PROMPT_TOKENS) for _ in range(STREAMS)]
    answers = [None] * STREAMS
    before = cpu_ms(server)

    def ask(i):
        answers[i] = stream(server.port, prompts[i], TOKENS)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(1.5)  # spans wait up to a second for others
    gaps = [b - a for _, times, _ in answers for a, b in zip(times, times[1:])]
    return cpu_ms(server) - before, statistics.median(gaps) * 1e3


def measure(extra, args, seed):
    """(processor ms, median gap in ms) of a server of its own, after a round that warms it up."""
    server = Server(args, extra)
    try:
        one_round(server, random.Random(0))
        rounds = [one_round(server, random.Random(seed + i)) for i in range(ROUNDS_A_SERVER)]
    finally:
        server.stop()
    return [statistics.mean(column) for column in zip(*rounds)]


def main():
    parser = argument_parser(__doc__)
    parser.set_defaults(rounds=12)
    args = parser.parse_args()
    collector = Collector()
    extra = {"on": ["--otlp-endpoint", collector.address], "off": []}
    cpu, gap = {"on": [], "off": []}, {"on": [], "off": []}
    for k in range(args.rounds):
        for name in ("on", "off") if k % 2 == 0 else ("off", "on"):
            spent, between = measure(extra[name], args, 100 * (k + 1))
            cpu[name].append(spent)
            gap[name].append(between)
    num_spans = len(collector.spans())
    if num_spans == 0:
        raise SystemExit("the collector got no spans")
    result = {**record("trace_cost", args.threads), "model": Path(args.model).name}
    result |= {"streams": STREAMS, "tokens": TOKENS, "spans": num_spans}
    result |= {"cpu_ms": cpu, "gap_ms": gap}
    for key, values in (("cpu", cpu), ("gap", gap)):
        ratio = spread([on / off for on, off in zip(values["on"], values["off"])])
        result[f"{key}_ratio"] = ratio
        print(
            f"{key}: {statistics.median(values['off']):.2f} ms without, "
            f"{statistics.median(values['on']):.2f} ms with spans; ratio {ratio['median']:.4f} "
            f"({ratio['low']:.4f} .. {ratio['high']:.4f} over {args.rounds} rounds)"
        )
    print(f"{num_spans} spans arrived")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
