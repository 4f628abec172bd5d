#!/usr/bin/env python3
"""What viewers of /v1/cluster/events cost: 16 streams while 0, 1 or 20 of them watch.

  benchmarks/serve/viewers.py --model FILE|NAME [--out FILE.json] [--rounds 9]

One server. A round is the three numbers of viewers in turn, every other round in the opposite
order. Each turn opens its viewers, waits until each has the state of the cluster, sends 16 streams
of 72 tokens after prompts of 16, and has the gaps between their tokens (ITL). Viewers are sockets
that one process reads, as browsers would. They must get events, and none may be dropped: otherwise
the run is void. Compared is the 99th percentile of a turn's gaps, and the router's processor time
per turn, as ratios of turns of one round: the median, and an interval that holds it with 95 %.
Uses the standard library only.
"""

import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from lending import together
from serving import ROOT, Server, argument_parser, stream, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import own_cpu_s, quantile, record, spread  # noqa: E402

VIEWERS = (0, 1, 20)
STREAMS = 16
TOKENS = 72
PROMPT_TOKENS = 16


def watch(port, count):
    """The other process: reads `count` streams until its input ends; says when all have begun."""
    selector, received = selectors.DefaultSelector(), {}
    for _ in range(count):
        viewer = socket.create_connection(("127.0.0.1", port), 10)
        viewer.sendall(b"GET /v1/cluster/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received[viewer] = 0
        selector.register(viewer, selectors.EVENT_READ)
    heads, closed, told = dict.fromkeys(received, b""), 0, False
    selector.register(sys.stdin.buffer, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin.buffer:
                print(json.dumps({"events": list(received.values()), "closed": closed}))
                return
            data = key.fileobj.recv(1 << 16)
            received[key.fileobj] += data.count(b"data: ")
            if len(heads[key.fileobj]) < 4096:
                heads[key.fileobj] += data
            if not data:
                closed += 1
                selector.unregister(key.fileobj)
        if not told and all(b'"type":"cluster"' in head for head in heads.values()):
            told = True
            print("ready", flush=True)


class Viewers:
    def __init__(self, port, count):
        self.process = None
        if count == 0:
            return
        argv = [sys.executable, "-B", __file__, "--watch", str(port), str(count)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the viewers did not begin")

    def end(self):
        """Events that each viewer had."""
        if self.process is None:
            return []
        said = json.loads(self.process.communicate("", timeout=30)[0])
        if said["closed"] or min(said["events"]) < 4:
            raise SystemExit(f"void: {said['closed']} viewers dropped, events {said['events']}")
        return said["events"]


def measure(server, router_pid, count, seed):
    rng = random.Random(seed)
    prompts = [token_prompt(rng, PROMPT_TOKENS) for _ in range(STREAMS)]
    viewers = Viewers(server.port, count)
    before = own_cpu_s(router_pid)
    answers = together([lambda p=p: stream(server.port, p, TOKENS) for p in prompts])
    router_s = own_cpu_s(router_pid) - before
    events = viewers.end()
    gaps = [(b - a) * 1e3 for _, at, _ in answers for a, b in zip(at, at[1:])]
    if len(gaps) < 0.9 * STREAMS * (TOKENS - 1):
        raise SystemExit(f"void: {len(gaps)} gaps of {STREAMS} streams of {TOKENS} tokens")
    return {
        "itl_p50_ms": quantile(gaps, 0.5),
        "itl_p99_ms": quantile(gaps, 0.99),
        "gaps": len(gaps),
        "router_cpu_ms": router_s * 1e3,
        "events_a_viewer": statistics.median(events) if events else 0,
    }


def summary(rounds):
    """Per number of viewers: medians, and the ratio to the turn without viewers of its round."""
    result = {}
    for count in VIEWERS:
        turns = [turns[str(count)] for turns in rounds]
        row = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for key in ("itl_p50_ms", "itl_p99_ms"):
            ratios = [turns[str(count)][key] / turns["0"][key] for turns in rounds]
            row[f"{key}_ratio"] = spread(ratios)
        result[str(count)] = row
    return result


def main():
    if sys.argv[1:2] == ["--watch"]:
        watch(int(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argument_parser(__doc__)
    parser.set_defaults(rounds=9)
    args = parser.parse_args()
    result = {**record("viewers", args.threads), "model": Path(args.model).name}
    result |= {"streams": STREAMS, "tokens": TOKENS, "prompt_tokens": PROMPT_TOKENS}
    result |= {"load_before": os.getloadavg(), "rounds": []}
    server = Server(args)
    try:
        pid = next(p["pid"] for p in server.processes() if p["role"] == "router")
        measure(server, pid, 0, 0)  # steps are measured, pages are touched
        for k in range(args.rounds):
            order = VIEWERS if k % 2 == 0 else VIEWERS[::-1]
            turns = {str(n): measure(server, pid, n, 100 * k + 1 + i) for i, n in enumerate(order)}
            result["rounds"].append(turns)
            p99 = ", ".join(f"{n}: {turns[str(n)]['itl_p99_ms']:.1f}" for n in VIEWERS)
            print(f"round {k + 1}: ITL p99 in ms with {p99}", flush=True)
    finally:
        server.stop()
    result |= {"load_after": os.getloadavg(), "summary": summary(result["rounds"])}
    for count, row in result["summary"].items():
        ratio = row["itl_p99_ms_ratio"]
        print(
            f"{count} viewers: ITL p50 {row['itl_p50_ms']:.1f} ms, p99 {row['itl_p99_ms']:.1f} ms, "
            f"ratio {ratio['median']:.3f} ({ratio['low']:.3f} .. {ratio['high']:.3f}), "
            f"router {row['router_cpu_ms']:.0f} ms of processor"
        )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
