"""Starts the real binary and talks to it; shared by the end-to-end tests.

Environment: BATON_BIN (default build/baton), BATON_E2E_MODEL (default: the catalogue model).
"""

import atexit
import concurrent.futures
import functools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import free_port  # noqa: E402, F401

BIN = os.environ.get("BATON_BIN", str(ROOT / "build" / "baton"))
MODEL = os.environ.get("BATON_E2E_MODEL", "smollm2:135m")
_STUBS_LOCK = threading.Lock()
START_LIMIT_S = float(os.environ.get("BATON_E2E_START_LIMIT_S", "180"))
# The least limit of a wait. A limit ends a broken test and measures nothing: other tests share the
# processors, and a process may get none for seconds.
PATIENCE_S = 60
# Flags of a server that is asked for more at once than it may run: on a slow machine a queue takes
# longer than the 10 s after which clients are refused.
PATIENT = ("--queue-wait-ms", "600000", "--prefill-wait-ms", "600000")
GOLDEN = ROOT / "tests" / "golden"
# For what is the same with any model: its workers start with a quarter of the processor time.
TINY = str(GOLDEN / "tiny_qwen2.gguf")


@functools.cache
def _stub_folder():
    from grpc_tools import protoc

    out = tempfile.mkdtemp(prefix="baton_stubs_")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    args = [
        "protoc",
        f"-I{ROOT / 'proto'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        "baton/v1/inference.proto",
    ]
    assert protoc.main(args) == 0
    sys.path.insert(0, out)
    return out


def generated_stubs():
    """Compiles proto/baton/v1 with grpcio-tools, as a user of the protos would."""
    with _STUBS_LOCK:
        _stub_folder()
        from baton.v1 import inference_pb2, inference_pb2_grpc
    return inference_pb2, inference_pb2_grpc


def seed_of_tests(otherwise):
    """The seed of drawn inputs, as tests/test_seed.h reads it; prints it."""
    text = os.environ.get("BATON_TEST_SEED", otherwise)
    seed = secrets.randbits(32) if text == "random" else int(text)
    print(f"BATON_TEST_SEED={seed}")
    return seed


def wait_until(condition, limit_s, what):
    """Polls until condition() is true, for `limit_s` or PATIENCE_S; its last value is returned."""
    limit_s = max(limit_s, PATIENCE_S)
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s} s: {what}; last value {value!r}")
        time.sleep(0.02)


