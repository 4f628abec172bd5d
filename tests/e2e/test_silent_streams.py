"""Streams that are silent for long: behind gateways that wait a minute and no longer, with workers
that stand still, through nginx; and connections that idle."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import anthropic._streaming as anthropic_streaming
import openai._streaming as openai_streaming
import pytest

from baton_server import PATIENCE_S, Server, free_port, generated_stubs, metric, wait_until
from fault_work import live_requests, stop_amid

PING = b": ping\n\n"
COUNTS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
NUM_STREAMS = 24  # that a server of four at once is asked for together


def request_bytes(path, body, *fields):
    text = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""]).encode() + text


class Stream:
    """A stream on a raw socket; `reads` are (time, bytes) as they came, without chunk framing."""

    def __init__(self, server, path, body, port=None, fields=()):
        host, own_port = server.router["http"].split(":")
        self.socket = socket.create_connection((host, port or int(own_port)), PATIENCE_S)
        self.begin = time.monotonic()
        self.socket.sendall(request_bytes(path, {**body, "stream": True}, *fields))
        self.raw = b""
        self.reads = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        self.socket.settimeout(300)
        try:
            while not self._is_whole():
                data = self.socket.recv(1 << 16)
                if not data:
                    break
                self.reads.append((time.monotonic() - self.begin, data))
                self.raw += data
        except OSError:
            pass
        self.ended.set()

    def _is_whole(self):
        """A refusal has a length, and its connection stays open."""
        head, _, rest = self.raw.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.I)
        return len(rest) >= int(length[1]) if length else b"\r\n0\r\n\r\n" in self.raw[-64:]

    def body(self):
        """The body without its chunk framing; each chunk is one Write of the server."""
        _, _, rest = self.raw.partition(b"\r\n\r\n")
        text = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return text

    def events(self):
        """The events' payloads; everything else in the body is whole comments."""
        blocks = self.body().split(b"\n\n")
        assert blocks.pop() == b""
        assert all(b.startswith(b"data: ") or b == b": ping" for b in blocks), blocks
        return [b[6:].decode() for b in blocks if b != b": ping"]

    def head(self):
        return self.raw.partition(b"\r\n\r\n")[0].decode()

    def first_event_s(self):
        return next(t for t, data in self.reads if b"data: " in data)

    def num_tokens(self):
        """Tokens that the last whole event counts, of a stream that was asked for COUNTS."""
        counts = re.findall(rb'"completion_tokens":(\d+)', self.body())
        return int(counts[-1]) if counts else 0

    def close(self):
        self.socket.close()


def long_prompt(num_tokens, salt=7919):
    return [(salt * i) % 40000 + 1000 for i in range(num_tokens)]


@pytest.fixture(scope="module")
def pinging():
    # One thread: a prompt of a thousand tokens keeps it busy for seconds on any machine.
    flags = ("--sse-ping", "1", "--silence-timeout", "0", "--max-context", "8192", "--threads", "1")
    with Server(*flags) as running:
        yield running


def test_headers_and_pings_come_long_before_the_first_token(pinging):
    # Without pings a gateway would have cut these streams: nothing comes for as long as the prompt
    # takes. The second stream waits for the first at the same worker.
    body = {"max_tokens": 2, "ignore_eos": True, "stream_options": {"include_usage": True}}
    first = Stream(pinging, "/v1/completions", {**body, "prompt": long_prompt(1500)})
    second = Stream(pinging, "/v1/completions", {**body, "prompt": long_prompt(1200, 7877)})
    for stream in (first, second):
        assert stream.ended.wait(600)
        head = stream.head()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "\r\nX-Accel-Buffering: no\r\n" in head
        assert "\r\nCache-Control: no-cache\r\n" in head
        first_event_s = stream.first_event_s()
        if first_event_s < 4:
            pytest.skip(f"this machine computes the prompt in {first_event_s:.1f} s")
        assert stream.reads[0][0] < first_event_s / 2, "the headers do not wait"
        # One a second. Who gets no processor for a while sends none, and reads several at once.
        num_pings = stream.body().partition(b"data: ")[0].count(PING)
        assert num_pings >= first_event_s / 3, (num_pings, first_event_s)
        events = stream.events()
        assert events[-1] == "[DONE]"
        usage = json.loads(events[-2])["usage"]
        assert usage["completion_tokens"] == 2, "pings are no tokens"


