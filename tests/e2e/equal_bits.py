#!/usr/bin/env python3
"""64 prompts of each architecture on every path: are the answers' bits those of one worker alone?

  tests/e2e/equal_bits.py [--models NAME ...] [--prompts 64] [--json FILE [--keep]]

The models are tests/golden/tiny_NAME.gguf, the paths: eight requests at a time; a hand-off through
shared memory and over tcp; chunks as short as an objective of 1 ms makes them; a cached prefix of
two thirds of each prompt; and a decode worker that is killed at eight tokens of an answer, while
others run. Bits are tokens, log-probabilities, texts and ends. Exits with 1 where one differs or a
block is left. --keep: the file's rows of other models stay as they are. Odd chunks and NCCL's
loopback: tests/engine/engine_equal_bits_test.cc.
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
from fault_scenarios import CUT_REQUEST, summary  # noqa: E402
from fault_work import Stream, Work, run_streams, stop_amid, wait_clean  # noqa: E402
from machine import record  # noqa: E402
from roles_cluster import RolesCluster, leave_port  # noqa: E402
from same_bits import SEED, answers, bits_alone, bits_of, requests_of  # noqa: E402

MODELS = (
    *("llama_yarn", "qwen3moe", "gemma3", "phi3", "lfm2", "lfm2moe", "qwen35", "qwen35moe"),
    *("gemma4", "gptoss_mxfp4", "deepseek2", "nemotron_h"),
    "phi3_short",  # a window in all layers: streams release blocks
)
LONGEST = 400
# Four at a time, long enough that a worker is still at it when the router is asked.
KILLED_REQUEST = {**CUT_REQUEST, "max_tokens": 440}
KILLED_AT = range(1, 256, 32)


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


def kill_once(cluster, work, index):
    """A decode worker is killed once the router has `index` tokens of an answer and lacks some of
    it. The result; None where no worker was met so."""
    victims = []

    def during(streams):
        def is_now(row):
            return index <= row["num_tokens"] < KILLED_REQUEST["max_tokens"]

        def find():
            victim = stop_amid(cluster, is_now)
            return victim or all(stream.ended for stream in streams)

        found = wait_until(find, 120, "a worker amid an answer, or the end of all")
        if found is not True:
            victims.append(found["worker_id"])
            cluster.roles[victims[0]].process.kill()

    streams = run_streams([KnownEnd(cluster, fields) for fields in work.requests], 4, during)
    result = summary(work, streams)
    if not victims:
        assert result["problems"] == []
        return None
    role = cluster.roles[victims[0]]
    role.process.wait()
    for flag in ("--listen", "--kv-listen"):  # others of this machine may have its ports by now
        leave_port(role, flag)
    cluster.start(victims[0])
    wait_until(cluster.is_whole, 30, "the decode worker is back")
    return result


class KnownEnd(Stream):
    """A stream that says when it has ended."""

    ended = False

    def run(self):
        try:
            return super().run()
        finally:
            self.ended = True


def kill_at_tokens(model):
    """How many of the kills met an answer that went on elsewhere, with all answers' bits equal."""
    with RolesCluster(1, 2, model=model, role_args={"router": PATIENT}) as cluster:
        work = Work(seed=1, num=0)
        work.requests = [KILLED_REQUEST] * 4
        work.record(cluster)
        results = []
        for index in KILLED_AT:
            what = f"a kill at token {index}"
            results.append(wait_until(lambda i=index: kill_once(cluster, work, i), 600, what))
        wait_clean(cluster)
    for result in results:
        for problem in result["problems"]:
            print(problem)
    return sum(r["resumed"] >= 1 and not r["problems"] for r in results), len(results)


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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    kept = json.loads(Path(args.json).read_text())["rows"] if args.json and args.keep else []
    rows = [row for row in kept if row["model"] not in args.models]
    result = {**record("equal_bits", os.cpu_count()), "seed": SEED, "rows": rows}
    for name in args.models:
        rows.append(measure(name, args.prompts))
        rows.sort(key=lambda row: MODELS.index(row["model"]))
        if args.json:  # of those so far
            Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if all(map(is_equal, rows)) else 1)


if __name__ == "__main__":
    main()
