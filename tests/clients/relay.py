"""Stands between a client library and the router: what passes is not changed.

It notes for each answer whether it was streamed, where it was computed, and what it says. Answers
to one greedy or seeded request must be the same always: within a run, and as in the file of an
earlier run. With a seed for kills it also kills a worker of the cluster (SIGKILL) while an answer
is under way, at a random token of it.
"""

import collections
import contextlib
import http.client
import http.server
import json
import os
import random
import re
import signal
import threading
import time

from baton_server import http_json
from fault_work import live_requests, wait_serving

ANSWERS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
)
HOP_BY_HOP = ("host", "connection", "keep-alive", "transfer-encoding", "content-length")
# Kills of one test, so that one that asks a hundred questions does not take the whole time.
KILLS_OF_A_TEST = 6
KILL_POLL_S = 0.004
SERVING_LIMIT_S = 180
# Fields that may differ between two answers to one request: names, times, cached tokens.
VOLATILE = re.compile(
    r"^(id|call_id|item_id|response_id|tool_call_id|created|created_at|timings|request_id"
    r"|sequence_number|.*_duration|prompt_tokens_details|input_tokens_details|input_tokens"
    r"|cache_\w+_input_tokens|obfuscation)$"
)
MADE_IDS = re.compile(r"\b(call|toolu|fc|msg|rs|resp|chatcmpl|pyd_ai|run)_?-?[0-9A-Za-z_-]{8,}")


def without_volatile(value):
    if isinstance(value, dict):
        return {k: without_volatile(v) for k, v in value.items() if not VOLATILE.match(k)}
    if isinstance(value, list):
        return [without_volatile(v) for v in value]
    return value


def events_of(text, path):
    if path.startswith("/api/"):
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    lines = re.findall(r"^data: ?(.*)$", text, re.M)
    return [json.loads(line) for line in lines if line.strip() not in ("", "[DONE]")]


def add_delta(total, delta):
    """Joins the pieces of an answer: texts one after the other, lists by `index`."""
    for key, value in delta.items():
        if key == "index" or value is None:
            continue
        if isinstance(value, list) and all(isinstance(v, dict) for v in value):
            rows = total.setdefault(key, {})
            for piece in value:
                place = piece.get("index", len(rows))
                add_delta(rows.setdefault(str(place), {}), piece)
        elif isinstance(value, dict):
            add_delta(total.setdefault(key, {}), value)
        elif isinstance(value, str) and key in ("content", "text", "arguments", "thinking",
                                                "partial_json", "reasoning_content", "response",
                                                "delta"):  # fmt: skip
            total[key] = total.get(key, "") + value
        else:
            total[key] = value
    return total


def said(text, path, streamed):
    """What an answer says, in a form that two runs can be compared by."""
    if not streamed:
        return without_volatile(json.loads(text))
    total = {}
    for event in events_of(text, path):
        if "response" in event and isinstance(event["response"], dict):  # of /v1/responses
            total["response"] = without_volatile(event["response"])
            continue
        event = without_volatile(event)
        kind = str(event.pop("type", ""))
        part = f"{kind} {event.get('index', event.get('output_index', ''))}".strip()
        add_delta(total.setdefault(part, {}), event)
    return total


def is_fixed(body):
    """One body, one answer: greedy, or by a seed."""
    options = body.get("options") or {}
    temperature = body.get("temperature", options.get("temperature"))
    return temperature == 0 or body.get("seed", options.get("seed")) is not None


def timings_of(text):
    rows = re.findall(r'"timings":(\{[^{}]*\})', text)
    return [json.loads(row) for row in rows]


class Test:
    """What passed during one test."""

    def __init__(self, name):
        self.name = name
        self.counts = collections.Counter()
        self.kills, self.problems = [], []
        self.requests = []  # (path, headers, body) of those that ask for an answer


