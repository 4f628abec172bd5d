#!/usr/bin/env python3
"""Tokens a second of the forward pass: Baton beside llama.cpp's llama-bench, interleaved.

  benchmarks/compare/model_bench.py --model FILE --llama-bench PATH [--rounds 5] [--out JSON]

Same file, same number of threads, one repetition of one case at a time in the order A B B A ...;
each is a process of its own and does its own warm-up. Printed and stored: every sample, medians,
the ratio of each round's pair with its smallest and largest value. Uses the standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import record  # noqa: E402

# name, prompt tokens, generated tokens, depth
CASES = (
    ("pp128", 128, 0, 0),
    ("pp512", 512, 0, 0),
    ("pp2000", 2000, 0, 0),
    ("tg64", 0, 64, 0),
    ("tg64@2000", 0, 64, 2000),
)


def run_baton(args, case):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        argv = [args.baton, "bench", "model", args.model, "--threads", str(args.threads)]
        argv += ["--cases", case[0], "--repetitions", "1", "--json", out.name]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text())["results"][0]["tokens_per_s"][0]


def run_llama(args, case):
    _, prompt, generate, depth = case
    argv = [args.llama_bench, "-m", args.model, "-t", str(args.threads), "-fa", "1"]
    argv += ["-p", str(prompt), "-n", str(generate), "-d", str(depth), "-r", "1", "-o", "json"]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)[0]["avg_ts"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--baton", default=str(ROOT / "build" / "baton"))
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    servers = {"baton": run_baton, "llama.cpp": run_llama}
    samples = {case[0]: {name: [] for name in servers} for case in CASES}
    for k in range(args.rounds):
        for case in CASES:
            for name in list(servers) if k % 2 == 0 else list(servers)[::-1]:
                samples[case[0]][name].append(servers[name](args, case))
    rows = []
    print(f"{'case':12} {'baton':>8} {'llama.cpp':>10} {'ratio':>6} {'low':>6} {'high':>6}")
    for name, by_server in samples.items():
        ratios = [b / l for b, l in zip(by_server["baton"], by_server["llama.cpp"])]
        rows.append(
            {
                "case": name,
                "baton": statistics.median(by_server["baton"]),
                "llama.cpp": statistics.median(by_server["llama.cpp"]),
                "ratio": statistics.median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "samples": by_server,
            }
        )
        r = rows[-1]
        print(
            f"{name:12} {r['baton']:8.1f} {r['llama.cpp']:10.1f} {r['ratio']:6.2f} "
            f"{r['ratio_low']:6.2f} {r['ratio_high']:6.2f}"
        )
    result = {
        **record("model_bench", args.threads),
        "model": Path(args.model).name,
        "rows": rows,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