def stream_with_a_pause(server, *fields, ping=PING):
    """A stream that was silent for two pings amid its tokens."""
    body = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, **COUNTS}
    stream = Stream(server, "/v1/completions", body, fields=fields)
    decode = wait_until(
        lambda: stop_amid(server, lambda row: 1 <= row["num_tokens"] < 200), 60, "tokens flow"
    )
    try:
        time.sleep(0.5)
        size = len(stream.raw)
        wait_until(lambda: stream.raw[size:].count(ping) >= 2, 10, "two pings")
    finally:
        os.kill(decode["pid"], signal.SIGCONT)
    assert stream.ended.wait(600)
    return stream


def test_pings_come_between_tokens_while_a_worker_stands_still(pinging):
    stream = stream_with_a_pause(pinging)
    events = stream.events()
    assert events[-1] == "[DONE]"
    text = [json.loads(e) for e in events[:-1]]
    assert sum(bool(e["choices"]) and e["choices"][0]["finish_reason"] is None for e in text) == 300
    assert stream.num_tokens() == 300, "pings are no tokens"


@pytest.mark.parametrize("decoder", [openai_streaming.SSEDecoder, anthropic_streaming.SSEDecoder])
def test_python_clients_read_the_pings_of_a_stream_with_ids(pinging, decoder):
    """An id before an empty line is an event to them, and they cannot read one without data."""
    stream = stream_with_a_pause(pinging, "X-Baton-Resumable: 1", ping=b": ping\n")
    events = list(decoder().iter_bytes(iter([stream.body()])))
    assert events[-1].data == "[DONE]" and events[0].id
    assert all(json.loads(event.data) for event in events[:-1])


def test_a_client_that_leaves_while_it_waits_is_noticed(pinging):
    fields = {"prompt": long_prompt(1500, 7907), "max_tokens": 300, "ignore_eos": True}
    before = metric(pinging.router, "baton_generation_tokens_total")
    stream = Stream(pinging, "/v1/completions", fields)
    wait_until(lambda: stream.raw.endswith(PING + b"\r\n") or stream.ended.is_set(), 30, "a ping")
    stream.close()
    wait_until(lambda: live_requests(pinging) == [], 10, "the request is gone")
    num_tokens = metric(pinging.router, "baton_generation_tokens_total") - before
    assert num_tokens < 300, "it ended because its client left"


def test_a_grpc_stream_tells_its_client_before_the_first_token(pinging):
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(pinging.channel)
    prompt = long_prompt(1500, 7901)
    request = pb2.CompletionRequest(prompt_token_ids=prompt, max_tokens=2, ignore_eos=True)
    call = stub.StreamComplete(request, timeout=600)
    metadata = dict(call.initial_metadata())
    (row,) = live_requests(pinging)
    assert row["num_tokens"] == 0, "its prompt is being computed"
    assert metadata["x-request-id"] == row["request_id"]
    assert len(list(call)) == 2


def test_failures_before_a_worker_takes_the_request_keep_their_status(pinging):
    for body, status in (
        ({"prompt": "a", "temperature": -1}, 400),
        ({"prompt": "a", "model": "other"}, 404),
    ):
        code, _, answer = pinging.post("/v1/completions", {**body, "stream": True})
        assert code == status and "error" in answer


