"""The place of a measurement, as every result file names it, and words the scripts share."""

import argparse
import contextlib
import json
import math
import os
import platform
import random
import socket
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_GIVEN_PORTS = set()


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


def machine_limits(baton, model, threads):
    """What this machine can read and compute now, {limit: units a second}. A run whose limits
    before and after differ was disturbed. Takes some seconds."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        argv = [baton, "bench", "model", model, "--cases", "pp16,tg4", "--repetitions", "1"]
        argv += ["--threads", str(threads), "--json", out.name]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(argv[:4])} failed: {done.stderr[-300:]}")
        rows = json.loads(Path(out.name).read_text())["results"]
    return {row["limit"]: row["limit_per_s"] for row in rows}


def own_cpu_s(pid):
    """Processor seconds of a process alone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_s():
    """Processor seconds that the whole machine has worked since it started, with stolen ones."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def pids_of(pid):
    """The process and all that it started."""
    pids = [pid]
    for one in pids:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            if one == pid:
                raise
    return pids


def cpu_s(pid):
    """Processor seconds of a process and all that it started and that still runs."""
    total = 0.0
    for one in pids_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += own_cpu_s(one)
    return total


def wait_or_kill(process, limit_s):
    """Waits for a process that was asked to end, and kills it where it takes longer."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port(*hosts):
    """A port that is free at all `hosts` (127.0.0.1), for a program that cannot take any by itself.
    It is below those that the system gives to other processes in the moment until it is bound, and
    is given once."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for host in hosts or ("127.0.0.1",):
                probes.enter_context(socket.socket()).bind((host, port))
            if port not in _GIVEN_PORTS:
                _GIVEN_PORTS.add(port)
                return port


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


def show(ratio):
    """A spread in one cell of a table."""
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} .. {ratio['high']:.3f})"


# Types of arguments: each says which values are allowed.


def program(text):
    if not os.access(text, os.X_OK) or not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is no program; build it or name another one")
    return text


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)


def counts(text):
    return [count(part) for part in text.split(",")]


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return value


def positives(text):
    return [positive(part) for part in text.split(",")]


def result_folder(text):
    """A folder to write to: it is there, so that an hour's numbers are not lost at the end."""
    folder = Path(text).resolve()
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: {folder} is no folder that can be written to")
    return text


def result_file(text):
    """A path to write, whose folder is there."""
    result_folder(Path(text).resolve().parent)
    return text


def some_of(names):
    """The type of a list of `names`, with commas."""

    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(names)}")
        return [name for name in names if name in chosen]

    return parse
