#!/usr/bin/env bash
# ollama (Python) 0.6.3 with httpx 0.28.1: a streamed answer with U+2028 in its text fails.
#
# Ollama's API streams one JSON object a line. JSON lets U+2028, U+2029 and U+0085 stand unescaped
# within a string, and only U+000A ends a line of such a stream, so one would expect such a text to
# come whole. The client reads by httpx's `iter_lines`, which cuts where `str.splitlines` cuts: at
# these three as well. Half an object reaches the JSON parser, which raises. A server has to escape
# the three characters, though JSON does not ask for it.
#
# Exit status 0: still so. 1: it changed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q ollama==0.6.3 httpx==0.28.1

cat >"$work/try.py" <<'PY'
import http.server
import json
import threading

import ollama

# (name, text, escaped on the wire, whether the answer is expected to come whole)
FORMS = [
    ("a plain letter", "a-b", False, True),
    ("U+2028 as it is", "a\u2028b", False, False),
    ("U+2029 as it is", "a\u2029b", False, False),
    ("U+0085 as it is", "a\u0085b", False, False),
    ("U+2028 escaped", "a\u2028b", True, True),
]


class Handler(http.server.BaseHTTPRequestHandler):
    text, escaped = "", False

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        for text, done in ((self.text, False), ("", True)):
            line = {
                "model": "m",
                "created_at": "2026-01-01T00:00:00Z",
                "message": {"role": "assistant", "content": text},
                "done": done,
            }
            self.wfile.write(json.dumps(line, ensure_ascii=self.escaped).encode() + b"\n")

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = ollama.Client(host=f"http://127.0.0.1:{server.server_port}")

changed = False
for name, text, escaped, comes_whole in FORMS:
    Handler.text, Handler.escaped = text, escaped
    try:
        parts = client.chat("m", messages=[{"role": "user", "content": "x"}], stream=True)
        got = "".join(part.message.content for part in parts)
        outcome = "whole" if got == text else f"changed: {got!r}"
    except json.JSONDecodeError as error:
        outcome = f"JSONDecodeError: {error.msg}"
    print(f"{name}: {outcome}")
    changed |= (outcome == "whole") != comes_whole
raise SystemExit(1 if changed else 0)
PY

"$work/venv/bin/python" "$work/try.py"
