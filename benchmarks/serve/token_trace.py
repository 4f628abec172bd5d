#!/usr/bin/env python3
"""What one token costs on its way: engine -> gRPC -> router -> HTTP -> client, on running streams.

  benchmarks/serve/token_trace.py --model FILE|NAME [--out FILE.json] [--rounds 3]
      [--modes aggregated,split] [--streams 1,16] [--seconds 3]

Servers in turn, A B B A ... over the rounds. So many streams run; once each has had some tokens,
the counters of every process are read at the begin and at the end of --seconds, and divided by the
tokens that the client got in between:
  wake-ups    voluntary context switches: a thread went to sleep and was woken
  preempted   involuntary ones: a thread had to leave its processor
  cpu         microseconds of processor
  waited      microseconds in which a thread could have run and had no processor
  syscalls    a second window of the same length, in which `strace -f -c` counts; without strace
              `perf stat` counts all together; without both, the result says why there are none.
              strace slows what it watches: its numbers are counts, no times.
The client is a process of its own, a selector in Python, so its row says nothing about the server.
The JSON also has each row by name of thread. Uses the standard library only.
"""

import contextlib
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serving import ROOT, Server, argument_parser, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import counts, positive, record, some_of  # noqa: E402

MODES = {"aggregated": ["--mode", "aggregated"], "split": []}
PROMPT_TOKENS = 16
MAX_TOKENS = 1800
# Tokens that each stream has had before anything is counted.
SETTLED_TOKENS = 16
TOKEN = b'"finish_reason":null'
COUNTERS = ("wakeups", "preempted", "cpu_us", "waited_us")


# The client: `token_trace.py --client PORT STREAMS SEED`. It says "running", then the number of
# tokens so far for each line that it reads, until its input ends.


