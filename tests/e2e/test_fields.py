"""Fields of requests: honoured, or refused by name; and what the server says of itself."""

import contextlib
import json
import os
import re
import socket
import threading
import time
import urllib.request

import pytest

import guard_cases
from baton_server import Server, complete, generated_stubs, http_json

FACTS = " ".join(f"fact {i} is {i * i}." for i in range(60))


def cached(server, path="/v1/chat/completions", **fields):
    body = {"max_tokens": 2, "temperature": 0, **fields}
    if path.endswith("chat/completions"):
        body.setdefault("messages", [{"role": "user", "content": FACTS}])
    status, _, answer = server.post(path, body)
    assert status == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_salts_keep_cached_prefixes_apart():
    with Server() as server:
        assert cached(server, cache_salt="tenant-a") == 0
        assert cached(server, cache_salt="tenant-a") > 300, "the same salt shares"
        assert cached(server, cache_salt="tenant-b") == 0, "another salt finds nothing"
        assert cached(server) == 0, "no salt finds nothing of a salt"
        assert cached(server) > 300
        assert cached(server, cache_salt="tenant-c") == 0, "a salt finds nothing of no salt"
        # The other endpoint and API have the same caches.
        ids = server.post("/tokenize", {"messages": [{"role": "user", "content": FACTS}]})[2]
        of_ids = {"path": "/v1/completions", "prompt": ids["tokens"]}
        assert cached(server, **of_ids, cache_salt="tenant-b") > 300
        assert cached(server, **of_ids, cache_salt="tenant-d") == 0
        pb2, pb2_grpc = generated_stubs()
        stub = pb2_grpc.CompletionServiceStub(server.channel)

        def over_grpc(salt):
            request = pb2.CompletionRequest(
                prompt_token_ids=ids["tokens"], max_tokens=1, cache_salt=salt
            )
            return stub.Complete(request, timeout=60).usage.prompt_tokens_details.cached_tokens

        assert over_grpc("tenant-e") == 0
        assert over_grpc("tenant-e") > 300
        assert over_grpc("tenant-a") > 300


@pytest.mark.parametrize("salt", ["", "s" * 1025, 5, ["a"]])
def test_a_salt_that_is_none_is_refused(server, salt):
    status, _, answer = server.post(
        "/v1/completions", {"prompt": "a", "max_tokens": 1, "cache_salt": salt}
    )
    assert status == 400 and answer["error"]["param"] == "cache_salt"
    assert "1 to 1024 bytes" in answer["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2.5, "seed": 1},
        {"temperature": 100, "seed": 1},
        {"presence_penalty": 50, "frequency_penalty": -100, "temperature": 0},
        {"repetition_penalty": 100, "temperature": 0},
        {"user": "a\tb\nc" * 10000},
        {"seed": 2**63},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"logprobs": True},
        {"min_tokens": 1, "top_k": -1},
    ],
)
def test_values_that_peers_take_are_taken(server, fields):
    status, headers, answer = server.post(
        "/v1/completions", {"prompt": "The sky is", "max_tokens": 3, **fields}
    )
    assert status == 200, answer
    assert "X-Baton-Ignored-Fields" not in headers
    if fields.get("logprobs"):
        assert len(answer["choices"][0]["logprobs"]["top_logprobs"][0]) in (1, 2)


TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f"}
CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}
USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "path,body,named",
    [
        ("/v1/responses", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/responses", {"text": {"format": {"type": "text", "x": 1}}}, "text.format.x"),
        ("/v1/responses", {"tools": [{**FLAT_TOOL, "x": 1}], "tool_choice": "none"}, "tools[0].x"),
        ("/v1/responses", {"input": [{**USER[0], "x": 1}]}, "input[0].x"),
        ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": {**TOOL, "x": 1}}, "choice.x"),
        ("/v1/messages", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/messages", {"metadata": {"x": 1}}, "metadata.x"),
        ("/v1/messages", {"tools": [{**CLAUDE_TOOL, "x": 1}]}, "tools[0].x"),
        ("/v1/messages", {"messages": [{**USER[0], "x": 1}]}, "messages[0].x"),
        ("/api/generate", {"raw": True, "think": False, "stream": False}, "think"),
    ],
)
def test_members_that_nothing_reads_are_named_on_every_path(server, path, body, named):
    good = {
        "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
        "/api/generate": {"prompt": "Hi", "options": {"num_predict": 2}},
        "/tokenize": {},
    }.get(path, {"messages": USER, "max_tokens": 2})
    status, headers, answer = server.post(path, {**good, **body})
    assert status == 200, answer
    assert named in headers["X-Baton-Ignored-Fields"], dict(headers)


def test_responses_refuse_log_probabilities_of_the_prompt(server):
    status, _, answer = server.post("/v1/responses", {"input": "Hi", "prompt_logprobs": 1})
    assert status == 400 and answer["error"]["param"] == "prompt_logprobs", answer


def test_seeds_of_64_bits_are_all_different(server):
    def text(seed):
        body = {"prompt": "Once", "max_tokens": 12, "temperature": 1.5, "seed": seed}
        return server.post("/v1/completions", body)[2]["choices"][0]["text"]

    seeds = (2**63, 2**63 + 1, 2**64 - 2, 7)
    assert len({text(seed) for seed in seeds}) == len(seeds)
    assert text(2**63) == text(2**63) == text(-(2**63)), "one seed, signed or not"


@pytest.mark.parametrize(
    "text,param",
    [
        ('"n":1e400', "n"),
        ('"temperature":-1e999', "temperature"),
        ('"seed":18446744073709551616', "seed"),
        ('"seed":1e400', "seed"),
        ('"best_of":129', "best_of"),
        ('"logit_bias":{"5":1e400}', "logit_bias"),
        ('"user":"' + "u" * 65537 + '"', "user"),
        ('"top_p":0', "top_p"),
    ],
)
def test_what_is_out_of_range_names_field_and_range(server, text, param):
    body = '{"prompt":"a","max_tokens":1,' + text + "}"
    status, _, answer = server.post("/v1/completions", body.encode())
    assert status == 400 and answer["error"]["param"] == param, answer
    assert "must be" in answer["error"]["message"]


def test_continuous_usage(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.stream(
        "/v1/completions",
        {"prompt": "One two", "max_tokens": 4, "ignore_eos": True, "stream_options": options},
    )
    counts = [e["usage"]["completion_tokens"] for e in events]
    assert counts == [1, 2, 3, 4, 4, 4]
    assert len({e["usage"]["prompt_tokens"] for e in events}) == 1


def test_a_model_may_have_several_names():
    flags = ("--mode", "aggregated", "--served-model-name", "gpt-4o,org/Small-135M")
    with Server(*flags) as server:
        listed = server.get("/v1/models")[2]["data"]
        assert [row["id"] for row in listed] == ["gpt-4o", "org/Small-135M"]
        assert listed[0]["max_model_len"] == listed[0]["max_context"] > 0
        for name in ("gpt-4o", "org/Small-135M", "default", None):
            body = {"prompt": "a", "max_tokens": 1, **({"model": name} if name else {})}
            status, _, answer = server.post("/v1/completions", body)
            assert status == 200 and answer["model"] == "gpt-4o", answer
        for name in ("", "smollm2:135m", "GPT-4o"):
            status, _, answer = server.post(
                "/v1/completions", {"prompt": "a", "max_tokens": 1, "model": name}
            )
            assert status == 404 and answer["error"]["code"] == "model_not_found"
        assert complete(server, prompt="a", max_tokens=1, model="org/Small-135M").tokens
        assert server.get("/v1/models/org/Small-135M")[2]["id"] == "org/Small-135M"


def test_the_description_lists_every_path_and_field(server):
    document = server.get("/openapi.json")[2]
    assert document["openapi"].startswith("3.")
    for path, methods in document["paths"].items():
        for method in methods:
            if "{" in path or path == "/v1/cluster/events":  # which has no end
                continue
            status = server.get(path)[0] if method == "get" else server.post(path, {})[0]
            # Ollama's clients load a model by a request without a prompt; an absent model is the
            # only one.
            loads = path in ("/api/chat", "/api/generate", "/api/show")
            assert status == (200 if method == "get" or loads else 400), path
    chat = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "temperature", "cache_salt", "seed"} <= set(chat)
    assert json.dumps(chat)


# A sanitizer build takes longer for everything.
REFUSAL_LIMIT_S = 1.0 if "BATON_E2E_START_LIMIT_S" in os.environ else 0.1
LARGE_BODY = 64 << 10  # bytes that take their own time to arrive and to be parsed
GROWTH_MIB = 16


def resident_mib(process):
    with open(f"/proc/{process['pid']}/status") as file:
        return int(re.search(r"^VmRSS:\s+(\d+) kB", file.read(), re.M).group(1)) / 1024


def message_of(path, answer):
    """The text of an error in the form of its surface."""
    error = answer["error"]
    if path.startswith("/api/"):
        assert isinstance(error, str), answer
        return error
    if path.startswith("/v1/messages"):
        assert answer["type"] == "error" and error["type"], answer
        return error["message"]
    assert {"message", "type", "param", "code"} <= set(error), answer
    return error["message"]


def refusals():
    """(path, what, body, headers, status, what the message names) of all surfaces."""
    for path, what, body, headers, status in guard_cases.of_every_path():
        yield path, what, body if isinstance(body, bytes) else body.encode(), headers, status, ""
    for path, what, changes, field in guard_cases.of_fields():
        body = {**guard_cases.GOOD[path], **changes}
        yield path, what, json.dumps(body).encode(), {}, 400, field


@contextlib.contextmanager
def stream_of_its_own(server):
    """A stream beside the block's work; gives the list that its text is added to."""
    texts = []
    body = {"prompt": "The sea", "max_tokens": 150, "temperature": 0, "ignore_eos": True}

    def read():
        events = server.stream("/v1/completions", body)
        texts.append("".join(e["choices"][0]["text"] for e in events if e["choices"]))

    thread = threading.Thread(target=read)
    thread.start()
    yield texts
    thread.join()


def refuse(server, case):
    """Seconds that one refusal took."""
    path, what, body, headers, status, field = case
    began = time.monotonic()
    got, _, answer = http_json(server.http + path, body, headers=headers)
    seconds = time.monotonic() - began
    assert got == status, (path, what, got, answer)
    assert field in message_of(path, answer), (path, what, answer)
    return seconds


def test_each_refusal_is_quick_and_disturbs_nobody(server):
    with stream_of_its_own(server) as alone:
        pass
    cases = list(refusals())
    for case in cases:
        refuse(server, case)  # memory that is taken once is taken now
    before = resident_mib(server.router)
    with stream_of_its_own(server) as beside:
        for case in cases:
            limit = REFUSAL_LIMIT_S if len(case[2]) < LARGE_BODY else 20 * REFUSAL_LIMIT_S
            # The machine may be busy; a guard that is slow is slow each time.
            assert any(refuse(server, case) < limit for _ in range(3)), case[:2]
    assert beside == alone, "the stream beside them has the text that it has alone"
    assert resident_mib(server.router) - before < GROWTH_MIB
    for path, body in guard_cases.GOOD.items():
        assert server.post(path, body)[0] == 200, path


# Paths that generate nothing.
COUNTS = ("/tokenize", "/detokenize", "/apply-template", "/count_tokens", "/input_tokens")
STREAMED = [p for p in guard_cases.GOOD if not p.endswith(COUNTS)]


@pytest.mark.parametrize("path", STREAMED)
def test_the_body_alone_says_whether_an_answer_is_a_stream(server, path):
    """OpenAI's clients ask for JSON in the header of each request, also of a stream."""
    kind = "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
    for accept in ("application/json", "text/event-stream", "image/png", "*/*;q=0"):
        for stream in (True, False):
            body = json.dumps({**guard_cases.GOOD[path], "stream": stream}).encode()
            headers = {"Content-Type": "application/json", "Accept": accept}
            request = urllib.request.Request(server.http + path, body, headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                got = response.headers["Content-Type"]
                assert response.read()
            assert got.startswith(kind if stream else "application/json"), (accept, stream)
    status, _, answer = server.post(path, {**guard_cases.GOOD[path], "stream": "yes"})
    assert status == 400 and "stream" in message_of(path, answer), answer


def test_two_requests_of_one_name_are_two_requests(server):
    """A name that a client gives is a label: it joins no requests and reaches no address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        name = {"X-Request-Id": f"decode-0@127.0.0.1:{listener.getsockname()[1]}"}
        answers = {}

        def ask(prompt):
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            answers[prompt] = server.post("/v1/completions", body, headers=name)[2]

        prompts = ("One two three", "The capital of France is")
        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for prompt in prompts:
            alone = server.post(
                "/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            )[2]
            assert answers[prompt]["choices"][0]["text"] == alone["choices"][0]["text"]
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("mode", ["disagg", "aggregated"])
def test_progress_of_a_long_prompt(mode):
    pb2, pb2_grpc = generated_stubs()
    with Server("--mode", mode) as server:
        fields = {"max_tokens": 2, "temperature": 0, "return_progress": True}
        chat = {**fields, "messages": [{"role": "user", "content": FACTS * 2}]}
        chunks = server.stream("/v1/chat/completions", chat)
        told = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
        assert len(told) > 1, "several chunks of the prompt"
        processed = [p["processed"] for p in told]
        assert processed == sorted(set(processed)) and processed[-1] == told[0]["total"]
        assert [p["time_ms"] for p in told] == sorted(p["time_ms"] for p in told)
        assert all(p["cache"] == 0 for p in told)
        first_token = next(i for i, c in enumerate(chunks) if "prompt_progress" not in c)
        assert all("prompt_progress" not in c for c in chunks[first_token:])
        again = server.stream("/v1/chat/completions", chat)
        told = {c["prompt_progress"]["cache"] for c in again if "prompt_progress" in c}
        assert len(told) == 1, again
        (cached,) = told
        assert cached > 300, [c.get("timings") or c.get("prompt_progress") for c in again]
        whole = server.post("/v1/chat/completions", chat)[2]
        assert "prompt_progress" not in whole
        request = pb2.CompletionRequest(prompt=FACTS, max_tokens=2, return_progress=True)
        stub = pb2_grpc.CompletionServiceStub(server.channel)
        over_grpc = [c for c in stub.StreamComplete(request) if c.HasField("prompt_progress")]
        assert over_grpc[-1].prompt_progress.processed == over_grpc[-1].prompt_progress.total
        assert over_grpc[-1].choices[0].text == ""
