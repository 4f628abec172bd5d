#!/usr/bin/env python3
"""What lent cores are worth: the split with and without them beside aggregated mode, on one host.

  benchmarks/serve/lending.py --model FILE|NAME [--out FILE.json] [--rounds 3] [--isa avx2]

Three servers in turn, A B C C B A ... over the rounds: split (--lend-cores on), split-fixed
(--lend-cores off) and aggregated. The number of threads is the same for all. A server is measured
alone on the machine:
  stream1, stream4  generated tokens a second of 1 and 4 streams, prompt 16, 128 tokens each
  depth2000         the same of 1 stream after a prompt of 2000 tokens, 64 tokens
  ttft128, ttft512  ms from the request to the first token, one at a time, no prefix in common
  itl99             99th percentile of the gaps, in ms, of 2 streams while 3 prompts of 1024 tokens
                    come one after the other
The summary has medians and the ratio of each split to aggregated, above 1 = the split is better.
Uses the standard library only.
"""

import json
import random
import statistics
import threading
import time
from pathlib import Path

from serving import Server, argument_parser, record, stream, token_prompt

MODES = {
    "split": ["--lend-cores", "on"],
    "split-fixed": ["--lend-cores", "off"],
    "aggregated": ["--mode", "aggregated"],
}
SMALLER_IS_BETTER = ("ttft128", "ttft512", "itl99")
WARM_UPS = 2
TTFT_SAMPLES = 12


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
    return count / (end - begin)


def ttft_ms(server, rng, prompt_tokens):
    samples = []
    for i in range(WARM_UPS + TTFT_SAMPLES):
        sent, arrivals, _ = stream(server.port, token_prompt(rng, prompt_tokens), 2)
        if i >= WARM_UPS:
            samples.append((arrivals[0] - sent) * 1e3)
        time.sleep(0.02)
    return statistics.median(samples)


def itl99_ms(server, rng):
    """The tail of two streams' gaps while long prompts come."""

    def prompts():
        time.sleep(0.3)
        for _ in range(3):
            stream(server.port, token_prompt(rng, 1024), 1)

    calls = [lambda p=token_prompt(rng, 16): stream(server.port, p, 200)[1] for _ in range(2)]
    answers = together([*calls, prompts])[:2]
    gaps = sorted((b - a) * 1e3 for at in answers for a, b in zip(at, at[1:]))
    return gaps[int(len(gaps) * 0.99)]


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


def measure(server, seed):
    rng = random.Random(seed)
    stream(server.port, token_prompt(rng, 64), 16)
    result = {
        "stream1": rate(server, rng, 1, 16, 128),
        "stream4": rate(server, rng, 4, 16, 128),
        "depth2000": rate(server, rng, 1, 2000, 64),
        "ttft128": ttft_ms(server, rng, 128),
        "ttft512": ttft_ms(server, rng, 512),
        "itl99": itl99_ms(server, rng),
    }
    return result, lent_seconds(server)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--isa", default="auto")
    args = parser.parse_args()
    result = {**record("lending", args.threads), "isa": args.isa, "rounds": []}
    samples = {mode: {} for mode in MODES}
    for k in range(args.rounds):
        for mode in list(MODES) if k % 2 == 0 else list(MODES)[::-1]:
            server = Server(args, ["--isa", args.isa, *MODES[mode]])
            numbers, lent = measure(server, seed=k)
            server.stop()
            result["rounds"].append({"mode": mode, "round": k, **numbers, "lent_core_s": lent})
            for name, value in numbers.items():
                samples[mode].setdefault(name, []).append(value)
    result["summary"] = {}
    print(f"{'':10} " + " ".join(f"{mode:>12}" for mode in MODES) + "   split/agg  fixed/agg")
    for name in samples["aggregated"]:
        medians = {mode: statistics.median(samples[mode][name]) for mode in MODES}
        power = -1 if name in SMALLER_IS_BETTER else 1
        ratios = {
            mode: (medians[mode] / medians["aggregated"]) ** power
            for mode in ("split", "split-fixed")
        }
        result["summary"][name] = {"median": medians, "to_aggregated": ratios}
        cells = " ".join(f"{medians[mode]:12.2f}" for mode in MODES)
        print(f"{name:10} {cells}   {ratios['split']:9.3f}  {ratios['split-fixed']:9.3f}")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
