"""Stage 9 of scripts/gpu_check.sh: `baton serve` on the device, with small models of tests/golden.

The same requests are asked of clusters that serve in different ways; with --deterministic every
token, log-probability and end is the same, also when a decode worker is killed in the middle.
Prints a line of JSON for each finding: name, verdict (pass, FAIL, not run), detail, data. Needs
nothing but Python's own library, for the machine may have no more.

Usage: product_check.py --baton FILE --models DIR --device cuda|simt [--tiny]
"""

import argparse
import collections
import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

START_LIMIT_S = 30
STOP_LIMIT_S = 20
ANSWER_LIMIT_S = 60
# Variables of the stage that runs this program; workers do not get them.
STAGE_VARIABLES = ("CUDA_MODULE_LOADING", "NCCL_COMM_BLOCKING")
# A model's first way is what its others are compared with.
WAYS = {
    "aggregated": ("--mode", "aggregated"),
    "cuda_ipc": ("--transport", "cuda_ipc"),
    "tcp": ("--transport", "tcp"),
    "shm": ("--transport", "shm"),
    "colocate": ("--colocate",),
}
MODELS = {
    "head64_llama": tuple(WAYS),
    "head64_gemma3": ("aggregated", "cuda_ipc"),
    "head64_qwen3moe": ("aggregated", "cuda_ipc"),
    "head128_qwen3": ("aggregated", "cuda_ipc"),
}
TINY_MODELS = {"head64_llama": ("aggregated", "cuda_ipc", "colocate")}
KILLED = ("--decode", "2", "--transport", "cuda_ipc")
# Exceptions that a broken cluster or a broken answer raises.
BROKEN = (OSError, RuntimeError, KeyError, ValueError, http.client.HTTPException)
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is for others


def add(name, verdict="pass", detail="", **data):
    line = {"name": f"product {name}", "verdict": verdict, "detail": detail, "data": data}
    print(json.dumps(line), flush=True)


def path_of(args, model):
    return Path(args.models) / f"tiny_{model}.gguf"


class Cluster:
    """One `baton serve` of a model file with free ports, on args.device unless `ways` names one. It
    ends with this process; `up_s` is how long it took to be ready."""

    def __init__(self, args, path, ways):
        self.folder = Path(tempfile.mkdtemp(dir=args.folder))
        command = [args.baton, "serve", str(path)]
        for flag in ("--http", "--grpc", "--admin"):
            command += [flag, "127.0.0.1:0"]
        command += ["--run-dir", str(self.folder), "--kv-memory", args.kv_memory]
        if "--device" not in ways:
            command += ["--device", args.device, "--deterministic"]
        command += ways
        variables = {k: v for k, v in os.environ.items() if k not in STAGE_VARIABLES}
        begin = time.monotonic()
        with open(self.folder / "serve.out", "wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                env=variables,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        args.processes.append(self.process)
        while "is ready" not in self.said():
            if self.process.poll() is not None:
                raise RuntimeError(f"serve ended with {self.process.returncode}: {self.last()}")
            if time.monotonic() - begin > args.start_limit_s:
                self.kill()
                raise RuntimeError(f"not ready within {args.start_limit_s} s: {self.last()}")
            time.sleep(0.02)
        self.up_s = round(time.monotonic() - begin, 2)

    def said(self):
        return (self.folder / "serve.out").read_text(errors="replace")

    def last(self):
        """The last lines of serve and of its workers."""
        texts = [self.said()] + [
            file.read_text(errors="replace") for file in sorted(self.folder.glob("*.log"))
        ]
        return " | ".join(line for text in texts for line in text.splitlines()[-2:])

    def rows(self):
        return json.loads((self.folder / "topology.json").read_text())["processes"]

    def process_of(self, role):
        for row in self.rows():
            if row["role"] == role:
                return row
        raise RuntimeError(f"topology.json has no {role}")

    def busiest_decode_worker(self):
        """The row of the worker that most streams are on."""
        admin = self.process_of("router")["admin"]
        with DIRECT.open(f"http://{admin}/debug/requests", timeout=ANSWER_LIMIT_S) as response:
            placed = [row["worker"] for row in json.load(response) if row["worker"]]
        if not placed:
            raise RuntimeError("every stream ended before a worker could be killed")
        name = collections.Counter(placed).most_common(1)[0][0]
        return next(row for row in self.rows() if row["worker_id"] == name)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, how):
        """The exit status after that signal; raises when there is none in time."""
        self.process.send_signal(how)
        try:
            return self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"did not end within {STOP_LIMIT_S} s: {self.last()}") from None

    def ask(self, fields, on_first=lambda: None):
        """(what must be equal, timings) of one streamed completion."""
        body = json.dumps({**fields, "stream": True}).encode()
        url = f"http://{self.process_of('router')['http']}/v1/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        parts, timings = [], None
        with DIRECT.open(request, timeout=ANSWER_LIMIT_S) as response:
            for line in response:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"an answer ended with {event['error']}")
                for choice in event["choices"]:
                    parts.append([choice["text"], choice["logprobs"], choice["finish_reason"]])
                if len(parts) == 1:
                    on_first()
                timings = event.get("timings", timings)
        if timings is None:
            raise RuntimeError("a stream ended without its last event")
        return parts, timings


