"""Each field of each surface with each value that it should not get, over HTTP and gRPC.

No answer is a 5xx, none but what a field means takes it, and each refusal names the field. The
processes are the same ones afterwards. With API keys every answer is the same, and without a key
nothing of a body is read.
"""

import collections
import hashlib
import http.client
import json
import os
import re

import pytest

import field_cases
from baton_server import Server, in_parallel

KEY = "matrix-key"
FLAGS = ("--mode", "aggregated", "--max-context", "128", "--threads", "1")
AT_ONCE = 4


@pytest.fixture(scope="module")
def open_server():
    with Server(*FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    path.write_text(json.dumps([{"tenant": "a", "sha256": digest}]))
    with Server(*FLAGS, "--api-keys", str(path)) as running:
        yield running


class Asker:
    """One connection of one thread, opened again where the server closed it."""

    def __init__(self, server, key=None):
        self.address = server.http.split("//")[1]
        self.headers = {"Content-Type": "application/json"}
        if key is not None:
            self.headers["Authorization"] = f"Bearer {key}"

    def __call__(self, path, body):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.request("POST", path, body, self.headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status == 200:
            return response.status, None
        return response.status, json.loads(text)


def told(answer):
    """(code, param, message) of an error in the form of its surface."""
    error = answer["error"]
    if isinstance(error, str):
        return None, None, error
    return error.get("code"), error.get("param"), error["message"]


def names(field, answer):
    """Whether the error is about the field, something within it, or the object that it is in."""
    _, param, message = told(answer)
    known = [field, field.split(".")[0]]
    if any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message) for name in known):
        return True
    return param is not None and param.split(".")[0].split("[")[0] in known


def is_too_long(answer):
    """A text that is a part of the prompt: the error is about the prompt that it made."""
    code, _, message = told(answer)
    return code == "context_length_exceeded" or re.search("too long|fit 128 tokens", message)


def fault_of(ask, path, case):
    """A sentence about what is wrong with the answer; None = it is right."""
    field, what, body, expected = case
    status, answer = ask(path, body)
    said = f"{path} {field} = {what}: {status} {json.dumps(answer)[:300]}"
    if status == 200:
        return None if expected in ("any", "absent") else "taken: " + said
    if field in ("model", "name") and status == 404 and names(field, answer):
        return None
    if status != 400:
        return "status: " + said
    if expected == "absent":
        same, other = ask(path, field_cases.body_with(path, field, []))
        alike = same == status and told(other) == told(answer)
        return None if alike else "null is not absent: " + said
    code, _, _ = told(answer)
    if expected in ("named", "any"):
        is_named = names(field, answer) or (what == "a text of 1 MiB" and is_too_long(answer))
        return None if is_named else "not named: " + said
    if not names(field, answer):
        return "not named: " + said
    return None if code in (None, expected) else f"not {expected}: " + said


def paths_of(server):
    document = server.get("/openapi.json")[2]
    return document, sorted(field_cases.GOOD)


def processes(server):
    return {p["worker_id"]: (p["pid"], p["incarnation"]) for p in server.topology()}


def test_every_field_of_every_path_refuses_by_its_name(open_server):
    document, paths = paths_of(open_server)
    before = processes(open_server)
    ask = Asker(open_server)
    faults, counts = [], collections.Counter()
    for path in paths:
        cases = list(field_cases.cases(document, path))
        counts[path] = len(cases)
        faults += in_parallel([lambda c=c, p=path: fault_of(ask, p, c) for c in cases], AT_ONCE)
    print(dict(counts), sum(counts.values()))
    faults = [fault for fault in faults if fault]
    assert not faults, f"{len(faults)}:\n" + "\n".join(faults[: int(os.environ.get("SHOW", 40))])
    assert processes(open_server) == before
    for path, body in field_cases.GOOD.items():
        assert open_server.post(path, body)[0] == 200, path


def asked_of(document, path):
    """The values of the path's fields with which keys could have to do."""
    whats = ("-1", "2^63", "an object", "no text", "NaN", field_cases.TWICE)
    return [case for case in field_cases.cases(document, path) if case[1] in whats]


def test_keys_change_no_answer_but_of_who_has_none(open_server, keyed_server):
    document, paths = paths_of(open_server)
    with_key, plain = Asker(keyed_server, KEY), Asker(open_server)
    strangers = [Asker(keyed_server), Asker(keyed_server, "another")]

    def fault(path, case):
        field, what, body, _ = case
        answers = [
            (status, answer and told(answer))
            for status, answer in (with_key(path, body), plain(path, body))
        ]
        # A tenant cannot go before the others.
        is_ahead = field == "priority" and what == "-1"
        if is_ahead and (answers[0][0], answers[1][0]) == (400, 200):
            return None
        if answers[0] != answers[1]:
            return f"{path} {field} = {what}: {answers}"
        refused = [ask(path, body)[0] for ask in strangers]
        return None if refused == [401, 401] else f"{path} {field} = {what}: {refused}"

    faults = []
    for path in paths:
        calls = [lambda c=c, p=path: fault(p, c) for c in asked_of(document, path)]
        faults += [found for found in in_parallel(calls, AT_ONCE) if found]
    assert not faults, "\n".join(faults[:40])