def http_json(url, body=None, timeout=120, headers=None):
    """(status, headers, parsed body) of a GET, or of a POST when there is a body; bytes go as they
    are."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, headers={"Content-Type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.headers, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, error.headers, json.loads(text) if text else None


def metrics_text(process):
    """The text of /metrics of one process (a row of the topology)."""
    url = f"http://{process['admin']}/metrics"
    return urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode()


def metric(process, name, labels=""):
    """The one value of `name` whose row has `labels` as they are written."""
    pattern = rf"^{name}{{[^}}]*{labels}[^}}]*}} (\S+)$"
    (value,) = re.findall(pattern, metrics_text(process), re.M)
    return float(value)


def pool_flags(model, args=()):
    """The size of a worker's KV pool, where a test names none: room for the longest sequence of the
    catalogue's model and a third more, or for 16 of a golden one. The program takes 1 GiB, and to
    write its pages was most of the processor time of a start: 0.4 s for each worker."""
    if "--kv-memory" in args:
        return ()
    if model == "smollm2:135m":
        return ("--kv-memory", "512MiB" if "f32" in args else "256MiB")
    return ("--kv-memory", "16MiB") if str(model).startswith(str(GOLDEN)) else ()


class Server:
    """One `baton serve` with free ports; `credentials` of the gRPC channel, None = plaintext."""

    def __init__(self, *args, model=MODEL, env=None, credentials=None):
        self.dir = tempfile.mkdtemp(prefix="baton_e2e_")
        self.log = open(os.path.join(self.dir, "serve.out"), "wb")
        self.args = [
            BIN,
            "serve",
            model,
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--run-dir",
            self.dir,
            *pool_flags(model, args),
            *args,
        ]
        self.process = subprocess.Popen(
            self.args, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            wait_until(self._ready, START_LIMIT_S, "serve is ready")
        except AssertionError:
            self.process.kill()
            raise AssertionError(self.output())
        self.router = next(p for p in self.topology() if p["role"] == "router")
        self.http = ("https://" if "https" in self.router else "http://") + self.router["http"]
        self.grpc = self.router["grpc"]
        if credentials is None:
            self.channel = grpc.insecure_channel(self.grpc)
        else:
            self.channel = grpc.secure_channel(self.grpc, credentials)

    def _ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"serve ended with {self.process.returncode}: {self.output()}")
        return b"is ready" in open(os.path.join(self.dir, "serve.out"), "rb").read()

    def output(self):
        texts = [
            open(p, errors="replace").read()[-3000:] for p in sorted(Path(self.dir).glob("*.log"))
        ]
        return open(os.path.join(self.dir, "serve.out"), errors="replace").read() + "\n".join(texts)

    def log_size(self):
        """Bytes that `serve` has said so far."""
        return os.path.getsize(os.path.join(self.dir, "serve.out"))

    def log_since(self, size):
        """The text that `serve` has printed since log_size() gave `size`."""
        with open(os.path.join(self.dir, "serve.out"), "rb") as file:
            file.seek(size)
            return file.read().decode(errors="replace")

    def topology(self):
        with open(os.path.join(self.dir, "topology.json")) as file:
            return json.load(file)["processes"]

    def workers(self):
        return [p for p in self.topology() if p["role"] != "router"]

    def get(self, path):
        return http_json(self.http + path)

    def post(self, path, body, **kwargs):
        return http_json(self.http + path, body, **kwargs)

    def stream(self, path, body):
        """The events of a stream as they are on the wire, without the closing [DONE]."""
        request = urllib.request.Request(
            self.http + path,
            json.dumps({**body, "stream": True}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            blocks = response.read().decode().split("\n\n")
            events = [b[6:] for b in blocks if b and not b.startswith(":")]
        assert events.pop() == "[DONE]"
        return [json.loads(e) for e in events]

    def blocks(self, worker):
        """{state: blocks} of one worker, from its metrics."""
        rows = re.findall(r"^baton_kv_blocks\{([^}]*)\} (\S+)$", metrics_text(worker), re.M)
        return {
            re.search(r'state="(\w+)"', labels).group(1): float(value) for labels, value in rows
        }

    def ledger_is_clean(self):
        for worker in self.workers():
            try:
                counts = self.blocks(worker)
            except OSError:  # a worker that starts again
                return False
            if sum(v for k, v in counts.items() if k not in ("free", "cached")) != 0:
                return False
            if sum(counts.values()) == 0:
                return False
        return True

    def stop(self, how=signal.SIGINT, limit_s=PATIENCE_S):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(limit_s)
        self.log.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        if exc[0] is None:  # after a failure the logs are what one needs
            shutil.rmtree(self.dir, ignore_errors=True)


class Answer:
    """Everything that must be equal between two runs of one request, and where it was computed."""

    def __init__(self, chunks):
        self.tokens, self.logprobs, self.texts, self.finish = {}, {}, {}, {}
        self.timings = None
        self.usage = None
        for chunk in chunks:
            choice = chunk.choices[0]
            rows = self.tokens.setdefault(choice.index, [])
            assert chunk.token_index == len(rows), "indices arrive once and in order"
            rows.append(chunk.token_id)
            self.logprobs.setdefault(choice.index, []).extend(
                (p, tuple((t.token, t.logprob) for t in tops.entries))
                for p, tops in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs)
            )
            self.texts[choice.index] = self.texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                self.finish[choice.index] = choice.finish_reason
            if chunk.HasField("timings"):
                self.timings, self.usage = chunk.timings, chunk.usage
        assert self.timings is not None, "the last chunk carries timings"

    def bits(self):
        return (self.tokens, self.logprobs, self.texts, self.finish)


def complete(server, timeout=300, **fields):
    """Streams one completion over gRPC."""
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(server.channel)
    return Answer(stub.StreamComplete(pb2.CompletionRequest(**fields), timeout=timeout))


def in_parallel(calls, width):
    """Results of the calls in order, at most `width` at a time."""
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
