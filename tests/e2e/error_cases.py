"""One request for each error code that one request can reach, on each surface that has it.

Pure: the list of codes and tests (tests/api/test_error_codes.py) reads it without a server. The
server has API keys: tenant `a` without limits, `once` with one request a minute.
"""

import dataclasses
import json

import field_cases

KEYS = {"a": {}, "once": {"requests_per_minute": 1}}
JSON = "application/json"
OLLAMA = ("/api/chat", "/api/generate")
GENERATES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", *OLLAMA),
    *("/v1/embeddings", "/api/embed", "/api/embeddings"),
)
CHATS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat")
LONG = "word " * 2000
# The name of what is asked, where it must be given.
REQUIRED = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/messages": "max_tokens",
    "/v1/messages/count_tokens": "messages",
    "/v1/responses": "input",
    "/v1/responses/input_tokens": "input",
    "/v1/embeddings": "input",
    "/api/embed": "input",
    "/api/embeddings": "prompt",
    "/tokenize": "content",
    "/detokenize": "tokens",
    "/apply-template": "messages",
}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
UNSUPPORTED = {
    **dict.fromkeys(("/v1/chat/completions", "/apply-template"), {"messages": IMAGE}),
    "/v1/completions": {"suffix": "x"},
    "/v1/messages": {"mcp_servers": [{"name": "x"}]},
    **dict.fromkeys(
        ("/v1/responses", "/v1/responses/input_tokens"), {"previous_response_id": "resp_1"}
    ),
    "/api/generate": {"images": ["AAAA"]},
    "/api/chat": {"options": {"logit_bias": {"1": 1}}},
    **dict.fromkeys(("/v1/embeddings", "/api/embed", "/api/embeddings"), {"pooling": "cls"}),
}
CONFLICT = {
    "/v1/chat/completions": {"top_logprobs": 2},
    "/v1/completions": {"prompt_token_ids": [1]},
    "/v1/messages": {
        "output_format": {"type": "json_schema", "schema": {}},
        "structured_outputs": {"regex": "a"},
    },
    "/v1/responses": {"guided_regex": "a", "guided_choice": ["a"]},
    "/tokenize": {"prompt": "x"},
    "/api/generate": {"raw": True, "system": "x"},
}
TOO_LONG = {
    **{path: {"messages": [{"role": "user", "content": LONG}]} for path in CHATS},
    "/v1/responses": {"input": LONG},
    **dict.fromkeys(("/v1/completions", "/api/generate", "/api/embeddings"), {"prompt": LONG}),
    **dict.fromkeys(("/v1/embeddings", "/api/embed"), {"input": LONG}),
}
# A grammar that ends where no token can go on.
DEAD_END = {"structured_outputs": {"grammar": 'start: "a" NOTHING\nNOTHING: /[^\\s\\S]/'}}


@dataclasses.dataclass
class Ask:
    """A request as it goes over the wire."""

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: dict = dataclasses.field(default_factory=dict)
    tenant: str | None = "a"
    times: int = 1  # the last answer counts
    has_host: bool = True


def changed(path, **changes):
    body = {**field_cases.GOOD[path], **changes}
    return json.dumps({k: v for k, v in body.items() if v is not None}).encode()


def of_http(path):
    """(code, status, request) of what HTTP and the gate of keys refuse, whatever the body means."""
    good = changed(path)
    yield "invalid_api_key", 401, Ask(path, good, tenant=None)
    yield "host_not_allowed", 403, Ask(path, good, headers={"Host": "evil.example"})
    yield "origin_not_allowed", 403, Ask(path, good, headers={"Origin": "http://evil.example"})
    yield "method_not_allowed", 405, Ask(path, method="DELETE")
    yield "not_found", 404, Ask(path + "/none/at/all", good)
    yield "unsupported_media_type", 415, Ask(path, good, headers={"Content-Type": "text/plain"})
    yield "body_too_large", 413, Ask(path, b" " * ((8 << 20) + 1))
    yield "header_too_large", 431, Ask(path, good, headers={"X-Long": "x" * (1 << 20)})
    yield "malformed_request", 400, Ask(path, good, has_host=False)
    yield "unsupported_http", 417, Ask(path, good, headers={"Expect": "the unexpected"})
    yield "rate_limit_exceeded", 429, Ask(path, good, tenant="once", times=2)
    yield "invalid_json", 400, Ask(path, good + b"x")
    yield "invalid_utf8", 400, Ask(path, b'{"x":"\xff"}')
    yield "duplicate_key", 400, Ask(path, b'{"x":1,"x":1}')
    yield "too_deep", 400, Ask(path, b'{"x":' + b"[" * 40 + b"]" * 40 + b"}")


def of_bodies(path):
    """(code, status, request) of what the reader of the surface refuses."""
    model = "model" if path != "/api/show" else "name"
    yield "model_not_found", 404, Ask(path, changed(path, **{model: "none"}))
    yield "invalid_type", 400, Ask(path, changed(path, model=5))
    if path in REQUIRED:
        body = changed(path, **{REQUIRED[path]: None})
        yield "missing_required_parameter", 400, Ask(path, body)
    if path in UNSUPPORTED:
        yield "unsupported_parameter", 400, Ask(path, changed(path, **UNSUPPORTED[path]))
    if path in CONFLICT:
        yield "invalid_combination", 400, Ask(path, changed(path, **CONFLICT[path]))
    if path in TOO_LONG:
        yield "context_length_exceeded", 400, Ask(path, changed(path, **TOO_LONG[path]))
    if path in GENERATES:
        yield "invalid_value", 400, Ask(path, changed(path, timeout_ms=0))
        # A cached prompt and a token take no longer than a millisecond on a fast machine.
        late = STREAMS.get(path, {REQUIRED.get(path): f"The path {path} is long. " * 40})
        yield "deadline_exceeded", 504, Ask(path, changed(path, **late, timeout_ms=1))
    if path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        yield "grammar_failed", 400, Ask(path, changed(path, **DEAD_END, max_tokens=9))
        key = {"Idempotency-Key": f"key of {path}"}
        other = changed(path, max_tokens=2)
        yield "idempotency_key_reused", 400, [
            Ask(path, changed(path), headers=key),
            Ask(path, other, headers=key),
        ]


def of_streams():
    path = "/v1/streams/"
    yield "stream_not_found", 404, Ask(path + "none", method="GET")


def cases():
    """(code, surface's path, status, request or requests) of all."""
    for path in field_cases.GOOD:
        for code, status, ask in (*of_http(path), *of_bodies(path)):
            yield code, path, status, ask
    for code, status, ask in of_streams():
        yield code, "/v1/streams/STREAM", status, ask


# Answers that last longer than their deadline: each surface ends its stream in a form of its own.
LISTS = {"type": "array", "items": {"type": "integer"}, "minItems": 600}
STREAMS = {
    "/v1/chat/completions": {"max_tokens": None, "ignore_eos": True},
    "/v1/completions": {"max_tokens": 900, "ignore_eos": True},
    "/v1/messages": {"max_tokens": 900, "ignore_eos": True},
    "/v1/responses": {"max_output_tokens": None, "ignore_eos": True},
    "/api/chat": {"options": {"num_predict": -1}, "format": LISTS},
    "/api/generate": {"options": {"num_predict": -1}, "format": LISTS},
}
