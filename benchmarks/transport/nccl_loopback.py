#!/usr/bin/env python3
"""KV slices through NcclTransport over the loopback, beside a memcpy of the same bytes.

  benchmarks/transport/nccl_loopback.py [--build build/release] [--rounds 5] [--seconds 3]

It measures the transport's own work on a processor: gather, offer, grant, two copies of the
loopback, checksum, scatter. It says nothing of NCCL. Each transfer is followed by its memcpy; a
round is a process of its own.
Writes benchmarks/results/nccl_loopback.json and prints one line.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    command = [f"{args.build}/tests/nccl/nccl_throughput", str(args.seconds)]
    rounds = []
    for _ in range(args.rounds):
        done = subprocess.run(command, cwd=machine.ROOT, check=True, capture_output=True, text=True)
        rounds.append(json.loads(done.stdout))
    ratios = [r["transfer_gb_per_s"]["median"] / r["memcpy_gb_per_s"]["median"] for r in rounds]
    result = machine.record("nccl_loopback", threads=2)  # one of each transport
    result["command"] = " ".join(["benchmarks/transport/nccl_loopback.py", *sys.argv[1:]])
    result["share_of_memcpy"] = {
        "median": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }
    result["rounds"] = rounds
    path = machine.ROOT / "benchmarks/results/nccl_loopback.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    rate = statistics.median(r["transfer_gb_per_s"]["median"] for r in rounds)
    share = result["share_of_memcpy"]
    spread = f"{share['low']:.2f} to {share['high']:.2f}"
    print(f"{rate:.2f} GB/s, {share['median']:.2f} of memcpy ({spread})")


if __name__ == "__main__":
    main()
