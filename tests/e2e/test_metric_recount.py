"""The router's counters beside a recount of what clients saw: whole and streamed answers, several
choices, refusals, clients that leave, deadlines, and a stream that outlives its decode worker."""

import json
import os
import re
import signal
import socket
import time
from urllib.parse import urlparse

import pytest

from baton_server import Server, metrics_text, wait_until
from fault_work import stop_amid

FINISHES = ("stop", "length", "cancelled", "deadline", "error")
CHAT = "/v1/chat/completions"
LIMIT_S = 300
DEADLINE_S = 1.5


class Recount:
    """Counts what the clients of a server have seen."""

    def __init__(self):
        self.codes, self.finish, self.choices = {}, dict.fromkeys(FINISHES, 0), {}
        self.prompt_tokens = self.tokens = 0

    def add(self, code, finish=None):
        self.codes[code] = self.codes.get(code, 0) + 1
        if finish is not None:
            self.finish[finish] += 1

    def answer(self, answer):
        """A whole answer, or the sum of a stream's chunks in that shape."""
        reasons = [choice["finish_reason"] for choice in answer["choices"]]
        self.add(200, "length" if "length" in reasons else "stop")
        for reason in reasons:
            self.choices[reason] = self.choices.get(reason, 0) + 1
        self.prompt_tokens += answer["usage"]["prompt_tokens"]
        self.tokens += answer["usage"]["completion_tokens"]


def samples(text, name):
    """[(labels, value)] of one series."""
    rows = re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", text, re.M)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in rows]


def by_label(text, name, label):
    return {labels[label]: value for labels, value in samples(text, name)}


def total(text, name):
    return sum(value for _, value in samples(text, name))


def body(max_tokens, **fields):
    return {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        **fields,
    }


class Stream:
    """A streamed chat on a socket of its own, read as far as a test wants."""

    def __init__(self, server, **fields):
        address = urlparse(server.http)
        self.socket = socket.create_connection((address.hostname, address.port), LIMIT_S)
        max_tokens = fields.pop("max_tokens")
        request = body(max_tokens, stream=True, ignore_eos=True, **fields)
        data = json.dumps(request).encode()
        self.socket.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data
        )
        self.text = b""

    def read_until(self, done):
        while not done(self.text):
            data = self.socket.recv(65536)
            if not data:
                return False
            self.text += data
        return True

    def read_tokens(self, count):
        # The first event opens the choice.
        assert self.read_until(lambda text: text.count(b'"finish_reason":null') > count), self.text

    def read_all(self):
        self.read_until(lambda text: False)
        return self.text

    def leave(self):
        self.socket.close()


@pytest.fixture(name="server")
def fixture_server():
    with Server("--prefix-cache", "off") as server:
        yield server


def requests_are_over(server):
    def over():
        text = metrics_text(server.router)
        return (
            total(text, "baton_requests_running") + total(text, "baton_requests_waiting") == 0
            and text
        )

    return wait_until(over, LIMIT_S, "no request runs")


