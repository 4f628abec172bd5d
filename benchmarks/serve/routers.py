#!/usr/bin/env python3
"""What a router adds to each token, and its processor time: Baton's beside vllm-router and smg.

  benchmarks/serve/routers.py --tools BUILD [--vllm-router PROGRAM] [--smg PROGRAM]
      [--out FILE.json] [--rounds 9] [--streams 200,1000]

PROGRAM is what `pip install vllm-router` or `pip install smg` puts into an environment's bin; BUILD
is the folder where `ninja router_stream_latency` was run. Routers in turn, A B C C B A ... over the
rounds, one at a time: a new process with four toy workers, which compute nothing and send each
stream 20 tokens a second, spread over 25 steps a period. Of Baton they speak gRPC
(router_stream_latency), of the others OpenAI's API (this script, one process); all give the same
tokens at the same pace. One client of this script reads all streams. Measured for 8 s, once all
streams have run for a second:
  added  from the moment at which a worker hands a token to its connection until it has arrived at
         the client's socket (the kernel's stamp): p50 and p99 of all tokens, ms
  cpu    cores of the router's process and its children; neither workers nor client are in it
The client's and the workers' own processor time stand beside it: together they must leave the
router room, or the machine is too small. The ratio of Baton to each other router is of the rounds:
its median, and an interval that holds it with 95 %; below 1 Baton adds or takes less. Uses the
standard library only.
"""

import argparse
import array
import contextlib
import http.client
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import (  # noqa: E402
    count,
    counts,
    cpu_s,
    free_port,
    program,
    quantile,
    record,
    result_file,
    show,
    spread,
    wait_or_kill,
)

NUM_WORKERS = 4
NUM_PHASES = 25
PERIOD_S = 0.05
NUM_TOKENS = 300  # of a stream, as router_stream_latency has them
START_GAP_S = 0.003
WARM_UP_S = 1
COUNT_S = 8
# A stream lives for 15 s: all have begun and are counted before the first one ends.
MAX_STREAMS = 1000
ID_BASE = 200
PATIENCE_S = 60
TOKEN = re.compile(rb'"finish_reason": ?null')
TAIL = 64  # more than a TOKEN has
SO_TIMESTAMPNS = 35
NAMES = ("baton", "vllm-router", "smg")
NUMBERS = ("added_p50_ms", "added_p99_ms", "cpu_cores")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


def save(path, rows):
    """[stream][token] microseconds since 1970, 0 = never."""
    flat = array.array("q")
    for row in rows:
        flat.extend(row[:NUM_TOKENS])
        flat.extend([0] * (NUM_TOKENS - len(row)))
    Path(path).write_bytes(flat.tobytes())


def load(path, num_streams):
    flat = array.array("q")
    flat.frombytes(Path(path).read_bytes())
    if len(flat) != num_streams * NUM_TOKENS:
        raise SystemExit(f"{path} has {len(flat)} times, not {num_streams} x {NUM_TOKENS}")
    return [flat[i * NUM_TOKENS : (i + 1) * NUM_TOKENS] for i in range(num_streams)]


# Toy workers with OpenAI's API: `routers.py --toy STREAMS FILE PORT...`. FILE has when each token
# left, once the standard input has ended.


def event(token):
    reason = '"length"' if token is None else "null"
    text = "" if token is None else chr(ord("a") + token % 26)
    body = (
        '{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"toy","choices":'
        f'[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{reason}}}]}}'
    )
    data = f"data: {body}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(body):
    text = json.dumps(body).encode()
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


