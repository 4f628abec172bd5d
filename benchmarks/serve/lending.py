#!/usr/bin/env python3
"""What lent cores are worth: the split with and without them beside other shapes, on one host.

  benchmarks/serve/lending.py --model FILE|NAME [--out FILE.json] [--rounds 9] [--isa avx2]
      [--modes split,aggregated] [--rows stream1,stream16,ttft2000]

Servers in turn, A B C C B A ... over the rounds, each alone on the machine:
  split           one process a role, --lend-cores on
  split-fixed     the same with --lend-cores off: each role keeps its own part of --threads
  colocate        both roles in one process (--colocate), cores lent
  oversubscribed  both roles with all --threads each, none lent: the kernel's scheduler divides
  aggregated      no split; the other modes are compared with it
Measured in each turn:
  stream1, stream4, stream16  generated tokens a second of so many streams, prompt 16, 128 tokens
                    each
  depth2000         the same of 1 stream after a prompt of 2000 tokens, 64 tokens
  ttft128, ttft512, ttft2000  ms from the request to the first token, one at a time, no prefix in
                    common
  itl99             99th percentile of the gaps, in ms, of 2 streams while 3 prompts of 1024 tokens
                    come one after the other
The summary has medians and the ratio of each mode to aggregated, above 1 = the mode is better: the
median of the rounds' ratios, and an interval that holds it with 95 % (from 6 rounds on; before, it
is the smallest and the largest). A target counts as reached when the interval reaches it. The
machine's limits and its load are measured before and after. Uses the standard library only.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from serving import ROOT, Server, argument_parser, stream, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import (  # noqa: E402
    free_port,
    machine_limits,
    quantile,
    record,
    show,
    some_of,
    spread,
)

MODES = {
    "split": ["--lend-cores", "on"],
    "split-fixed": ["--lend-cores", "off"],
    "colocate": ["--colocate"],
    "oversubscribed": None,  # no shape of `serve`: see Apart
    "aggregated": ["--mode", "aggregated"],
}
BASE = "aggregated"
ROWS = (
    ("stream1", "stream4", "stream16", "depth2000")
    + ("ttft128", "ttft512", "ttft2000")
    + ("itl99",)
)
SMALLER_IS_BETTER = ("ttft128", "ttft512", "ttft2000", "itl99")
WARM_UPS = 2
# Prompts of 2000 tokens take seconds each.
TTFT_SAMPLES = {128: 12, 512: 10, 2000: 5}


class Apart(Server):
    """A router and a worker of each role, started one by one: each worker has all threads."""

    ROLES = ("router", "prefill", "decode")

    def launch(self, args, extra):
        grpc = f"127.0.0.1:{free_port()}"
        self.admins = {role: f"127.0.0.1:{free_port()}" for role in self.ROLES}
        self.children = []
        for role in self.ROLES:
            argv = [args.baton, role, "--admin", self.admins[role]]
            if role == "router":
                argv += ["--grpc", grpc, "--http", f"127.0.0.1:{self.port}"]
            else:
                argv += ["--router", grpc, "--worker-id", f"{role}-0", "--model", args.model]
                argv += ["--threads", str(args.threads), *extra]
            child = subprocess.Popen(argv, stdout=self.log, stderr=self.log)
            self.children.append(child)
        return self.children[-1]

    def processes(self):
        return [
            {"role": role, "worker_id": f"{role}-0", "pid": child.pid, "admin": self.admins[role]}
            for role, child in zip(self.ROLES, self.children)
        ]

    def stop(self):
        for child in self.children[::-1]:
            self.end(child)
        self.folder.cleanup()


def together(calls):
    """The results of calls that run at the same time, each in a thread."""
    results = [None] * len(calls)

    def run(index):
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def rate(server, rng, num_streams, prompt_tokens, max_tokens):
    """Generated tokens a second of all streams, from the last first token to the first last one."""
    prompts = [token_prompt(rng, prompt_tokens) for _ in range(num_streams)]
    answers = together(
        [lambda p=prompt: stream(server.port, p, max_tokens)[1] for prompt in prompts]
    )
    begin = max(arrivals[0] for arrivals in answers)
    end = min(arrivals[-1] for arrivals in answers)
    count = sum(sum(begin < at <= end for at in arrivals) for arrivals in answers)
    if count == 0:
        raise SystemExit(f"no moment at which all {num_streams} streams ran")
    return count / (end - begin)


def ttfts_ms(server, rng, prompt_tokens):
    samples = []
    for i in range(WARM_UPS + TTFT_SAMPLES[prompt_tokens]):
        sent, arrivals, _ = stream(server.port, token_prompt(rng, prompt_tokens), 2)
        if i >= WARM_UPS:
            samples.append(round((arrivals[0] - sent) * 1e3, 2))
        time.sleep(0.02)
    return samples


def gaps_ms(server, rng):
    """Gaps of two streams while long prompts come."""

    def prompts():
        time.sleep(0.3)
        for _ in range(3):
            stream(server.port, token_prompt(rng, 1024), 1)

    calls = [lambda p=token_prompt(rng, 16): stream(server.port, p, 200)[1] for _ in range(2)]
    answers = together([*calls, prompts])[:2]
    return [round((b - a) * 1e3, 2) for at in answers for a, b in zip(at, at[1:])]


def lent_seconds(server):
    """Lent core seconds of each worker so far; none where nothing is lent."""
    found = {}
    for row in server.processes():
        if row["role"] == "router":
            continue
        for line in server.admin(row["worker_id"], "/metrics").splitlines():
            if line.startswith("baton_lent_core_seconds_total"):
                found[row["worker_id"]] = float(line.rsplit(" ", 1)[1])
    return found


def measure(server, rows, seed):
    """Of one turn: {row: number}, and the samples from which some of them come."""
    rng = random.Random(seed)
    stream(server.port, token_prompt(rng, 64), 16)
    numbers, samples = {}, {}
    for row in rows:
        if row.startswith("stream"):
            numbers[row] = rate(server, rng, int(row.removeprefix("stream")), 16, 128)
        elif row == "depth2000":
            numbers[row] = rate(server, rng, 1, 2000, 64)
        elif row.startswith("ttft"):
            samples[row] = ttfts_ms(server, rng, int(row.removeprefix("ttft")))
            numbers[row] = statistics.median(samples[row])
        else:
            samples[row] = gaps_ms(server, rng)
            numbers[row] = quantile(samples[row], 0.99)
    return numbers, samples


def start(args, mode):
    isa = ["--isa", args.isa]
    if MODES[mode] is None:
        return Apart(args, isa)
    return Server(args, isa + MODES[mode])


def summary(rounds, modes):
    """{row: medians of the modes, and each one's ratio to aggregated}."""
    turns = sorted(rounds, key=lambda turn: turn["round"])
    by_mode = {mode: [turn for turn in turns if turn["mode"] == mode] for mode in modes}
    rows = [row for row in ROWS if row in by_mode[BASE][0]]
    result = {}
    for row in rows:
        values = {mode: [turn[row] for turn in taken] for mode, taken in by_mode.items()}
        power = -1 if row in SMALLER_IS_BETTER else 1
        result[row] = {
            "median": {mode: statistics.median(taken) for mode, taken in values.items()},
            "to_aggregated": {
                mode: spread([(a / b) ** power for a, b in zip(taken, values[BASE])])
                for mode, taken in values.items()
                if mode != BASE
            },
        }
    return result


def print_table(result, modes):
    print(f"{'':10} " + " ".join(f"{mode:>14}" for mode in modes))
    for row, found in result.items():
        print(f"{row:10} " + " ".join(f"{found['median'][mode]:14.2f}" for mode in modes))
    print("to aggregated, above 1 = better: median (95 % interval)")
    for row, found in result.items():
        ratios = found["to_aggregated"]
        print(f"{row:10} " + "  ".join(f"{mode} {show(ratios[mode])}" for mode in ratios))


def main():
    parser = argument_parser(__doc__)
    parser.set_defaults(rounds=9)
    parser.add_argument("--isa", default="auto", choices=("auto", "avx512", "avx2", "portable"))
    parser.add_argument("--modes", type=some_of(tuple(MODES)), default=list(MODES))
    parser.add_argument("--rows", type=some_of(ROWS), default=list(ROWS))
    args = parser.parse_args()
    if BASE not in args.modes:
        parser.error(f"argument --modes: {BASE} is missing, with which the others are compared")
    result = {**record("lending", args.threads), "model": Path(args.model).name, "isa": args.isa}
    result |= {"load_before": os.getloadavg()}
    result |= {"limits_before": machine_limits(args.baton, args.model, args.threads), "rounds": []}
    for k in range(args.rounds):
        for mode in args.modes if k % 2 == 0 else args.modes[::-1]:
            server = start(args, mode)
            try:
                numbers, samples = measure(server, args.rows, seed=k)
                lent = lent_seconds(server)
            finally:
                server.stop()
            row = {"mode": mode, "round": k, **numbers, "lent_core_s": lent, "samples": samples}
            result["rounds"].append(row)
            said = ", ".join(f"{name} {value:.1f}" for name, value in numbers.items())
            print(f"round {k + 1} {mode:14} {said}", flush=True)
    result["limits_after"] = machine_limits(args.baton, args.model, args.threads)
    result |= {"load_after": os.getloadavg(), "summary": summary(result["rounds"], args.modes)}
    print_table(result["summary"], args.modes)
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
