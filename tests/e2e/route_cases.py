"""The security table: what each route answers to no key, a wrong key, another tenant's, its own.

Pure: scripts/security_table.py writes the table of SECURITY.md from it, and test_security_table.py
asks the built server. A cell is the status of the answer. Where tenants could notice each other it
also says whether the answer has what the owner left: its cached prefix, its answer under an
idempotency key.
"""

import dataclasses

import guard_cases

CALLERS = ("no key", "a wrong key", "another tenant's key", "the owner's key")
UNAUTHORIZED = "401"
# More than the tokens that all prompts of a chat template begin with.
MIN_CACHED = 300


@dataclasses.dataclass(frozen=True)
class Row:
    """A request to one route; `cells`: by CALLERS."""

    method: str  # of HTTP, or "gRPC"
    path: str
    cells: tuple
    body: dict | None = None
    what: str = ""  # of the owner's that it asks for

    @property
    def title(self):
        return f"`{self.method} {self.path}`" + (f", {self.what}" if self.what else "")


def keyed(method, path, other="200", own="200", **more):
    return Row(method, path, (UNAUTHORIZED, UNAUTHORIZED, other, own), **more)


def opened(path, status="200"):
    return Row("GET", path, (status,) * len(CALLERS))


POSTS = {
    **guard_cases.GOOD,
    "/v1/embeddings": {"input": "Hi"},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {"model": "default"},
}
GETS = (
    "/v1/models",
    "/v1/models/{model}",
    "/api/tags",
    "/api/ps",
    "/api/version",
    "/tokenizer_info",
    "/v1/topology",
    "/v1/cluster/events",
    "/version",
    "/openapi.json",
)
OPEN_PATHS = ("/", "/ui", "/health")


def long_text(name):
    """No other begins with it."""
    return name + " ".join(f"Rule {i}: be kind to guest {i}." for i in range(50))


CACHED = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": long_text("chat")}],
        "max_tokens": 1,
    },
    "/v1/completions": {"prompt": long_text("completion"), "max_tokens": 1},
    "/v1/messages": {
        "model": "default",
        "messages": [{"role": "user", "content": long_text("messages")}],
        "max_tokens": 1,
    },
    "/v1/responses": {"input": long_text("responses"), "max_output_tokens": 1},
}
KEY_HOLDERS = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
GRPC = (
    "ChatService/ChatCompletion",
    "ChatService/StreamChatCompletion",
    "CompletionService/Complete",
    "CompletionService/StreamComplete",
    "EmbeddingService/CreateEmbedding",
    "ModelService/ListModels",
    "ModelService/Tokenize",
    "ModelService/Detokenize",
    "ModelService/ApplyTemplate",
)
CACHE, ANSWER, STREAM, ITEM = (
    "its cached prompt",
    "its Idempotency-Key",
    "its stream",
    "its item",
)


def rows():
    """All rows, in the order of the table."""
    for path in OPEN_PATHS:
        yield opened(path, "302" if path == "/" else "200")
    for path in GETS:
        yield keyed("GET", path)
    for path, body in POSTS.items():
        yield keyed("POST", path, body=body)
    for path, body in CACHED.items():
        yield keyed("POST", path, "200, not found", "200, found", body=body, what=CACHE)
    for path in KEY_HOLDERS:
        body = guard_cases.GOOD[path]
        yield keyed("POST", path, "200, not found", "200, found", body=body, what=ANSWER)
    yield keyed("GET", "/v1/streams/{stream}", "403", "200", what=STREAM)
    yield keyed("POST", "/v1/responses", "400", "200", what=ITEM)
    for method in GRPC:
        yield Row("gRPC", method, ("UNAUTHENTICATED", "UNAUTHENTICATED", "OK", "OK"))


def table():
    """The rows in Markdown."""
    lines = ["| route | " + " | ".join(CALLERS) + " |", "|---|" + "---|" * len(CALLERS)]
    lines += [f"| {row.title} | " + " | ".join(row.cells) + " |" for row in rows()]
    return "\n".join(lines)
