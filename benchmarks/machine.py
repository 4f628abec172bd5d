"""The place of a measurement, as every result file names it, and words the scripts share."""

import math
import os
import platform
import socket
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def record(benchmark, threads):
    """The head of a result: name, commit (with "+" for an edited tree), machine, threads."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(git + ["rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    no_code = [":(exclude)benchmarks/results", ":(exclude)*.md"]
    dirty = subprocess.run(git + ["diff", "--quiet", "HEAD", "--", ".", *no_code])
    return {
        "benchmark": benchmark,
        "commit": commit.stdout.strip() + ("+" if dirty.returncode == 1 else ""),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": platform.platform(),
    }


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def quantile(values, q):
    """The smallest value that at least a share q of all do not exceed; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else float("nan")


def spread(ratios):
    """Median, and an interval that holds it with at least 95 %: so many of the ordered ratios are
    left out on each side as a binomial of one half allows; with fewer than 6 none."""
    ordered = sorted(ratios)
    num_out, tail = 0, 2.0 ** -len(ordered)
    while tail <= 0.025:
        num_out += 1
        tail += math.comb(len(ordered), num_out) * 2.0 ** -len(ordered)
    num_out = max(num_out - 1, 0)
    low, high = ordered[num_out], ordered[-1 - num_out]
    return {"median": statistics.median(ordered), "low": low, "high": high}