class Stream:
    """One answer as it comes."""

    def __init__(self, port, prompt):
        body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
        text = json.dumps({**body, "ignore_eos": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json"
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.sendall(f"{head}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        self.tokens, self.tail, self.is_begun = 0, b"", False

    def read(self):
        data = self.socket.recv(1 << 16)
        if not self.is_begun and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server answered {data[:300]!r}")
        if not data:
            raise SystemExit(f"void: a stream ended after {self.tokens} tokens; --seconds less")
        self.is_begun = True
        data = self.tail + data
        self.tokens += data.count(TOKEN)
        self.tail = data[-len(TOKEN) + 1 :]


def be_client(port, num_streams, seed):
    rng = random.Random(seed)
    selector = selectors.DefaultSelector()
    streams = [Stream(port, token_prompt(rng, PROMPT_TOKENS)) for _ in range(num_streams)]
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    selector.register(sys.stdin.buffer, selectors.EVENT_READ, None)
    is_told = False
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                key.data.read()
            elif sys.stdin.buffer.raw.read(1):
                print(sum(stream.tokens for stream in streams), flush=True)
            else:
                return
        if not is_told and min(stream.tokens for stream in streams) >= SETTLED_TOKENS:
            is_told = True
            print("running", flush=True)


class Client:
    """The client's process, as its parent sees it."""

    def __init__(self, port, num_streams, seed):
        argv = [sys.executable, "-B", __file__, "--client", str(port), str(num_streams), str(seed)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("running")

    def expect(self, want=None):
        line = self.process.stdout.readline().strip()
        if not line or (want and line != want):
            self.process.kill()
            raise SystemExit("the client ended; its reason stands above")
        return line

    def num_tokens(self):
        self.process.stdin.write("?")
        self.process.stdin.flush()
        return int(self.expect())

    def stop(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(10)


# Counters of a process.


def thread_counters(pid):
    """{thread: (name, numbers in the order of COUNTERS)}."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = (task / "status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines)
            run_ns, wait_ns, _ = map(int, (task / "schedstat").read_text().split())
            found[task.name] = (
                status["Name"],
                (
                    int(status["voluntary_ctxt_switches"]),
                    int(status["nonvoluntary_ctxt_switches"]),
                    run_ns / 1e3,
                    wait_ns / 1e3,
                ),
            )
    return found


def difference(before, after):
    """{name of threads: {counter: number}}: what threads that are there at the end did between."""
    by_name = {}
    for thread, (name, numbers) in after.items():
        begun = before.get(thread, (name, (0,) * len(COUNTERS)))[1]
        row = by_name.setdefault(re.sub(r"[-_ ]?\d+$", "", name), dict.fromkeys(COUNTERS, 0))
        for counter, end, begin in zip(COUNTERS, numbers, begun):
            row[counter] += end - begin
    return by_name


# Programs that count system calls.


def syscall_tool():
    """(name or none, why there is none): what may watch other processes here."""
    reasons = []
    probes = {
        "strace": ["strace", "-f", "-c", "-o", "/dev/null", "true"],
        "perf": ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "true"],
    }
    for tool, argv in probes.items():
        if shutil.which(tool) is None:
            reasons.append(f"{tool} is not installed")
            continue
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode == 0 and "<not " not in done.stderr:
            return tool, ""
        reasons.append(f"{tool} may not watch: {done.stderr.strip()[-200:]}")
    return None, "; ".join(reasons)


def parse_strace(text):
    """{system call: calls} of the table that `strace -c` prints."""
    calls = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 5 and re.fullmatch(r"[\d.]+", parts[0]) and parts[-1] != "total":
            calls[parts[-1]] = calls.get(parts[-1], 0) + int(parts[3])
    return calls


def parse_perf(text):
    """The same of `perf stat -x,`, which knows no names."""
    for line in text.splitlines():
        parts = line.split(",")
        if len(parts) > 2 and parts[2].startswith("raw_syscalls") and parts[0].isdecimal():
            return {"all": int(parts[0])}
    return {}


class SyscallCounter:
    """Counts the system calls of one process from the construction to stop()."""

    def __init__(self, tool, pid):
        self.tool, self.out = tool, tempfile.NamedTemporaryFile()
        argv = {
            "strace": ["strace", "-f", "-c", "-p", str(pid), "-o", self.out.name],
            "perf": ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", str(pid)]
            + ["-o", self.out.name],
        }[tool]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        # strace says "Process N attached" when it has.
        if tool == "strace" and "attached" not in (said := self.process.stderr.readline()):
            raise SystemExit(f"strace did not attach to process {pid}: {said}")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)
        text = Path(self.out.name).read_text()
        self.out.close()
        return parse_strace(text) if self.tool == "strace" else parse_perf(text)


# A turn.


def num_steps(server):
    """Steps of all decode workers so far."""
    total = 0
    for row in server.processes():
        if row["role"] != "decode":
            continue
        for line in server.admin(row["worker_id"], "/metrics").splitlines():
            if line.startswith("baton_step_seconds_count") and 'role="decode"' in line:
                total += float(line.rsplit(" ", 1)[1])
    return total


def per_token(row, num_tokens):
    return {key: value / num_tokens for key, value in row.items()}


def measure(server, args, num_streams, seed):
    """{process: its numbers for each token} and what the streams did."""
    client = Client(server.port, num_streams, seed)
    pids = {row["worker_id"]: row["pid"] for row in server.processes()}
    pids["client"] = client.process.pid
    try:
        steps, tokens = num_steps(server), client.num_tokens()
        begin = time.monotonic()
        before = {name: thread_counters(pid) for name, pid in pids.items()}
        time.sleep(args.seconds)
        after = {name: thread_counters(pid) for name, pid in pids.items()}
        tokens = client.num_tokens() - tokens
        seconds, steps = time.monotonic() - begin, num_steps(server) - steps
        watched, calls = 0, {}
        if args.tool is not None:
            counters = {name: SyscallCounter(args.tool, pid) for name, pid in pids.items()}
            watched = client.num_tokens()
            time.sleep(args.seconds)
            watched = client.num_tokens() - watched
            calls = {name: counter.stop() for name, counter in counters.items()}
    finally:
        client.stop()
    if not tokens or (args.tool is not None and not watched):
        raise SystemExit("void: no token came while the counters were read")
    rows = {}
    for name in pids:
        threads = difference(before[name], after[name])
        total = {key: sum(row[key] for row in threads.values()) for key in COUNTERS}
        rows[name] = {
            **per_token(total, tokens),
            "threads": {thread: per_token(row, tokens) for thread, row in threads.items()},
            "syscalls": per_token(calls[name], watched) if name in calls else None,
        }
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "tokens_a_step": tokens / steps if steps else None,
        "processes": rows,
    }


def role_of(name):
    """A worker's row goes to its role, so that modes can be compared."""
    return re.sub(r"-\d+$", "", name)


def role_rows(turn):
    """{role: {number: value}} of one turn; workers of a role are added."""
    rows = {}
    for name, row in turn["processes"].items():
        into = rows.setdefault(role_of(name), {})
        for key in COUNTERS:
            into[key] = into.get(key, 0) + row[key]
        if row["syscalls"] is not None:
            into["syscalls"] = into.get("syscalls", 0) + sum(row["syscalls"].values())
    return rows


def summary(turns):
    """Medians of the turns with the same mode and number of streams."""
    result = {}
    for turn in turns:
        key = f"{turn['mode']}, {turn['streams']} streams"
        result.setdefault(key, []).append(turn)
    for key, taken in result.items():
        by_role = [role_rows(turn) for turn in taken]
        roles = {
            role: {
                number: statistics.median(rows[role][number] for rows in by_role)
                for number in by_role[0][role]
            }
            for role in by_role[0]
        }
        rate = statistics.median(turn["tokens_per_s"] for turn in taken)
        steps = [turn["tokens_a_step"] for turn in taken if turn["tokens_a_step"]]
        result[key] = {"tokens_per_s": rate, "processes": roles}
        result[key]["tokens_a_step"] = statistics.median(steps) if steps else None
    return result


def print_table(result):
    heads = ("wake-ups", "preempted", "cpu us", "waited us", "syscalls")
    print(f"{'for each token':26}" + "".join(f"{head:>11}" for head in heads))
    for key, found in result.items():
        steps = found["tokens_a_step"]
        print(f"{key}: {found['tokens_per_s']:.0f} tokens/s", end="")
        print(f", {steps:.1f} tokens a step" if steps else "")
        for role, row in found["processes"].items():
            cells = [row[counter] for counter in COUNTERS] + [row.get("syscalls")]
            shown = ["-" if cell is None else f"{cell:.2f}" for cell in cells]
            print(f"  {role:24}" + "".join(f"{cell:>11}" for cell in shown))


def main():
    if sys.argv[1:2] == ["--client"]:
        be_client(*map(int, sys.argv[2:5]))
        return
    parser = argument_parser(__doc__)
    parser.add_argument("--modes", type=some_of(tuple(MODES)), default=list(MODES))
    parser.add_argument("--streams", type=counts, default=[1, 16])
    parser.add_argument("--seconds", type=positive, default=3.0)
    args = parser.parse_args()
    if not Path("/proc/self/schedstat").exists():
        raise SystemExit("this kernel has no /proc/PID/task/TID/schedstat, which has the times")
    args.tool, why = syscall_tool()
    if args.tool is None:
        print(f"no system calls are counted: {why}", flush=True)
    result = {**record("token_trace", args.threads), "model": Path(args.model).name}
    result |= {"seconds": args.seconds, "syscall_tool": args.tool, "syscall_tool_missing": why}
    result |= {"load_before": os.getloadavg(), "turns": []}
    for k in range(args.rounds):
        for mode in args.modes if k % 2 == 0 else args.modes[::-1]:
            server = Server(args, MODES[mode])
            try:
                for num_streams in args.streams:
                    turn = measure(server, args, num_streams, seed=100 * k + num_streams)
                    head = {"mode": mode, "round": k, "streams": num_streams}
                    result["turns"].append({**head, **turn})
                    said = f"{num_streams} streams, {turn['tokens_per_s']:.0f} tokens/s"
                    print(f"round {k + 1} {mode}: {said}", flush=True)
            finally:
                server.stop()
    result |= {"load_after": os.getloadavg(), "summary": summary(result["turns"])}
    print_table(result["summary"])
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
