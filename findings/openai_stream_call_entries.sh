#!/usr/bin/env bash
# openai (Python) 1.109.1, `chat.completions.stream`: two entries for one call in one chunk.
#
# A chunk's `delta.tool_calls` has an `index` for each entry, which says to which call it belongs.
# When the chunk with which a call begins has two entries of index 0 (the name, then the first text
# of its arguments), one would expect one call whose arguments are joined. The stream helper keeps
# both entries as two calls: the second has no id and no name, and later pieces go to the first, so
# that neither has arguments that are JSON. A server has to send one entry in a chunk.
#
# Exit status 0: still so. 1: it changed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q openai==1.109.1

cat >"$work/try.py" <<'PY'
import http.server
import json
import threading

import openai


def call(*entries):
    return {"tool_calls": [dict(index=0, **entry) for entry in entries]}


BEGIN = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
FORMS = {
    "two entries in the first chunk": [
        call(BEGIN, {"function": {"arguments": '{"a"'}}),
        call({"function": {"arguments": ": 1}"}}),
    ],
    "one entry a chunk": [
        call(BEGIN),
        call({"function": {"arguments": '{"a"'}}),
        call({"function": {"arguments": ": 1}"}}),
    ],
}


class Handler(http.server.BaseHTTPRequestHandler):
    deltas = []

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta in [*self.deltas, {}]:
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
seen = {}
for name, deltas in FORMS.items():
    Handler.deltas = deltas
    with client.chat.completions.stream(model="m", messages=[]) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    seen[name] = [(c.id, c.function.name, c.function.arguments) for c in calls]
    print(f"openai {openai.__version__}, {name}: {seen[name]}")
assert seen["one entry a chunk"] == [("call_1", "f", '{"a": 1}')]
assert len(seen["two entries in the first chunk"]) == 2, "the client joins entries by index now"
PY
"$work/venv/bin/python" "$work/try.py"