class Relay:
    """`expected`: {request: answer} of an earlier run, or empty; `kill_seed`: None = no kills."""

    def __init__(self, cluster, expected=None, kill_seed=None):
        self.cluster, self.kill_seed = cluster, kill_seed
        self.num_processes = len(cluster.topology())
        self.answers = dict(expected or {})
        self.lengths = {}
        self.lock, self.kill_lock = threading.Lock(), threading.Lock()
        self.test = Test("start")
        self.rng = random.Random(kill_seed)
        relay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_any(self):
                relay.pass_on(self)

            do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = do_any

        self.http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http_server.daemon_threads = True
        threading.Thread(target=self.http_server.serve_forever, daemon=True).start()
        self.http = f"http://127.0.0.1:{self.http_server.server_port}"
        self.grpc = cluster.grpc

    def close(self):
        self.http_server.shutdown()
        self.http_server.server_close()

    def get(self, path):
        return http_json(self.http + path)

    def post(self, path, body, **kwargs):
        return http_json(self.http + path, body, **kwargs)

    def begin(self, name):
        """Counts what passes from now on for the test of this name; its kills depend on the seed
        and the name alone."""
        self.test = Test(name)
        if self.kill_seed is not None:
            self.rng = random.Random(f"{self.kill_seed} {name}")

    def pass_on(self, handler):
        length = int(handler.headers.get("Content-Length") or 0)
        data = handler.rfile.read(length) if length else None
        path = handler.path.split("?")[0]
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in HOP_BY_HOP}
        is_answer = handler.command == "POST" and path in ANSWERS
        request_id = next((v for k, v in headers.items() if k.lower() == "x-request-id"), None)
        if is_answer and request_id is None:
            request_id = f"relay-{random.getrandbits(64):016x}"
            headers["X-Request-Id"] = request_id
        key = self.key_of(path, data) if is_answer else None
        if is_answer:
            with self.lock:
                self.test.requests.append((path, headers, data))
        if not is_answer:
            self.forward(handler, path, data, headers, None)
            return
        with self.killing(key, request_id):
            self.forward(handler, path, data, headers, key)

    def forward(self, handler, path, data, headers, key):
        host = self.cluster.http.split("//")[1]
        upstream = http.client.HTTPConnection(host, timeout=600)
        try:
            upstream.request(handler.command, handler.path, body=data, headers=headers)
            self.copy(handler, path, upstream.getresponse(), key)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has left, and so do we
        finally:
            upstream.close()

    def copy(self, handler, path, response, key):
        chunked = response.getheader("Content-Length") is None and handler.command != "HEAD"
        kind = response.getheader("Content-Type") or ""
        handler.send_response(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "keep-alive", "transfer-encoding", "date"):
                handler.send_header(name, value)
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        is_stream = kind.startswith(("text/event-stream", "application/x-ndjson"))
        is_noted = key is not None and response.status == 200
        if not chunked:
            whole = response.read()
            if is_noted:
                self.note(key, path, whole.decode(), is_stream)
            handler.wfile.write(whole)
            return
        taken = []
        while piece := response.read1(65536):
            taken.append(piece)
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.flush()
        # Before the client has the end, so that its test still runs.
        if is_noted:
            self.note(key, path, b"".join(taken).decode(), is_stream)
        handler.wfile.write(b"0\r\n\r\n")

    def key_of(self, path, data):
        """The request by which answers are found again; "" when its answer is not fixed."""
        try:
            body = json.loads(data or b"null")
        except ValueError:
            return ""
        if not isinstance(body, dict) or not is_fixed(body):
            return ""
        return path + " " + MADE_IDS.sub("ID", json.dumps(body, sort_keys=True))

    def note(self, key, path, text, streamed):
        self.count(streamed, timings_of(text))
        if key:
            self.compare(key, json.dumps(said(text, path, streamed), sort_keys=True))

    def count(self, streamed, timings):
        """An answer came, whose parts were computed as these timings say."""
        is_split = bool(timings) and all(t["path"] == "disagg" for t in timings)
        with self.lock:
            self.test.counts["streamed" if streamed else "whole"] += 1
            self.test.counts["split" if is_split else "unsplit"] += 1
            self.test.counts["resumed"] += any(t["resumes"] for t in timings)

    def compare(self, key, answer):
        """Every answer to this request is the same text."""
        with self.lock:
            if key not in self.answers:
                self.answers[key] = answer
                self.test.counts["new"] += 1
                return
            self.test.counts["compared"] += 1
            if self.answers[key] == answer:
                self.test.counts["equal"] += 1
            else:
                self.test.problems.append(
                    f"another answer to {key}:\n{answer}\ninstead of\n{self.answers[key]}"
                )

    @contextlib.contextmanager
    def killing(self, key, request_id):
        """The request of this name is asked in this block: a worker of it dies, if any should."""
        killer = self.start_killer(key, request_id)
        try:
            yield
        finally:
            if killer:
                killer.stop()

    def start_killer(self, key, request_id):
        if self.kill_seed is None or not key:
            return None
        with self.lock:
            # A worker that is still starting is not killed again.
            wait_serving(self.cluster, self.num_processes, SERVING_LIMIT_S)
            if len(self.test.kills) >= KILLS_OF_A_TEST or not self.kill_lock.acquire(False):
                return None
            role = self.rng.choice(["prefill", "decode"])
            # A prompt's worker is of use until the first token.
            most = tokens_of(self.answers.get(key, "")) if role == "decode" else 0
            index = self.rng.randrange(max(most, 1))
            killer = Killer(self, role, index, request_id)
        killer.start()
        return killer


def tokens_of(answer):
    """How many tokens an answer had; the names are those of four APIs."""
    counts = re.findall(r'"(?:completion_tokens|output_tokens|eval_count)": (\d+)', answer)
    return max(map(int, counts), default=8)


class Killer(threading.Thread):
    """Waits until a request has `index` tokens, and kills its worker of a role."""

    def __init__(self, relay, role, index, request_id):
        super().__init__(daemon=True)
        self.relay, self.role, self.index, self.request_id = relay, role, index, request_id
        self.test = relay.test
        self.ended = threading.Event()

    def run(self):
        try:
            while not self.ended.wait(KILL_POLL_S):
                rows = [r for r in live_requests(self.relay.cluster) if self.is_due(r)]
                if rows:
                    self.kill(rows[0])
                    return
        finally:
            self.relay.kill_lock.release()

    def is_due(self, row):
        return (
            row["request_id"] == self.request_id
            and row["num_tokens"] >= self.index
            and (row["worker"] if self.role == "decode" else row["prefill_worker"])
        )

    def kill(self, row):
        name = row["worker"] if self.role == "decode" else row["prefill_worker"]
        (pid,) = [w["pid"] for w in self.relay.cluster.workers() if w["worker_id"] == name]
        os.kill(pid, signal.SIGKILL)
        self.test.kills.append(dict(role=self.role, worker=name, token=row["num_tokens"]))
        deadline = time.monotonic() + 30
        while pid in [p["pid"] for p in self.relay.cluster.topology()]:
            assert time.monotonic() < deadline, f"the death of {name} was not seen"
            time.sleep(0.02)

    def stop(self):
        self.ended.set()
        self.join()
