#!/usr/bin/env python3
"""Each type of stored K and V on the processor: perplexity, bytes a token, and speed.

  benchmarks/accuracy/kv_types.py [--build build/release] [--rounds 3]    results/kv_types.json
  benchmarks/accuracy/kv_types.py --print                                the stored table

Perplexity: `baton eval` of tests/data/alice.txt in windows of 2048 tokens, with both demo models.
Speeds: `baton bench model` in rounds of one run of each type after another, so that a machine that
slows down slows all of them; the table has medians over the rounds, and ratios to bf16 of the same
round.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from machine import record  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "kv_types.json"
MODELS = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"]
TYPES = ["bf16", "q8", "f32"]
CASES = ["pp512", "pp2000", "tg32", "tg32@2000", "tg32@6000"]


def run_json(*command):
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "json"
        subprocess.run([*command, f"--json={result}"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(result.read_text())


def bytes_a_token(baton, model):
    said = subprocess.run([baton, "inspect", model], capture_output=True, text=True, check=True)
    line = next(line for line in said.stdout.splitlines() if line.startswith("KV cache"))
    found = re.findall(r"(\d+)(?: bytes a token)? \((\w+)\)", line)
    return {name: int(count) for count, name in found}


def measure(baton, model, rounds):
    text = ROOT / "tests" / "data" / "alice.txt"
    sizes = bytes_a_token(baton, model)
    rows = {}
    for kv in TYPES:
        command = [baton, "eval", f"--perplexity={text}", f"--model={model}", f"--kv-dtype={kv}"]
        report = run_json(*command)
        rows[kv] = {"perplexity": report["perplexity"], "bytes_a_token": sizes[kv]}
        rows[kv]["tokens_per_s"] = {case: [] for case in CASES}
    for _ in range(rounds):
        for kv in TYPES:
            command = [baton, "bench", "model", model, f"--kv-dtype={kv}", "--repetitions=3"]
            for case in run_json(*command, "--cases=" + ",".join(CASES))["results"]:
                rows[kv]["tokens_per_s"][case["case"]].append(case["median"])
    return {"model": model.name, "types": rows}


def table(result):
    head = ["model", "KV", "bytes a token", "perplexity", "against bf16", *CASES]
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|---|---|---:|---:|---:|" + "---:|" * len(CASES))
    for row in result["models"]:
        base = row["types"]["bf16"]
        for kv, one in row["types"].items():
            difference = 100 * (one["perplexity"] / base["perplexity"] - 1)
            speeds = []
            for case in CASES:
                mine, its = one["tokens_per_s"][case], base["tokens_per_s"][case]
                ratio = statistics.median(a / b for a, b in zip(mine, its)) if mine else 0
                speed = f"{statistics.median(mine):,.0f}" if mine else "not run"
                speeds.append(f"{speed} ({ratio:.2f}x)" if mine else speed)
            lines.append(
                f"| {row['model']} | {kv} | {one['bytes_a_token']:,} | {one['perplexity']:.4f} |"
                f" {difference:+.4f} % | " + " | ".join(speeds) + " |"
            )
    return "\n".join(lines)


def main():
    home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache" / "baton"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--models", type=Path, default=home / "models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--print", action="store_true")
    args = parser.parse_args()
    if args.print:
        print(table(json.loads(RESULT.read_text())))
        return
    rows = []
    for name in MODELS:
        if not (args.models / name).exists():
            sys.exit(f"{args.models / name} is missing; fetch it with: baton pull")
        rows.append(measure(args.build / "baton", args.models / name, args.rounds))
    result = {**record("kv_types", os.cpu_count()), "models": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
