#!/usr/bin/env python3
"""Writes the time of each test from ctest's report to test_times.json in benchmarks/results.

  scripts/record_test_times.py [REPORT]     default: build/release/test_times.xml of scripts/test.sh

scripts/readme_tables.py makes the table of the slowest in tests/NOTES.md from it.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build" / "release" / "test_times.xml"
RESULT = ROOT / "benchmarks" / "results" / "test_times.json"


def cpu():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main():
    report = Path(sys.argv[1]) if sys.argv[1:] else REPORT
    suite = xml.etree.ElementTree.parse(report).getroot()
    bad = [case.get("name") for case in suite.iter("testcase") if case.get("status") == "fail"]
    if bad:
        raise SystemExit(f"{report}: {', '.join(bad)} failed; times of a whole run are recorded")
    seconds = {
        case.get("name"): round(float(case.get("time")), 1) for case in suite.iter("testcase")
    }
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, check=True, capture_output=True,
        text=True,
    ).stdout.strip()  # fmt: skip
    result = {
        "benchmark": "test_times",
        "commit": commit,
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": dict(sorted(seconds.items())),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
