"""A stream that was cut goes on where it was: the same events, for whoever comes back."""

import http.client
import json

import pytest

from baton_server import Server, metric, wait_until

CHAT = {
    "messages": [{"role": "user", "content": "Count from one to twenty."}],
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture(scope="module")
def server():
    with Server("--decode", "2") as running:
        yield running


class Stream:
    """An event stream over a connection of its own."""

    def __init__(self, server, method, path, body=None, **headers):
        self.connection = http.client.HTTPConnection(server.router["http"], timeout=60)
        payload = None if body is None else json.dumps(body)
        self.connection.request(
            method, path, payload, {"Content-Type": "application/json", **headers}
        )
        self.response = self.connection.getresponse()
        self.name = self.response.getheader("X-Baton-Stream")

    def event(self):
        """The lines of the next event, without comments; None = the end."""
        lines = []
        while line := self.response.readline().decode():
            if line == "\n" and lines:
                return "".join(lines)
            if line != "\n" and not line.startswith(":"):
                lines.append(line)
        return None

    def first(self, num_events):
        """The first events, before [DONE]: a surface has none for a token without a text."""
        events = []
        while len(events) < num_events:
            event = self.event()
            assert event is not None, "the stream ended early"
            if "[DONE]" in event:
                break
            events.append(event)
        return events

    def events(self):
        return list(iter(self.event, None))

    def cut(self):
        self.connection.close()


def ask(server, body=CHAT, path="/v1/chat/completions"):
    return Stream(server, "POST", path, body, **{"X-Baton-Resumable": "1"})


def resume(server, name, last_id=None):
    more = {} if last_id is None else {"Last-Event-ID": last_id}
    return Stream(server, "GET", f"/v1/streams/{name}", **more)


def id_of(event):
    (line,) = [line for line in event.splitlines() if line.startswith("id: ")]
    return line[4:]


def text_of(events):
    chunks = [json.loads(e.split("data: ", 1)[1]) for e in events if "[DONE]" not in e]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


@pytest.fixture(scope="module")
def undisturbed(server):
    plain = Stream(server, "POST", "/v1/chat/completions", CHAT)
    assert plain.name is None
    events = plain.events()
    assert events[-1] == "data: [DONE]\n"
    assert not any("id: " in event for event in events)
    return text_of(events)


@pytest.mark.parametrize("num_events", [1, 2, 7, 25])
def test_a_cut_stream_goes_on_where_it_was(server, undisturbed, num_events):
    first = ask(server)
    had = first.first(num_events)
    first.cut()
    second = resume(server, first.name, id_of(had[-1]))
    assert second.response.status == 200
    rest = second.events()
    assert rest[-1] == "data: [DONE]\n"
    assert text_of(had + rest) == undisturbed
    whole = resume(server, first.name).events()
    assert whole == had + rest


def test_a_stream_may_be_cut_at_each_event(server, undisturbed):
    stream = ask(server)
    had = [stream.event()]
    while "[DONE]" not in had[-1]:
        stream.cut()
        stream = resume(server, stream.name, id_of(had[-1]))
        had.append(stream.event())
    assert text_of(had) == undisturbed


@pytest.mark.parametrize(
    "path, body, last",
    [
        ("/v1/completions", {"prompt": "One two three", "max_tokens": 12}, "[DONE]"),
        ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 12}, "message_stop"),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 12}, "response.incomplete"),
    ],
)
def test_every_surface(server, path, body, last):
    first = ask(server, {**body, "temperature": 0, "ignore_eos": True, "stream": True}, path)
    had = first.first(5)
    first.cut()
    events = had + resume(server, first.name, id_of(had[-1])).events()
    assert events == resume(server, first.name).events()
    ids = [id_of(event) for event in events if "[DONE]" not in event]
    assert len(set(ids)) == len(ids), "an id names one event"
    assert last in events[-1]


def test_errors_and_metrics(server):
    assert resume(server, "0" * 32).response.status == 404
    stream = ask(server)
    bad = resume(server, stream.name, "nonsense")
    assert bad.response.status == 400
    assert "Last-Event-ID" in bad.response.read().decode()
    assert stream.events()[-1] == "data: [DONE]\n", "a refused reader takes it from nobody"
    assert metric(server.router, "baton_resumable_reads_total") > 0
    wait_until(
        lambda: metric(server.router, "baton_resumable_streams_unread") == 0, 60, "all are read"
    )
