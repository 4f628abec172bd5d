#!/usr/bin/env bash
# openai 3.57.0 and anthropic 2.14.0 (Python): an answer whose stream ends early looks whole.
#
# A stream of chat chunks ends with a chunk that has `finish_reason` and then `data: [DONE]`, a
# stream of Messages with `message_delta` and `message_stop`. When a proxy or a server ends the HTTP
# body in order (the last chunk of the transfer coding is there) before these events, one would
# expect an error. Both clients end their loop silently, and their helpers, `get_final_completion`
# and `get_final_message`, return the half answer as a final one. The only sign is that
# `finish_reason` or `stop_reason` is None. A server that fails in the middle has to send an error
# event, or to break the connection without the last chunk: both are raised. The helper of Messages
# raises the broken connection as httpx2's RemoteProtocolError (2.16.2), which
# `except anthropic.APIError` does not catch.
#
# Exit status 0: still so. 1: it changed. 2: the check could not be made (packages, port).
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" &&
  "$work/venv/bin/pip" install -q openai==3.57.0 anthropic==2.14.0 httpx2==2.16.2 || exit 2

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
import json
import threading

import anthropic
import openai

ending = ""  # how the stream ends before its last events


def chat_events():
    for text in ("half", " an"):
        delta = {"role": "assistant", "content": text}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield "", {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                   "choices": [choice]}


def messages_events():
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m",
               "stop_reason": None, "stop_sequence": None,
               "usage": {"input_tokens": 1, "output_tokens": 0}}
    yield "message_start", {"message": message}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    for text in ("half", " an"):
        delta = {"type": "text_delta", "text": text}
        yield "content_block_delta", {"index": 0, "delta": delta}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def send_chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        is_chat = "chat" in self.path
        for name, body in chat_events() if is_chat else messages_events():
            if name:
                body = {"type": name, **body}
            event = f"event: {name}\n" if name else ""
            self.send_chunk(f"{event}data: {json.dumps(body)}\n\n".encode())
        if ending == "an error event":
            error = {"message": "a worker is gone", "type": "api_error"}
            event = "" if is_chat else "event: error\n"
            body = {"type": "error", "error": error}
            self.send_chunk(f"{event}data: {json.dumps(body)}\n\n".encode())
        if ending != "no last chunk":
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
chat = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
messages = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
ASK = [{"role": "user", "content": "Hi"}]


def chat_loop():
    chunks = chat.chat.completions.create(model="m", messages=ASK, stream=True)
    return "".join(chunk.choices[0].delta.content for chunk in chunks)


def chat_helper():
    with chat.chat.completions.stream(model="m", messages=ASK) as stream:
        choice = stream.get_final_completion().choices[0]
        return choice.message.content, choice.finish_reason


def messages_helper():
    with messages.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
        message = stream.get_final_message()
        return message.content[0].text, message.stop_reason


print(f"openai {openai.__version__}, anthropic {anthropic.__version__}")
seen = {}
for ending in ("a body that ends in order", "an error event", "no last chunk"):
    for ask in (chat_loop, chat_helper, messages_helper):
        try:
            seen[ending, ask.__name__] = ask()
        except Exception as error:
            seen[ending, ask.__name__] = type(error).__name__
        print(f"{ending}, {ask.__name__}: {seen[ending, ask.__name__]}")
whole = "a body that ends in order"
assert seen[whole, "chat_loop"] == "half an"
assert seen[whole, "chat_helper"] == ("half an", None)
assert seen[whole, "messages_helper"] == ("half an", None)
for ending in ("an error event", "no last chunk"):
    for ask in ("chat_loop", "chat_helper", "messages_helper"):
        assert seen[ending, ask].endswith("Error"), (ending, ask)
assert seen["no last chunk", "messages_helper"] == "RemoteProtocolError"
PY
"$work/venv/bin/python" "$work/try.py" || exit "$(($? == 1 ? 1 : 2))"
