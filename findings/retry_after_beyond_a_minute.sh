#!/usr/bin/env bash
# openai (Python): what a client does with `Retry-After` beyond a minute depends on its release.
#
# An inference server with a long queue answers 429 with the seconds after which a place is likely.
# 1.109.1 waits 3 seconds when it reads "Retry-After: 3", but drops a value above 60 without a word
# and tries again within about a second, so that the longest queues get the quickest retries.
# 3.57.0 waits as long as it is told, inside the call: the caller's thread stands for a minute and
# more. Neither release sends anything that ties the retry to the first try but the header
# `x-stainless-retry-count`: a server that wants to compute an answer once needs the caller's own
# idempotency key.
#
# Exit status 0: still so. 1: it changed. 2: the check could not be made (packages, port).
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for release in 1.109.1 3.57.0; do
  python3 -m venv "$work/$release" &&
    "$work/$release/bin/pip" install -q "openai==$release" || exit 2
done

cat >"$work/try.py" <<'PY'
import os
import sys
import traceback


def end(kind, error, trace):
    """A claim that fails ends with 1, all else with 2."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    os._exit(1 if issubclass(kind, AssertionError) else 2)


sys.excepthook = end

import http.server
import threading
import time

import openai

told = ""
came = []  # (when, headers) of each request


class Busy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        came.append((time.monotonic(), dict(self.headers)))
        body = b'{"error": {"message": "the queue is full", "type": "rate_limit_error"}}'
        self.send_response(429)
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After", told)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(
    base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=1
)
waits = {}
for told in ("3", "61"):
    came.clear()
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    except openai.RateLimitError:
        pass
    (first, _), (second, headers) = came
    waits[told] = second - first
    ties = [name for name in headers if "retry" in name.lower() or "idempot" in name.lower()]
    print(f"openai {openai.__version__}: Retry-After {told}: tried again after "
          f"{waits[told]:.1f} s with {ties}")
    assert ties == ["x-stainless-retry-count"], "the retry is tied to its first try now"
assert 2.9 < waits["3"] < 5
if sys.argv[1] == "dropped":
    assert waits["61"] < 10, "a value above 60 is heard now"
else:
    assert 60 < waits["61"] < 70, "a value above 60 is no longer waited for"
PY
"$work/1.109.1/bin/python" "$work/try.py" dropped || exit "$(($? == 1 ? 1 : 2))"
"$work/3.57.0/bin/python" "$work/try.py" heard || exit "$(($? == 1 ? 1 : 2))"
