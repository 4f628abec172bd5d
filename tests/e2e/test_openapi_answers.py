"""Real answers of every path against what /openapi.json says of them: JSON, events and lines."""

import json
import urllib.request

import pytest

import guard_cases

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PREFIX = "#/components/schemas/"
LINES, EVENTS, JSON = "application/x-ndjson", "text/event-stream", "application/json"
TYPES = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
}
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "schema": {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]},
    },
}
CALL = {"tools": [guard_cases.TOOL], "tool_choice": "required", "max_tokens": 64}
CLAUDE_CALL = {
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any"},
    "max_tokens": 64,
}
FLAT_CALL = {
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "tool_choice": "required",
    "max_output_tokens": 64,
}
LOGPROBS = ["message.output_text.logprobs"]
# Bodies beside the good ones, whole and, where the path streams, as a stream.
MORE = [
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}),
    (CHAT, {"prompt_logprobs": 2}),
    (CHAT, {"response_format": FORM, "max_tokens": 32}),
    (CHAT, {"stop": ["i"], "max_tokens": 8}),
    (CHAT, CALL),
    (COMPLETION, {"prompt": ["Hi", "Ho"], "n": 2, "logprobs": 2}),
    (COMPLETION, {"echo": True, "logprobs": 1, "prompt_logprobs": 1}),
    ("/v1/messages", CLAUDE_CALL),
    ("/v1/responses", FLAT_CALL),
    ("/v1/responses", {"include": LOGPROBS, "top_logprobs": 2, "instructions": "Be brief."}),
    ("/api/chat", {"tools": [guard_cases.TOOL], "logprobs": True}),
    ("/api/chat", {"messages": []}),
    ("/api/generate", {"raw": True, "logprobs": True}),
    ("/tokenize", {"with_pieces": True}),
]
ALL = [(path, {}) for path in guard_cases.GOOD] + MORE
STREAMED = [CHAT, COMPLETION, "/v1/messages", "/v1/responses", "/api/chat", "/api/generate"]
READ = [
    *("/v1/models", "/v1/models/default", "/api/tags", "/api/ps", "/api/version"),
    *("/tokenizer_info", "/health", "/v1/topology", "/version", "/openapi.json"),
]


class Description:
    """The schemas of good answers, and whether a value fits one."""

    def __init__(self, document):
        self.paths = document["paths"]
        self.schemas = document["components"]["schemas"]

    def content(self, method, path):
        described = "/v1/models/{model}" if path.startswith("/v1/models/") else path
        return self.paths[described][method]["responses"]["200"]["content"]

    def fault(self, schema, value, at="$"):
        """What is wrong with the value; None = it fits."""
        if "$ref" in schema:
            return self.fault(self.schemas[schema["$ref"].removeprefix(PREFIX)], value, at)
        if "anyOf" in schema:
            faults = [self.fault(branch, value, at) for branch in schema["anyOf"]]
            return None if None in faults else "; ".join(faults)
        if "const" in schema:
            return None if value == schema["const"] else f"{at}: {value!r} is not {schema['const']}"
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if types and not any(TYPES[name](value) for name in types):
            return f"{at}: {value!r} is no {' or '.join(types)}"
        return self.fault_within(schema, value, at)

    def fault_within(self, schema, value, at):
        parts = []
        if isinstance(value, list) and "items" in schema:
            parts = [(schema["items"], item, f"{at}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, dict):
            missing = [name for name in schema.get("required", ()) if name not in value]
            if missing:
                return f"{at}: no {missing[0]}"
            own, others = schema.get("properties", {}), schema.get("additionalProperties", {})
            parts = [(own.get(k, others), member, f"{at}.{k}") for k, member in value.items()]
        return next((f for part in parts if (f := self.fault(*part)) is not None), None)


@pytest.fixture(scope="module")
def described(server):
    return Description(server.get("/openapi.json")[2])


def ask(server, method, path, body=None, headers=None):
    """(media type, text) of a good answer."""
    request = urllib.request.Request(
        server.http + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": JSON, **(headers or {})},
        method=method.upper(),
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return response.headers["Content-Type"], response.read().decode()


def payloads(media, text):
    """The JSON of each line or event."""
    if media == LINES:
        return [json.loads(line) for line in text.splitlines()]
    assert media == EVENTS
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def check(described, method, path, media, text):
    schema = described.content(method, path)[media]["schema"]
    if media == JSON:
        assert described.fault(schema, json.loads(text)) is None, text[:2000]
        return
    event = schema["items"]
    if media == EVENTS:
        event = event["properties"]["data"]["contentSchema"]
    events = payloads(media, text)
    assert len(events) > 1, text
    for value in events:
        assert described.fault(event, value) is None, value


@pytest.mark.parametrize("path", READ)
def test_what_only_reads_is_as_described(server, described, path):
    check(described, "get", path, *ask(server, "get", path))
    if "/models" in path:
        claude = ask(server, "get", path, headers={"anthropic-version": "2023-06-01"})
        check(described, "get", path, *claude)


@pytest.mark.parametrize("path,fields", ALL)
def test_answers_are_as_described(server, described, path, fields):
    body = {**guard_cases.GOOD[path], **fields}
    check(described, "post", path, *ask(server, "post", path, body))
    is_load = body.get("messages") == []
    if path not in STREAMED or is_load:
        return
    streamed = {**body, "stream": True}
    if path in (CHAT, COMPLETION):
        streamed["stream_options"] = {"include_usage": True}
    check(described, "post", path, *ask(server, "post", path, streamed))


def test_vectors_are_as_described(server, described):
    for path, fields in (
        ("/v1/embeddings", {"input": ["Hi", "Ho"]}),
        ("/v1/embeddings", {"input": "Hi", "encoding_format": "base64"}),
        ("/api/embed", {"input": "Hi"}),
        ("/api/embeddings", {"prompt": "Hi"}),
    ):
        check(described, "post", path, *ask(server, "post", path, fields))
    check(described, "post", "/api/show", *ask(server, "post", "/api/show", {}))


def test_every_operation_describes_its_good_answer(described):
    for path, methods in described.paths.items():
        for method, operation in methods.items():
            content = operation["responses"]["200"]["content"]
            assert content, (method, path)
            for media, form in content.items():
                assert form["schema"], (method, path, media)


def test_what_does_not_fit_is_told(described):
    message = described.schemas["ChatMessage"]
    assert described.fault(message, {"role": "assistant", "content": None, "more": 1}) is None
    for wrong in ({"role": "assistant"}, {"role": "user", "content": ""}, {"content": 1}):
        assert described.fault(message, wrong) is not None, wrong
