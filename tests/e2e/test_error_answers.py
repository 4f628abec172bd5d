"""Every error code that one request can reach, from each surface of the built server, in its form.

The other codes need a fault, a full queue or a slow client; tests/api/ERROR_CODES.md has the test
of each.
"""

import hashlib
import http.client
import json
import time

import pytest

import error_cases
from baton_server import Server
from test_fields import message_of

DEADLINE_S = 1.5


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    rows = [
        {"tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **limits}
        for name, limits in error_cases.KEYS.items()
    ]
    path.write_text(json.dumps(rows))
    flags = ("--mode", "aggregated", "--threads", "1", "--max-context", "1024")
    with Server(*flags, "--api-keys", str(path)) as running:
        yield running


def send(server, ask):
    """(status, headers, body) of the last of the request's answers."""
    for _ in range(ask.times):
        connection = http.client.HTTPConnection(server.http.split("//")[1], timeout=300)
        has_host = ask.has_host and "Host" not in ask.headers
        connection.putrequest(ask.method, ask.path, skip_host=not has_host)
        headers = {"Content-Type": error_cases.JSON, **ask.headers}
        if ask.tenant is not None:
            headers["Authorization"] = f"Bearer {ask.tenant}"
        if ask.body:
            headers["Content-Length"] = str(len(ask.body))
        for name, value in headers.items():
            connection.putheader(name, value)
        try:
            connection.endheaders(ask.body or None)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before the body was read
        response = connection.getresponse()
        text = response.read()
        connection.close()
    return response.status, response.headers, text


def fault_of(server, case):
    """A sentence about what is wrong with the answer; None = it is right."""
    code, path, status, asks = case
    for ask in asks if isinstance(asks, list) else [asks]:
        got, headers, text = send(server, ask)
    said = f"{path} {code}: {got} {text[:300]!r}"
    if got != status:
        return f"not {status}: {said}"
    if not headers["Content-Type"].startswith("application/json"):
        return "no JSON: " + said
    answer = json.loads(text)
    try:
        assert message_of(path, answer)
    except (AssertionError, KeyError, TypeError):
        return "of another form: " + said
    has_code = isinstance(answer["error"], dict) and "code" in answer["error"]
    if has_code and answer["error"]["code"] != code:
        return "another code: " + said
    if status in (429, 503) and int(headers["Retry-After"]) < 1:
        return "when again? " + said
    return None


def test_each_code_is_told_by_each_surface_in_its_form(keyed):
    faults = [fault_of(keyed, case) for case in error_cases.cases()]
    faults = [fault for fault in faults if fault]
    assert not faults, f"{len(faults)}:\n" + "\n".join(faults)
    assert keyed.get("/health")[0] == 200


@pytest.fixture(scope="module")
def deadline_ms(keyed):
    """Longer than ten answers of a token take, and shorter than one of 900 tokens."""
    path = "/v1/completions"
    began = time.monotonic()
    assert send(keyed, error_cases.Ask(path, error_cases.changed(path)))[0] == 200
    return round(1000 * (DEADLINE_S + 10 * (time.monotonic() - began)))


@pytest.mark.parametrize("path", error_cases.STREAMS)
def test_a_stream_that_fails_ends_with_the_error_of_its_surface(keyed, deadline_ms, path):
    changes = {**error_cases.STREAMS[path], "stream": True, "timeout_ms": deadline_ms}
    ask = error_cases.Ask(path, error_cases.changed(path, **changes))
    status, headers, text = send(keyed, ask)
    assert status == 200, text
    text = text.decode()
    assert "[DONE]" not in text and '"finish_reason":"stop"' not in text
    if path.startswith("/api/"):
        last = json.loads(text.strip().splitlines()[-1])
        assert "too long" in last["error"], last
        return
    assert headers["Content-Type"].startswith("text/event-stream")
    last = [line[6:] for line in text.splitlines() if line.startswith("data: ")][-1]
    event = json.loads(last)
    error = event["response"]["error"] if "response" in event else event["error"]
    assert "too long" in error["message"], event
    assert path != "/v1/messages" or event["type"] == "error"
    assert path != "/v1/responses" or event["type"] == "error"