MODELS = {"object": "list", "data": [{"id": "toy", "object": "model", "owned_by": "toy"}]}
INFO = {"status": "ok", "model_path": "toy", "is_generation": True}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_EVENTS = event(None) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class ToyWorkers:
    """All toy workers: one thread, one epoll set, a step of a part of the streams at a time."""

    def __init__(self, num_streams, ports):
        self.departures = [[] for _ in range(num_streams)]
        self.epoll = select.epoll()
        self.listeners, self.connections, self.received = {}, {}, {}
        self.phases = [{} for _ in range(NUM_PHASES)]  # connection -> (stream, next token)
        self.num_begun = 0
        self.events = [event(i) for i in range(26)]
        for port in ports:
            listener = socket.create_server(("127.0.0.1", port), backlog=1024)
            self.listeners[listener.fileno()] = listener
            self.epoll.register(listener, select.EPOLLIN)
        self.epoll.register(sys.stdin.fileno(), select.EPOLLIN)

    def run(self):
        due, phase = time.monotonic(), 0
        while True:
            for fd, _ in self.epoll.poll(max(0, due - time.monotonic())):
                if fd == sys.stdin.fileno():
                    return
                if fd in self.listeners:
                    self.accept(self.listeners[fd])
                else:
                    self.read(fd)
            if time.monotonic() >= due:
                self.step(self.phases[phase])
                phase = (phase + 1) % NUM_PHASES
                due += PERIOD_S / NUM_PHASES

    def accept(self, listener):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections[connection.fileno()] = connection
        self.received[connection.fileno()] = b""
        self.epoll.register(connection, select.EPOLLIN)

    def drop(self, fd):
        self.epoll.unregister(fd)
        for phase in self.phases:
            phase.pop(fd, None)
        del self.received[fd]
        self.connections.pop(fd).close()

    def read(self, fd):
        try:
            data = self.connections[fd].recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.drop(fd)
            return
        self.received[fd] += data
        head, blank, rest = self.received[fd].partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        length = int(length[1]) if length else 0
        if blank and len(rest) >= length:
            self.received[fd] = rest[length:]
            self.answer(fd, head, rest[:length])

    def answer(self, fd, head, body):
        """A stream for a prompt that is a stream's number, and a whole answer for any other."""
        connection = self.connections[fd]
        method, path = head.split(b" ", 2)[:2]
        if method == b"GET":
            connection.sendall(whole(MODELS if path == b"/v1/models" else INFO))
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "toy"}
            connection.sendall(whole({**answer, "choices": [choice], "usage": usage}))
            return
        connection.sendall(STREAM_HEAD)
        self.phases[self.num_begun % NUM_PHASES][fd] = [int(asked["prompt"]), 0]
        self.num_begun += 1

    def step(self, phase):
        now_us = time.time_ns() // 1000
        for fd, state in list(phase.items()):
            stream, token = state
            state[1] += 1
            self.departures[stream].append(now_us)
            is_last = state[1] == NUM_TOKENS
            try:
                self.connections[fd].sendall(
                    self.events[token % 26] + (LAST_EVENTS if is_last else b"")
                )
            except OSError:
                self.drop(fd)
                continue
            if is_last:
                del phase[fd]


# The client: `routers.py --client PORT BATON|OPENAI STREAMS FILE`. It says "counting", "counted"
# and, when FILE has the arrivals, "done".


