#!/usr/bin/env bash
# vllm-router 0.1.17 (PyPI): what reaches the worker is not what the client sent.
#
# A router in front of OpenAI-compatible servers is expected to pass a body on. This one reads it
# into its own types and writes it again. Unknown fields at the top of a chat request survive, but
# `stream_options.continuous_usage_stats` and unknown members of a message are dropped,
# `reasoning_content` in the history becomes `reasoning`, `content: null` goes, and fields that the
# client never sent are added (separate_reasoning, stream_reasoning, include_reasoning, ...). A
# server that refuses unknown fields answers 400 to requests that are right, and one that is asked
# for usage in each chunk sends none. Of embeddings every unknown field is dropped.
# The way back differs too: a JSON error of a streaming request comes as text/event-stream, and a
# 429 with `Retry-After: 7` is sent again four times within a second before the client hears of it.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" &&
  "$work/venv/bin/pip" install -q vllm-router==0.1.17 || exit 2

cat >"$work/try.py" <<'PY'
import http.client
import http.server
import importlib.metadata
import json
import socket
import subprocess
import sys
import threading
import time

bodies = []  # what the worker got


class Worker(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, headers=()):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (*headers, ("Content-Type", "application/json")):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        error = {"error": {"message": "no", "type": "t", "code": "c"}}
        if bodies[-1].get("user") == "bad":
            self.answer(400, error)
        elif bodies[-1].get("user") == "busy":
            self.answer(429, error, [("Retry-After", "7")])
        else:
            self.answer(200, {"object": "none"})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path, body):
    bodies.clear()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status, dict(answer.headers), time.monotonic() - began


worker = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Worker)
threading.Thread(target=worker.serve_forever, daemon=True).start()
port = free_port()
router = subprocess.Popen(
    [f"{sys.argv[1]}/bin/vllm-router", "--host", "127.0.0.1", "--port", str(port)]
    + ["--prometheus-port", str(free_port()), "--policy", "round_robin"]
    + ["--worker-urls", f"http://127.0.0.1:{worker.server_port}"],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    user = {"role": "user", "content": "hi"}
    chat = "/v1/chat/completions"
    for _ in range(300):  # until the router knows its worker
        try:
            if ask(port, chat, {"model": "m", "messages": [user]})[0] == 200:
                break
        except OSError:
            pass
        time.sleep(0.1)
    print("vllm-router", importlib.metadata.version("vllm-router"))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    sent = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "my_field": 1,
        "messages": [
            user,
            {"role": "assistant", "content": "a", "reasoning_content": "b", "my_member": 1},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
    }
    ask(port, chat, sent)
    got = bodies[0]
    added = sorted(set(got) - set(sent))
    print("added:", ", ".join(added))
    print("stream_options:", got["stream_options"])
    print("history:", got["messages"][1:])
    ask(port, "/v1/embeddings", {"model": "m", "input": "x", "my_field": 1})
    print("embeddings:", bodies[0])
    embeddings = bodies[0]
    base = {"model": "m", "stream": True, "messages": [user]}
    bad = ask(port, chat, {**base, "user": "bad"})
    busy = ask(port, chat, {**base, "user": "busy"})
    kind = {name.lower(): value for name, value in bad[1].items()}["content-type"]
    print(f"400: Content-Type {kind}; 429: the worker was asked {len(bodies)} times")
    print(f"in {busy[2]:.1f} s")
finally:
    router.kill()
    router.wait()
assert {"separate_reasoning", "stream_reasoning", "include_reasoning"} <= set(added)
assert got["my_field"] == 1
assert got["stream_options"] == {"include_usage": True}
assert got["messages"][1] == {"role": "assistant", "content": "a", "reasoning": "b"}
assert "content" not in got["messages"][2]
assert embeddings == {"model": "m", "input": "x"}
assert bad[0] == 400 and kind == "text/event-stream"
assert busy[0] == 429 and len(bodies) == 5 and busy[2] < 5
PY

"$work/venv/bin/python" "$work/try.py" "$work/venv"
