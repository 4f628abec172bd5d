"""Inputs of our own for each kind of tests/advisories.json that a client can reach: at a limit, one
beyond it, absurd; missing, foreign and repeated parts.

Pure. A case is bytes for the HTTP port, with the statuses that may answer it. The server has API
keys, and KEY is one of them.
"""

import dataclasses
import json

import guard_cases

KEY = "key-of-the-guards"
HEADER_BYTES, HEADER_FIELDS = 16 << 10, 100
SALT_BYTES, CHOICES, PROMPTS, GRAMMAR_BYTES = 1024, 128, 1024, 1 << 20
# Bytes whose own way through sockets and the JSON reader takes longer than a guard may.
LARGE = 64 << 10

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TEXT = {"prompt": "Hi", "max_tokens": 1}
TALK = {"messages": guard_cases.ASK, "max_tokens": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    """`request`: the bytes; `statuses`: those that may answer; `lacks`: what no answer may say."""

    what: str
    request: bytes
    statuses: tuple
    lacks: str = ""

    @property
    def is_served(self):
        return self.statuses[0] == 200

    @property
    def is_large(self):
        return len(self.request) >= LARGE


def head(path, fields=(), method="POST", key=KEY, host="localhost"):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request(path, body, *fields, **more):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = ("Content-Type: application/json", f"Content-Length: {len(data)}", *fields)
    return head(path, fields, **more) + data


def ask(what, path, body, *statuses, fields=(), **more):
    return Case(what, request(path, body, *fields), statuses or (400,), **more)


def padded(num_bytes):
    """A GET whose header has so many bytes."""
    bare = head("/version", ("X-Pad: ",), "GET")
    return head("/version", ("X-Pad: " + "p" * (num_bytes - len(bare)),), "GET")


def many_fields(count):
    bare = head("/version", (), "GET").count(b"\r\n") - 2  # fields that it has
    return head("/version", tuple(f"X-{i}: 1" for i in range(count - bare)), "GET")


def header_of_a_request():
    yield Case("at the limit of bytes", padded(HEADER_BYTES), (200,))
    yield Case("one byte more", padded(HEADER_BYTES + 1), (431,))
    yield Case("a MiB", padded(1 << 20), (431,))
    yield Case("at the limit of fields", many_fields(HEADER_FIELDS), (200,))
    yield Case("one field more", many_fields(HEADER_FIELDS + 1), (431,))


def chunked(pieces, *more):
    fields = ("Content-Type: application/json", "Transfer-Encoding: chunked", *more)
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head(COMPLETION, fields) + body


def body_in_pieces():
    text = json.dumps(TEXT).encode()
    bytes_of = [text[i : i + 1] for i in range(len(text))]
    yield Case("a byte at a time", chunked(bytes_of) + b"0\r\n\r\n", (200,))
    yield Case("above the limit", chunked([b" " * (1 << 20)] * 8 + [b"x"]), (413,))
    absurd = b"7fffffffffffffff\r\nx"
    yield Case("a length of 63 bits", chunked([]) + absurd, (400, 413))
    yield Case("no length", chunked([]) + b"zz\r\nx\r\n", (400,))
    yield Case("two framings", chunked([b"x"], "Content-Length: 1"), (400,))


def compressed_body():
    for coding in ("gzip", "br", "identity, gzip"):
        yield ask(coding, COMPLETION, TEXT, 415, fields=(f"Content-Encoding: {coding}",))


def error_text():
    marker = "pear-tree-4711"
    yield ask("no JSON", CHAT, f'{{"messages": {marker}'.encode(), 400, lacks=marker)
    body = f'{{"messages": "{marker}'.encode() + b"\xff"
    yield ask("no UTF-8", CHAT, body, 400, lacks=marker)
    yield ask("a path", "/v1/models/x", b"", 405, 404, lacks="src/")


def number_of_answers():
    yield ask("at the limit", COMPLETION, {**TEXT, "n": CHOICES}, 200)
    for n in (CHOICES + 1, 2**31, 2**63):
        yield ask(f"n {n}", COMPLETION, {**TEXT, "n": n})
    yield ask("prompts times n", COMPLETION, {**TEXT, "prompt": ["a"] * 513, "n": 2})
    yield ask("prompts", COMPLETION, {**TEXT, "prompt": ["a"] * (PROMPTS + 1)})


def negative_number():
    for field in ("n", "max_tokens", "min_tokens", "logprobs", "timeout_ms", "best_of"):
        for value in (-1, -(2**31) - 1, -(2**63)):
            yield ask(f"{field} {value}", COMPLETION, {**TEXT, field: value})
    yield ask("top_k", COMPLETION, {**TEXT, "top_k": -2})
    yield ask("token", COMPLETION, {**TEXT, "prompt": [-1]})
    yield ask("bias", COMPLETION, {**TEXT, "logit_bias": {"-1": 1}})
    yield ask("stop token", COMPLETION, {**TEXT, "stop_token_ids": [-1]})


def salt():
    yield ask("at the limit", COMPLETION, {**TEXT, "cache_salt": "\u00e9" * (SALT_BYTES // 2)}, 200)
    for size in (0, SALT_BYTES + 1, 1 << 20):
        yield ask(f"{size} bytes", COMPLETION, {**TEXT, "cache_salt": "s" * size})
    yield ask("a control character", COMPLETION, {**TEXT, "cache_salt": "a\x00b"}, 200)


def bad_form():
    for path, what, changes, _ in guard_cases.of_fields():
        if what == "form":
            yield ask(str(sorted(changes)), path, {**guard_cases.GOOD[path], **changes})


def bad_tool():
    for schema in ({"type": "nothing"}, {"$ref": "#/x"}, {"pattern": "("}, [], 5, {"enum": []}):
        function = {"name": "f", "parameters": schema, "strict": True}
        tools = [{"type": "function", "function": function}]
        yield ask(str(schema), CHAT, {**TALK, "tools": tools, "tool_choice": "required"})


def costly_form():
    size = GRAMMAR_BYTES
    for name in ("regex", "grammar"):
        form = {"structured_outputs": {name: "a" * (size + 1)}}
        yield ask(f"{name} beyond the limit", CHAT, {**TALK, **form})


def many_forms():
    for i in range(40):
        form = {"structured_outputs": {"regex": f"a{i}"}}
        yield ask(f"form {i}", CHAT, {**TALK, "max_tokens": 4, **form}, 200)


def program():
    for field in ("chat_template", "tokenizer", "lora_path"):
        yield ask(field, CHAT, {**TALK, field: "x"}, 400, 200)


def variable():
    for name in ("messages", "tools", "add_generation_prompt"):
        yield ask(name, CHAT, {**TALK, "chat_template_kwargs": {name: []}})
    kwargs = {f"v{i}": 1 for i in range(65)}
    yield ask("65 variables", CHAT, {**TALK, "chat_template_kwargs": kwargs})


def control_tokens():
    for text in ("<|im_start|>system", "<|im_end|>", "<|endoftext|>" * 50):
        messages = [{"role": "user", "content": text}]
        yield ask(text[:20], CHAT, {**TALK, "messages": messages}, 200)


def tool_marks():
    for text in ("</tool_call>", "<tool_call>" * 50, '<tool_call>{"name":'):
        messages = [*guard_cases.ASK, {"role": "assistant", "content": text}, *guard_cases.ASK]
        body = {**TALK, "messages": messages, "tools": [guard_cases.TOOL]}
        yield ask(text[:20], CHAT, body, 200)


def addresses():
    for url in ("http://localhost:1/a.png", "file:///a", "data:image/png;base64,AAAA"):
        part = {"type": "image_url", "image_url": {"url": url}}
        yield ask(url, CHAT, {**TALK, "messages": [{"role": "user", "content": [part]}]})
    yield ask("$ref", CHAT, {**TALK, "guided_json": {"$ref": "http://localhost:1/s"}})


def names():
    for name in ("decode-0@127.0.0.1:1", "x" * 128, "x" * 129):
        yield ask(name[:24], COMPLETION, TEXT, 200, fields=(f"X-Request-Id: {name}",))
        yield ask(name[:24], COMPLETION, TEXT, 200, fields=(f"X-Request-Id: {name}",))


def two_readings():
    paths = ("//version", "/./version", "/ui/../version", "/VERSION", "/ver%73ion", "/version/")
    for path in paths:
        yield Case(path, head(path, (), "GET", key=None), (401,))
        yield Case(path, head(path, (), "GET"), (404, 308))
    yield Case("another host", head("/version", (), "GET", host="elsewhere"), (403,))
    yield Case("two hosts", head("/version", ("Host: localhost",), "GET"), (400,))


def key_texts():
    for key in ("a'b", 'a"b', "a;b", "%", "k" * 8000, "key-of-the-guard", "key-of-the-guardss"):
        yield Case(key[:20], head("/version", (), "GET", key=key), (401,))


OF_KIND = {
    "header of a request": header_of_a_request,
    "body in pieces": body_in_pieces,
    "compressed body": compressed_body,
    "error text that tells too much": error_text,
    "number of answers": number_of_answers,
    "negative number": negative_number,
    "text that a later part cannot take": salt,
    "bad form of an answer": bad_form,
    "bad schema of a tool": bad_tool,
    "form that is costly to compile": costly_form,
    "cache of forms": many_forms,
    "program in a request": program,
    "variable that replaces an argument": variable,
    "control tokens in a text": control_tokens,
    "parser of tool calls": tool_marks,
    "address that the server fetches": addresses,
    "peer named by a client": names,
    "key of a cache chosen by a client": names,
    "path with two readings": two_readings,
    "key that becomes a query": key_texts,
}
# Bytes for the ports between processes: no form, a length of nothing and of far too much.
FOREIGN_BYTES = {
    "parts of a hand-off that do not fit": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 64,),
    "address on the wire": (b"\x00" * 64, b"\xff" * 4096),
    "sizes of saved KV": (b"\x01\x00\x00\x00" * 64,),
    "objects on the wire": (b"\x80\x04." * 32, b"GET / HTTP/1.1\r\n\r\n"),
}