def request(kind, number):
    prompt = str(number) if kind == "openai" else [number % ID_BASE, number // ID_BASE]
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True}
    text = json.dumps({"model": "toy", **body, "ignore_eos": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


class Client:
    """All streams: one thread, one epoll set."""

    def __init__(self, port, kind, num_streams):
        self.port, self.kind = port, kind
        self.epoll, self.by_fd = select.epoll(), {}
        self.arrivals = [[] for _ in range(num_streams)]
        self.num_ended = 0

    def start(self, number):
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        connection.sendall(request(self.kind, number))
        connection.setblocking(False)
        self.by_fd[connection.fileno()] = [connection, number, b""]
        self.epoll.register(connection, select.EPOLLIN)

    def poll_until(self, end):
        while (left := end - time.monotonic()) > 0:
            for fd, _ in self.epoll.poll(left):
                self.read(self.by_fd[fd])

    def read(self, stream):
        connection, number, tail = stream
        try:
            received, notes, _, _ = connection.recvmsg(1 << 16, 64)
        except ConnectionError:
            received, notes = b"", []
        at_us = time.time_ns() // 1000
        for _, kind, note in notes:
            if kind == SO_TIMESTAMPNS:
                seconds, ns = struct.unpack("qq", note[:16])
                at_us = seconds * 10**6 + ns // 1000
        arrivals = self.arrivals[number]
        if not received:
            raise SystemExit(f"stream {number} was cut after {len(arrivals)} tokens")
        if not arrivals and not tail and not received.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"stream {number}: the router answered {received[:300]!r}")
        data = tail + received
        end = 0
        for found in TOKEN.finditer(data):
            arrivals.append(at_us)
            end = found.end()
        stream[2] = data[max(end, len(data) - TAIL) :]
        if b"[DONE]" in data[end:]:
            if len(arrivals) != NUM_TOKENS:
                raise SystemExit(f"stream {number} ended after {len(arrivals)} tokens")
            self.num_ended += 1
            self.epoll.unregister(connection)
            connection.close()

    def run(self, path):
        begin = time.monotonic()
        for number in range(len(self.arrivals)):
            self.start(number)
            self.poll_until(begin + (number + 1) * START_GAP_S)
        self.poll_until(time.monotonic() + WARM_UP_S)
        from_us = time.time_ns() // 1000
        print(f"counting {from_us}", flush=True)
        self.poll_until(time.monotonic() + COUNT_S)
        print(f"counted {time.time_ns() // 1000}", flush=True)
        end = time.monotonic() + PATIENCE_S
        while self.num_ended < len(self.arrivals):
            if time.monotonic() > end:
                raise SystemExit(f"{len(self.arrivals) - self.num_ended} streams did not end")
            self.poll_until(time.monotonic() + 0.1)
        save(path, self.arrivals)
        print("done", flush=True)


# A turn.


class Processes:
    """What a turn starts; all of it ends with it."""

    def __init__(self):
        self.started = []

    def start(self, argv, **options):
        self.started.append(subprocess.Popen(argv, **options))
        return self.started[-1]

    def end(self, process):
        """By the end of its input, or a signal."""
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        wait_or_kill(process, 20)
        self.started.remove(process)

    def end_all(self):
        for process in self.started[::-1]:
            self.end(process)


def me(*argv):
    return [sys.executable, "-B", __file__, *map(str, argv)]


def wait_port(name, process, port):
    """Until somebody listens there."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise SystemExit(f"{name} does not listen on port {port} after {PATIENCE_S} s")


def start_baton(args, num_streams, folder, processes):
    """(router, its HTTP port, process of the workers)."""
    port, grpc_port = free_port(), free_port()
    grpc = f"127.0.0.1:{grpc_port}"
    argv = [args.baton, "router", "--mode", "aggregated", "--grpc", grpc]
    argv += ["--http", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0"]
    log = (Path(folder) / "router.log").open("wb")
    router = processes.start(argv, stdout=log, stderr=log)
    wait_port("baton", router, grpc_port)  # toy workers register once
    argv = [str(latency_tool(args.tools)), f"--workers-of={grpc}", f"--streams={num_streams}"]
    workers = processes.start(
        [*argv, f"--departures={folder}/departures"], stdin=subprocess.PIPE, stdout=log, stderr=log
    )
    return router, port, workers


def start_peer(argv, num_streams, folder, processes):
    port, ports = free_port(), [free_port() for _ in range(NUM_WORKERS)]
    log = (Path(folder) / "router.log").open("wb")
    workers = processes.start(
        me("--toy", num_streams, f"{folder}/departures", *ports),
        **{"stdin": subprocess.PIPE, "stdout": log, "stderr": log},
    )
    argv = [*argv, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    argv += ["--prometheus-port", str(free_port()), "--worker-urls"]
    argv += [f"http://127.0.0.1:{worker}" for worker in ports]
    return processes.start(argv, stdout=log, stderr=log), port, workers


def wait_ready(name, router, port, folder):
    """Until the router serves: Baton when all workers are ready, others when they answer."""
    body = json.dumps({"model": "toy", "prompt": "0", "max_tokens": 1})
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and router.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if name == "baton":
                connection.request("GET", "/v1/topology")
                rows = json.loads(connection.getresponse().read()).get("processes", [])
                if sum(r["role"] == "decode" and bool(r.get("ready")) for r in rows) == NUM_WORKERS:
                    return
            else:
                kind = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/completions", body, kind)
                if connection.getresponse().status == 200:
                    return
        connection.close()
        time.sleep(0.1)
    log = (Path(folder) / "router.log").read_text(errors="replace")[-800:]
    raise SystemExit(f"{name} is not ready after {PATIENCE_S} s: {log}")


def told(process, word):
    line = process.stdout.readline().split()
    if not line or line[0] != word:
        raise SystemExit(f"the client did not come to '{word}'; its reason stands above")
    return int(line[1]) if len(line) > 1 else None


def added_ms(departures, arrivals, from_us, to_us):
    """Time on the way of each token that left in [from_us, to_us)."""
    return [
        (came - left) / 1e3
        for left_of, came_of in zip(departures, arrivals)
        for left, came in zip(left_of, came_of)
        if from_us <= left < to_us
    ]


def measure(args, name, num_streams, processes):
    with tempfile.TemporaryDirectory() as folder:
        if name == "baton":
            router, port, workers = start_baton(args, num_streams, folder, processes)
        else:
            argv = {"vllm-router": [args.vllm_router], "smg": [args.smg, "launch"]}[name]
            router, port, workers = start_peer(argv, num_streams, folder, processes)
        wait_ready(name, router, port, folder)
        kind = "baton" if name == "baton" else "openai"
        argv = me("--client", port, kind, num_streams, f"{folder}/arrivals")
        client = processes.start(argv, stdout=subprocess.PIPE, text=True)
        pids = {"router": router.pid, "workers": workers.pid, "client": client.pid}
        from_us = told(client, "counting")
        before, begin = {key: cpu_s(pid) for key, pid in pids.items()}, time.monotonic()
        to_us = told(client, "counted")
        seconds = time.monotonic() - begin
        cores = {key: (cpu_s(pid) - before[key]) / seconds for key, pid in pids.items()}
        told(client, "done")
        processes.end(workers)
        departures = load(f"{folder}/departures", num_streams)
        arrivals = load(f"{folder}/arrivals", num_streams)
    samples = added_ms(departures, arrivals, from_us, to_us)
    if not samples:
        raise SystemExit(f"void: no token of {name} left its worker in {COUNT_S} s")
    wanted = num_streams * COUNT_S / PERIOD_S
    return {
        "tokens": len(samples),
        # Workers that were late sent fewer tokens than the pace asks for.
        "pace": len(samples) / wanted,
        **{f"added_p{p}_ms": quantile(samples, p / 100) for p in (50, 90, 99)},
        "added_max_ms": max(samples),
        "cpu_cores": cores["router"],
        "workers_cpu_cores": cores["workers"],
        "client_cpu_cores": cores["client"],
    }


def summary(turns):
    """{streams: medians of each router, and Baton's ratio to the others}."""
    result = {}
    for num_streams in sorted({turn["streams"] for turn in turns}):
        taken = sorted(
            (turn for turn in turns if turn["streams"] == num_streams), key=lambda t: t["round"]
        )
        by_name = {n: [t for t in taken if t["router"] == n] for n in NAMES}
        by_name = {name: rows for name, rows in by_name.items() if rows}
        result[str(num_streams)] = {
            "median": {
                name: {key: statistics.median(row[key] for row in rows) for key in NUMBERS}
                for name, rows in by_name.items()
            },
            "baton_to": {
                name: {
                    key: spread([a[key] / b[key] for a, b in zip(by_name["baton"], rows)])
                    for key in NUMBERS
                }
                for name, rows in by_name.items()
                if name != "baton"
            },
        }
    return result


def print_table(result):
    for num_streams, found in result.items():
        print(f"{num_streams + ' streams':14} {'p50 ms':>9} {'p99 ms':>9} {'cores':>9}")
        for name, row in found["median"].items():
            print(f"{name:14} " + " ".join(f"{row[key]:9.3f}" for key in NUMBERS))
        for name, ratios in found["baton_to"].items():
            said = ", ".join(f"{key} {show(ratios[key])}" for key in NUMBERS)
            print(f"baton / {name}: {said}")


def latency_tool(build):
    return Path(build) / "tests" / "benchmarks" / "router" / "router_stream_latency"


def version(path):
    """What pip calls the package beside the program."""
    pip = Path(path).parent / "pip"
    if not pip.exists():
        return "unknown"
    argv = [str(pip), "show", Path(path).name]
    done = subprocess.run(argv, capture_output=True, text=True)
    found = re.search(r"^Version: (\S+)$", done.stdout, re.M)
    return found[1] if found else "unknown"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    baton = str(ROOT / "build" / "release" / "baton")
    parser.add_argument("--baton", type=program, default=baton)
    parser.add_argument("--tools", default=str(ROOT / "build" / "release"), metavar="BUILD")
    parser.add_argument("--vllm-router", type=program, default=shutil.which("vllm-router"))
    parser.add_argument("--smg", type=program, default=shutil.which("smg"))
    parser.add_argument("--streams", type=counts, default=[200, 1000])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--only", choices=NAMES, action="append", help="default: all three")
    parser.add_argument("--out", type=result_file)
    args = parser.parse_args()
    if max(args.streams) > MAX_STREAMS:
        parser.error(f"argument --streams: {max(args.streams)} is more than {MAX_STREAMS}")
    args.routers = [name for name in NAMES if not args.only or name in args.only]
    paths = {"vllm-router": args.vllm_router, "smg": args.smg}
    for name in args.routers:
        if name in paths and paths[name] is None:
            parser.error(f"argument --{name}: no {name} in PATH; `pip install {name}`, or --only")
    if "baton" in args.routers and not os.access(latency_tool(args.tools), os.X_OK):
        parser.error(f"argument --tools: no {latency_tool(args.tools)}; build that target")
    args.versions = {name: version(paths[name]) for name in args.routers if name in paths}
    return args


def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.argv[1:2] == ["--toy"]:
        workers = ToyWorkers(int(sys.argv[2]), map(int, sys.argv[4:]))
        workers.run()
        save(sys.argv[3], workers.departures)
        return
    if sys.argv[1:2] == ["--client"]:
        Client(int(sys.argv[2]), sys.argv[3], int(sys.argv[4])).run(sys.argv[5])
        return
    args = arguments()
    result = {**record("routers", None), "versions": args.versions}
    result |= {"workers": NUM_WORKERS, "tokens_per_s_a_stream": 1 / PERIOD_S, "count_s": COUNT_S}
    result |= {"load_before": os.getloadavg(), "turns": []}
    for k in range(args.rounds):
        for num_streams in args.streams:
            for name in args.routers if k % 2 == 0 else args.routers[::-1]:
                processes = Processes()
                try:
                    row = measure(args, name, num_streams, processes)
                finally:
                    processes.end_all()
                head = {"router": name, "round": k, "streams": num_streams}
                result["turns"].append({**head, **row})
                said = ", ".join(f"{key} {row[key]:.3f}" for key in (*NUMBERS, "pace"))
                print(f"round {k + 1} {num_streams} streams {name}: {said}", flush=True)
    result |= {"load_after": os.getloadavg()}
    if "baton" in args.routers:
        result["summary"] = summary(result["turns"])
        print_table(result["summary"])
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