# Prompts shorter than a block, longer, and of several.
LENGTHS = (1, 20, 64, 100, 128, 300, 450)
TINY_LENGTHS = (20, 100)


def requests(lengths, max_tokens):
    """Prompts of these lengths, each greedy and with a seed."""
    rows = []
    for length in lengths:
        fields = dict(prompt=list(range(3, 3 + min(length, 250))), ignore_eos=True, logprobs=3)
        fields["prompt"] += fields["prompt"][: length - len(fields["prompt"])]
        fields["max_tokens"] = max_tokens
        rows += [dict(fields, temperature=0), dict(fields, temperature=0.8, seed=length)]
    return rows


@contextlib.contextmanager
def serving(args, name, path, ways, how=signal.SIGINT):
    """A cluster, or None where it could not start; what ends badly is a finding of its own. It is
    ended by the signal `how`: SIGTERM takes new connections for 5 s more."""
    cluster = None
    try:
        cluster = Cluster(args, path, ways)
    except (OSError, RuntimeError) as error:
        args.add(name, "FAIL", str(error))
    try:
        yield cluster
        if cluster is not None:
            code = cluster.stop(how)
            if code != 0:
                args.add(f"{name}, its end", "FAIL", f"exit status {code}: {cluster.last()}")
    except BROKEN as error:
        args.add(name, "FAIL", f"{type(error).__name__} {error}; {cluster.last()}")
    finally:
        if cluster is not None and cluster.process.poll() is None:
            cluster.kill()


def ask_all(cluster, rows, on_first=lambda: None):
    """All at once, so that steps hold several; answers in the order of the requests."""
    with ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(lambda fields: cluster.ask(fields, on_first), rows))


def wrong_processes(way, cluster):
    """Why prefill and decode are not the processes of that way; "" when they are."""
    if way == "aggregated":
        return ""
    pids = {cluster.process_of(role)["pid"] for role in ("prefill", "decode")}
    return "" if len(pids) == (1 if way == "colocate" else 2) else f"its processes are {pids}"


def wrong_path(way, timings):
    """Why an answer was not computed in that way; "" when it was."""
    if timings["path"] != ("local" if way == "aggregated" else "disagg"):
        return f"its path is {timings['path']}"
    if "--transport" in WAYS[way] and timings["transport"] != way:
        return f"KV went by {timings['transport']}"
    return "" if timings["exact"] else "it is not exact"


