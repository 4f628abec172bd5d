#!/usr/bin/env python3
"""Writes benchmarks/results/fuzz.json from the rows of scripts/fuzz.sh.

  scripts/fuzz_result.py SECONDS JOBS <ROWS

A row is "target executions exec/s covered new findings".
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import machine  # noqa: E402

COLUMNS = ("executions", "executions_per_s", "covered_at_start", "newly_covered", "findings")


def main():
    seconds, jobs = map(int, sys.argv[1:])
    result = machine.record("fuzz", jobs)
    result["command"] = f"scripts/fuzz.sh {seconds}"
    result["targets"] = {}
    for line in sys.stdin:
        target, *values = line.split()
        result["targets"][target] = dict(zip(COLUMNS, map(int, values), strict=True))
    path = ROOT / "benchmarks" / "results" / "fuzz.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
