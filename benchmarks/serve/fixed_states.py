#!/usr/bin/env python3
"""What a model whose sequences have a fixed state pays for keeping it and for handing it over.

  benchmarks/serve/fixed_states.py --model FILE [--out FILE.json] [--rounds 9]

  snapshots  TTFT of prompts of 128 tokens that nobody asked before, from a server that keeps
             checkpoints of states (--prefix-cache on) over one that keeps none
  second     the gap between tokens 0 and 1 after a prompt of 512 tokens, of a server that hands
             over less that of one that does not, in decode steps of the latter
The servers live side by side and are asked in turn; both numbers are of one round, and stand with
the interval that holds their median with 95 %. Uses the standard library only.
"""

import json
import random
import statistics
import sys
from pathlib import Path

from serving import PROMPT_TOKENS, ROOT, Server, argument_parser, stream, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import record, spread  # noqa: E402

SHORT_PROMPT = 128
PROMPTS = 4  # of each server in a round
TOKENS = 16
AGGREGATED = ["--mode", "aggregated", "--prefill", "0"]
SERVERS = {
    "on": [*AGGREGATED, "--prefix-cache", "on"],
    "off": [*AGGREGATED, "--prefix-cache", "off"],
    "split": ["--prefix-cache", "off"],
}


def ttft_ms(server, rng):
    sent, arrivals, _ = stream(server.port, token_prompt(rng, SHORT_PROMPT), 1)
    return (arrivals[0] - sent) * 1e3


def gaps_ms(server, rng, path):
    """The gap before the second token, and the median one of those after it."""
    _, arrivals, timings = stream(server.port, token_prompt(rng, PROMPT_TOKENS), TOKENS)
    gaps = [(b - a) * 1e3 for a, b in zip(arrivals, arrivals[1:])]
    if timings["path"] != path or len(gaps) < TOKENS // 2:
        raise SystemExit(f"unexpected answer: {timings}")
    return gaps[0], statistics.median(gaps[1:])


def in_turn(names, number):
    return names if number % 2 == 0 else names[::-1]


def one_round(servers, rng, number):
    ttft = {"on": [], "off": []}
    second = {"split": [], "off": []}
    for i in range(PROMPTS):
        for name in in_turn(["on", "off"], number + i):
            ttft[name].append(ttft_ms(servers[name], rng))
        for name in in_turn(["split", "off"], number + i):
            path = "disagg" if name == "split" else "local"
            second[name].append(gaps_ms(servers[name], rng, path))
    middle = {name: statistics.median(rows) for name, rows in ttft.items()}
    gap = {name: statistics.median(row[0] for row in rows) for name, rows in second.items()}
    step = statistics.median(row[1] for row in second["off"])
    return {
        "ttft_ms": middle,
        "ttft_ratio": middle["on"] / middle["off"],
        "step_ms": step,
        "second_ms": gap,
        "second_delay_steps": (gap["split"] - gap["off"]) / step,
    }


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--kv-memory", default="512MiB")
    args = parser.parse_args()
    memory = ["--kv-memory", args.kv_memory]
    servers = {}
    try:
        for name, flags in SERVERS.items():
            servers[name] = Server(args, [*flags, *memory])
        rng = random.Random(1)
        one_round(servers, rng, 0)  # warm-up
        rounds = [one_round(servers, rng, number) for number in range(args.rounds)]
    finally:
        for server in servers.values():
            server.stop()
    result = {**record("fixed_states", args.threads), "model": Path(args.model).name}
    for key in ("ttft_ratio", "second_delay_steps"):
        result[key] = spread([row[key] for row in rounds])
        print(f"{key:20} {result[key]}")
    for key, value in (("ttft_ms", "off"), ("step_ms", None)):
        values = [row[key][value] if value else row[key] for row in rounds]
        result[f"{key}_median"] = statistics.median(values)
    result["rounds"] = rounds
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