def test_every_counter_is_what_clients_saw(server):
    seen = Recount()
    for fields in ({"max_tokens": 5}, {"max_tokens": 9, "n": 3}, {"max_tokens": 40, "stop": ["e"]}):
        status, _, answer = server.post(CHAT, body(**fields))
        assert status == 200
        seen.answer(answer)
    for fields in ({"max_tokens": 0}, {"max_tokens": 5, "temperature": -1}, {"max_tokens": "5"}):
        status, _, _ = server.post(CHAT, body(**fields))
        assert status == 400
        seen.add(400)
    status, _, _ = server.post(CHAT, body(5, model="nobody"))
    assert status == 404
    seen.add(404)

    echo = {"prompt": "Once", "echo": True, "max_tokens": 0, "n": 2}
    for fields in ({}, {"logprobs": 0}):
        _, _, answer = server.post("/v1/completions", {**echo, **fields})
        assert [choice["finish_reason"] for choice in answer["choices"]] == 2 * ["length"]
        seen.add(200)
        seen.choices["length"] = seen.choices.get("length", 0) + 2
        # A prompt counts where some of it is computed.
        seen.prompt_tokens += answer["usage"]["prompt_tokens"] if fields else 0

    events = server.stream(CHAT, body(6, n=2, stream_options={"include_usage": True}))
    reasons = [c for e in events for c in e["choices"] if c["finish_reason"] is not None]
    seen.answer({"choices": reasons, "usage": events[-1]["usage"]})
    prompt_tokens = events[-1]["usage"]["prompt_tokens"]

    least = 0  # tokens that clients which did not stay have read; more may have been made
    for count in (1, 7):
        stream = Stream(server, max_tokens=4000)
        stream.read_tokens(count)
        stream.leave()
        seen.add(499, "cancelled")
        seen.prompt_tokens += prompt_tokens
        least += count
    # A short answer shows how long a first token takes on this machine.
    began = time.monotonic()
    seen.answer(server.post(CHAT, body(1))[2])
    deadline_s = DEADLINE_S + 10 * (time.monotonic() - began)
    began = time.monotonic()
    stream = Stream(server, max_tokens=4000, timeout_ms=round(1000 * deadline_s))
    text = stream.read_all()
    took_s = time.monotonic() - began
    assert b"deadline_exceeded" in text and b"[DONE]" not in text, text[-300:]
    assert text.count(b'"finish_reason":null') > 1, "it had tokens"
    seen.add(504, "deadline")
    seen.prompt_tokens += prompt_tokens

    # The worker that decodes dies; another life goes on with the same stream.
    stream = Stream(server, max_tokens=200)
    decode = wait_until(
        lambda: stop_amid(server, lambda row: 1 <= row["num_tokens"] < 150), LIMIT_S, "it decodes"
    )
    os.kill(decode["pid"], signal.SIGKILL)
    text = stream.read_all()
    assert b"[DONE]" in text
    num_resumes = int(re.findall(rb'"resumes":(\d+)', text)[-1])
    seen.add(200, "length")
    seen.choices["length"] = seen.choices.get("length", 0) + 1
    seen.prompt_tokens += prompt_tokens
    seen.tokens += 200

    page = requests_are_over(server)
    codes = by_label(page, "baton_requests_total", "code")
    assert {int(c): int(v) for c, v in codes.items() if v} == seen.codes
    choices = by_label(page, "baton_choices_finished_total", "reason")
    assert {r: int(v) for r, v in choices.items() if v} == seen.choices
    for name in ("baton_time_to_first_token_seconds", "baton_e2e_request_latency_seconds"):
        counts = by_label(page, f"{name}_count", "finish")
        assert {f: int(v) for f, v in counts.items()} == seen.finish, name
    assert total(page, "baton_prompt_tokens_total") == seen.prompt_tokens
    assert total(page, "baton_prefix_tokens_total") == seen.prompt_tokens
    assert total(page, "baton_generation_tokens_total") >= seen.tokens + least
    stages = total(page, "baton_stage_seconds_sum")
    assert stages == pytest.approx(total(page, "baton_e2e_request_latency_seconds_sum"), rel=1e-6)
    deadline = by_label(page, "baton_e2e_request_latency_seconds_sum", "finish")["deadline"]
    assert deadline_s - 0.01 <= deadline <= took_s
    assert total(page, "baton_resumes_total") == num_resumes >= 1


def test_a_prompt_that_is_cached_says_so_every_time():
    """The two workers report over streams of their own; neither order loses a number."""
    with Server() as server:
        prompt = "A long story of a walrus in Copenhagen, told again. " * 12
        request = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        _, _, first = server.post("/v1/completions", request)
        assert first["timings"]["path"] == "disagg" and first["timings"]["cached_tokens"] == 0
        timings = [server.post("/v1/completions", request)[2]["timings"] for _ in range(150)]
        assert {t["cached_tokens"] for t in timings[1:]} == {timings[-1]["cached_tokens"]}
        assert timings[-1]["cached_tokens"] > 0
        assert first["timings"]["prefix_source"] == "computed"
        assert {t["prefix_source"] for t in timings} == {"pool"}
        page = requests_are_over(server)
        sources = by_label(page, "baton_prefix_tokens_total", "source")
        cached = sum(t["cached_tokens"] for t in timings)
        assert sources.pop("pool") == cached
        assert sources.pop("computed") == total(page, "baton_prompt_tokens_total") - cached
        assert sources == {"peer": 0, "ram": 0, "file": 0, "store": 0}
        # On a full machine the router may hear both ends of a step at once. The worker's own time
        # of the step counts then.
        assert all(t["first_step_ms"] > 0 and t["decode_ms"] > 0 for t in timings)