def test_silence_ends_a_request_and_a_flowing_one_goes_on():
    # One thread: so many tokens take longer than the silence that is allowed, which is longer than
    # a worker may get no processor.
    args = ("--request-timeout", "4", "--sse-ping", "1", "--silence-timeout", "0", "--threads", "1")
    with Server(*args, "--mode", "aggregated") as server:
        fields = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}
        flowing = Stream(server, "/v1/completions", fields)

        def has_flowed():
            """For longer than the silence that is allowed."""
            return flowing.ended.is_set() or (flowing.reads and flowing.reads[-1][0] > 5)

        wait_until(has_flowed, 600, "it flows on")
        assert not flowing.ended.is_set(), flowing.raw[-500:]
        flowing.close()
        # A deadline of the client's own is total.
        # One that may end sooner is started, though it can hardly be in time.
        unlikely = {**fields, "timeout_ms": 1500, "stop": ["@@@@"]}
        code, _, answer = server.post("/v1/completions", unlikely)
        assert code == 504
        assert "'timeout_ms' gave it 1500 ms" in answer["error"]["message"]
        decode = server.workers()[0]
        stopped = Stream(server, "/v1/completions", fields)
        wait_until(lambda: stopped.raw.count(b"data: ") > 5, 60, "tokens flow")
        os.kill(decode["pid"], signal.SIGSTOP)
        try:
            assert stopped.ended.wait(PATIENCE_S)
        finally:
            os.kill(decode["pid"], signal.SIGCONT)
        last = json.loads(stopped.events()[-1])
        assert last["error"]["code"] == "deadline_exceeded"
        assert "no token came for 4 s" in last["error"]["message"]


def test_a_busy_server_names_the_time_of_the_next_place():
    args = ("--mode", "aggregated", "--queue-wait-ms", "500", "--kv-memory", "12MiB")
    with Server(*args, "--max-context", "512") as server:
        fields = {"prompt": "Once", "max_tokens": 120, "ignore_eos": True}
        streams = [Stream(server, "/v1/completions", fields) for _ in range(NUM_STREAMS)]
        for stream in streams:
            assert stream.ended.wait(600)
        refused = [s.head() for s in streams if s.head().startswith("HTTP/1.1 429")]
        longest_s = max(s.reads[-1][0] for s in streams)
        assert refused and len(refused) < NUM_STREAMS
        waits = [int(h.split("Retry-After: ")[1].split("\r\n")[0]) for h in refused]
        assert all(1 <= wait <= 60 for wait in waits)
        if longest_s > 6:
            assert max(waits) > 1, (waits, longest_s)


def test_an_idle_connection_lives_as_long_as_it_was_told():
    with Server("--mode", "aggregated", "--idle-timeout", "2") as server:
        host, port = server.router["http"].split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            begin = time.monotonic()
            client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"\r\nKeep-Alive: timeout=2\r\n" in client.recv(4096)
            # The default is longer than the socket waits.
            assert client.recv(4096) == b""
            assert time.monotonic() - begin > 1.9


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx on this machine")
def test_events_pass_an_nginx_with_its_defaults_one_by_one(pinging, tmp_path):
    port = free_port()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {tmp_path}/pid; error_log {tmp_path}/error;\n"
        f"events {{}} http {{ access_log off; {places} server {{ listen 127.0.0.1:{port};\n"
        f"location / {{ proxy_pass {pinging.http}; }} }} }}\n"
    )
    user = ["-g", "user root;"] if os.geteuid() == 0 else []
    nginx = subprocess.Popen(
        ["nginx", "-e", f"{tmp_path}/error", "-c", f"{tmp_path}/nginx.conf", *user]
    )
    try:

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, 10, "nginx listens")
        fields = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, **COUNTS}
        proxied = Stream(pinging, "/v1/completions", fields, port=port)
        # While its worker stands still, nothing pushes an event that nginx would hold.
        decode = wait_until(
            lambda: stop_amid(pinging, lambda row: 1 <= row["num_tokens"] < 200), 60, "tokens flow"
        )
        try:
            (row,) = live_requests(pinging)
            num_tokens = row["num_tokens"]
            wait_until(lambda: proxied.num_tokens() >= num_tokens, 10, "nginx gathers no events")
        finally:
            os.kill(decode["pid"], signal.SIGCONT)
        assert proxied.ended.wait(600)
        assert proxied.raw.count(b"data: ") == 300 + 3, "one for each token, three more"
    finally:
        nginx.terminate()
        nginx.wait(PATIENCE_S)
