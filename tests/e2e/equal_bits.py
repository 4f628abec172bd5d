#!/usr/bin/env python3
"""64 prompts of each architecture on every path: are the answers' bits those of one worker alone?

  tests/e2e/equal_bits.py [--models NAME ...] [--prompts 64] [--json FILE]

The models are tests/golden/tiny_NAME.gguf, the paths: eight requests at a time; a hand-off through
shared memory and over tcp; chunks as short as an objective of 1 ms makes them; a cached prefix of
two thirds of each prompt; and a decode worker that is killed at eight tokens of an answer. Bits are
tokens, log-probabilities, texts and ends. Exits with 1 where one differs or a block is left.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "benchmarks"))
from baton_server import PATIENT, Server, complete, wait_until  # noqa: E402
from fault_scenarios import CUT_REQUEST, cut_at_index  # noqa: E402
from fault_work import Work, wait_clean  # noqa: E402
from machine import record  # noqa: E402
from roles_cluster import RolesCluster  # noqa: E402
from same_bits import SEED, answers, bits_alone, bits_of, requests_of  # noqa: E402

MODELS = (
    *("llama_yarn", "qwen3moe", "gemma3", "phi3", "lfm2", "lfm2moe", "qwen35", "qwen35moe"),
    *("gemma4", "gptoss_mxfp4", "deepseek2", "nemotron_h"),
    "phi3_short",  # a window in all layers: streams release blocks
)
LONGEST = 400
KILLED_AT = range(1, 65, 8)


def lengths(num):
    """Around blocks, tiles and splits first, then spread to the longest."""
    edges = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
    rest = [1 + (7 * i * LONGEST // (num + 1)) % LONGEST for i in range(max(0, num - len(edges)))]
    return (edges + rest)[:num]


def on_path(model, flags, rows, before=None):
    """The bits of the answers, eight at a time, and the tokens that were cached."""
    with Server(*flags, *PATIENT, model=model) as server:
        if before is not None:
            before(server)
        got = answers(server, rows, 8)
        wait_until(server.ledger_is_clean, 30, "no block is held")
    return bits_of(got), got


def ask_two_thirds(rows):
    def ask(server):
        for fields in rows:
            ids = fields["prompt_token_ids"]
            complete(server, **{**fields, "prompt_token_ids": ids[: max(1, len(ids) * 2 // 3)]})

    return ask


def kill_at_tokens(model):
    """How many of the killed answers were resumed with the bits of the undisturbed one."""
    with RolesCluster(1, 2, model=model, role_args={"router": PATIENT}) as cluster:
        work = Work(seed=1, num=0)
        work.requests = [CUT_REQUEST]
        work.record(cluster)
        results = [cut_at_index(cluster, work, index) for index in KILLED_AT]
        wait_clean(cluster)
    problems = [problem for result in results for problem in result["problems"]]
    for problem in problems:
        print(problem)
    return sum(r["resumed"] == 1 and not r["problems"] for r in results), len(results)


def measure(name, num_prompts):
    model = str(ROOT / "tests" / "golden" / f"tiny_{name}.gguf")
    rows = requests_of(lengths(num_prompts))
    wanted = bits_alone(model, rows)
    aggregated = ("--mode", "aggregated")
    paths = {
        "batch of 8": ((*aggregated, "--prefix-cache", "off"), None),
        "shm": (("--mode", "disagg", "--transport", "shm", "--prefix-cache", "off"), None),
        "tcp": (("--mode", "disagg", "--transport", "tcp", "--prefix-cache", "off"), None),
        "short chunks": ((*aggregated, "--prefix-cache", "off", "--slo", "itl=1ms"), None),
        "prefix hit": (aggregated, ask_two_thirds(rows)),
    }
    row = {"model": name, "prompts": len(rows), "equal": {}}
    for path, (flags, before) in paths.items():
        bits, got = on_path(model, flags, rows, before)
        row["equal"][path] = sum(a == b for a, b in zip(bits, wanted))
        if path == "prefix hit":
            row["cached_tokens"] = sum(a.timings.cached_tokens for a in got)
            assert row["cached_tokens"] > 0, "a prefix is cached"
        if path in ("shm", "tcp"):
            assert {(a.timings.path, a.timings.transport) for a in got} == {("disagg", path)}
    row["resumed_equal"], row["kills"] = kill_at_tokens(model)
    print(row, flush=True)
    return row


def is_equal(row):
    return set(row["equal"].values()) == {row["prompts"]} and row["resumed_equal"] == row["kills"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = [measure(name, args.prompts) for name in args.models]
    result = {**record("equal_bits", os.cpu_count()), "seed": SEED, "rows": rows}
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if all(map(is_equal, rows)) else 1)


if __name__ == "__main__":
    main()