def check_way(args, model, way, expected):
    """The answers of one way to serve, which are `expected` unless that is None."""
    name = f"{model} {way}" if expected is None else f"{model} {way} = aggregated"
    with serving(args, name, path_of(args, model), WAYS[way]) as cluster:
        if cluster is None:
            return None
        begin = time.monotonic()
        answers = ask_all(cluster, requests(*((TINY_LENGTHS, 6) if args.tiny else (LENGTHS, 40))))
        seconds = round(time.monotonic() - begin, 3)
        whys = [wrong_processes(way, cluster)]
        whys += [wrong_path(way, timings) for _, timings in answers]
        problems = [why for why in whys if why]
        kv_bytes = sum(timings["kv_bytes"] for _, timings in answers)
        if (kv_bytes == 0) != (way == "aggregated"):
            problems.append(f"{kv_bytes} bytes of KV were moved")
        bits = [parts for parts, _ in answers]
        num_wrong = 0 if expected is None else sum(a != b for a, b in zip(bits, expected))
        if num_wrong > 0:
            problems.append(f"{num_wrong} of {len(bits)} answers differ")
        args.add(
            name,
            "FAIL" if problems else "pass",
            problems[0] if problems else f"{len(bits)} answers, up in {cluster.up_s} s",
            up_s=cluster.up_s,
            seconds=seconds,
            kv_bytes=kv_bytes,
        )
        return bits
    return None


def check_killed_worker(args, name, path):
    """A decode worker is killed when all streams have begun; their answers stay what they were."""
    with serving(args, name, path, KILLED, signal.SIGTERM) as cluster:
        if cluster is None:
            return
        # Short prompts: the last stream begins before the first one has got far.
        rows = requests((20, 40), 60 if args.tiny else 450)
        expected = [parts for parts, _ in ask_all(cluster, rows)]
        waiting = [len(rows)]
        lock = threading.Lock()

        def on_first():
            with lock:
                waiting[0] -= 1
                if waiting[0] == 0:
                    os.kill(cluster.busiest_decode_worker()["pid"], signal.SIGKILL)

        answers = ask_all(cluster, rows, on_first)
        num_wrong = sum(parts != before for (parts, _), before in zip(answers, expected))
        num_resumed = sum(timings["resumes"] > 0 for _, timings in answers)
        verdict, detail = "pass", f"{num_resumed} of {len(rows)} streams went on elsewhere"
        if num_wrong > 0:
            verdict, detail = "FAIL", f"{num_wrong} of {len(rows)} answers differ"
        elif num_resumed == 0:
            verdict, detail = "FAIL", "no stream was open on the worker when it died"
        args.add(name, verdict, detail, resumed=num_resumed)


def end_at_once(args):
    """Threads that read answers would be waited for otherwise."""
    for process in args.processes:
        process.kill()
    shutil.rmtree(args.folder, ignore_errors=True)
    os._exit(1)


@contextlib.contextmanager
def own_folder(args):
    """A folder and a list of processes, both gone when SIGTERM ends this program or it returns."""
    args.folder = tempfile.mkdtemp(prefix="baton_product_")
    args.processes = []
    signal.signal(signal.SIGTERM, lambda *_: end_at_once(args))
    try:
        yield
    finally:
        shutil.rmtree(args.folder, ignore_errors=True)


def check(args):
    models = TINY_MODELS if args.tiny else MODELS
    for model, ways in models.items():
        expected = check_way(args, model, ways[0], None)
        if expected is None:
            continue  # has failed
        for way in ways[1:]:
            check_way(args, model, way, expected)
    first = next(iter(models))
    check_killed_worker(args, f"{first} killed decode worker", path_of(args, first))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baton", required=True)
    parser.add_argument("--models", required=True, help="the folder of tiny_*.gguf")
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true", help="one model, few ways and tokens")
    args = parser.parse_args()
    args.add, args.kv_memory, args.start_limit_s = add, "16MiB", START_LIMIT_S
    with own_folder(args):
        check(args)


if __name__ == "__main__":
    main()
