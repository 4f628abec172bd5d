"""Tests parts of completions beside the text: prompts, log-probabilities, why they end, choices."""

import math

import openai
import pytest

from baton_server import Server, complete, generated_stubs, http_json, metric

PROMPT = "The capital of France is"


def post(server, expect=200, **fields):
    status, _, answer = server.post("/v1/completions", {"temperature": 0, **fields})
    assert status == expect, answer
    return answer


def stream(server, **fields):
    return server.stream("/v1/completions", {"temperature": 0, **fields})


def texts(events, n=1):
    joined = [""] * n
    for choice in (c for e in events for c in e["choices"]):
        joined[choice["index"]] += choice["text"]
    return joined


def test_echo_with_and_without_an_answer(server):
    plain = post(server, prompt=PROMPT, max_tokens=6)["choices"][0]["text"]
    echoed = post(server, prompt=PROMPT, max_tokens=6, echo=True, n=2)
    assert [c["text"] for c in echoed["choices"]] == [PROMPT + plain] * 2
    events = stream(server, prompt=PROMPT, max_tokens=6, echo=True, n=2)
    assert texts(events, 2) == [PROMPT + plain] * 2
    ids = server.post("/tokenize", {"content": PROMPT})[2]["tokens"]
    alone = post(server, prompt=ids, max_tokens=0, echo=True)
    assert alone["choices"][0]["text"] == PROMPT
    assert alone["choices"][0]["finish_reason"] == "length"
    assert alone["usage"]["prompt_tokens"] == len(ids)
    assert alone["usage"]["completion_tokens"] == 0
    assert texts(stream(server, prompt=PROMPT, max_tokens=0, echo=True)) == [PROMPT]
    answer = complete(server, prompt=PROMPT, max_tokens=0, echo=True)
    assert answer.texts == {0: PROMPT} and answer.usage.completion_tokens == 0


@pytest.mark.parametrize(
    "fields,param,word",
    [
        ({"max_tokens": 0}, "max_tokens", "echo"),
        ({"max_tokens": -1}, "max_tokens", "0"),
        ({"max_tokens": 4, "prompt_logprobs": 21}, "prompt_logprobs", "20"),
        ({"max_tokens": 4, "suffix": "."}, "suffix", "absent"),
    ],
)
def test_what_is_not_served_is_named(server, fields, param, word):
    error = post(server, 400, prompt=PROMPT, **fields)["error"]
    assert error["param"] == param
    assert param in error["message"] and word in error["message"]


def offsets_of(names):
    """How many characters begin before each token: a name is its text, or the bytes of a part."""
    offsets, num_begun = [], 0
    for name in names:
        offsets.append(num_begun)
        is_part = name.startswith("bytes:")
        data = bytes.fromhex(name[6:].replace("\\x", "")) if is_part else name.encode()
        num_begun += sum(byte & 0xC0 != 0x80 for byte in data)
    return offsets


def test_logprobs_whole_and_streamed(server):
    fields = {"prompt": "Unicode: \u00e9\u00e9, \U0001f600", "max_tokens": 12, "ignore_eos": True}
    whole = post(server, logprobs=3, **fields)["choices"][0]
    rows = whole["logprobs"]
    assert all(len(rows[k]) == 12 for k in rows), {k: len(rows[k]) for k in rows}
    assert rows["text_offset"] == sorted(rows["text_offset"]) and rows["text_offset"][0] == 0
    for token, logprob, top in zip(rows["tokens"], rows["token_logprobs"], rows["top_logprobs"]):
        assert logprob <= 0 and 1 <= len(top) <= 4
        assert top[token] == logprob == max(top.values()), "greedy takes the likeliest"
    halves = [t for t in rows["tokens"] if t.startswith("bytes:\\x")]
    assert halves and len(set(halves)) > 1, "halves of characters have names of their own"
    assert rows["text_offset"] == offsets_of(rows["tokens"])
    streamed = {key: [] for key in rows}
    events = stream(server, logprobs=3, **fields)
    for choice in (c for e in events for c in e["choices"]):
        for key, values in (choice["logprobs"] or {}).items():
            streamed[key] += values
    assert streamed == rows
    assert texts(events) == [whole["text"]]
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(server.channel)
    request = pb2.CompletionRequest(temperature=0, logprobs=3, **fields)
    over_grpc = stub.Complete(request, timeout=60).choices[0].logprobs
    assert list(over_grpc.tokens) == rows["tokens"]
    for token, top in zip(over_grpc.tokens, over_grpc.top_logprobs):
        assert token in {entry.token for entry in top.entries}


def test_stop_reason_is_what_the_request_asked_for(server):
    text = post(server, prompt=PROMPT, max_tokens=8)["choices"][0]
    assert text["finish_reason"] == "length" and text["stop_reason"] is None
    stopped = post(server, prompt=PROMPT, max_tokens=8, stop=["never", "aris"])["choices"][0]
    assert stopped["finish_reason"] == "stop" and stopped["stop_reason"] == "aris"
    first = post(server, prompt=PROMPT, max_tokens=1, logprobs=0)["choices"][0]
    token = server.post("/tokenize", {"content": first["logprobs"]["tokens"][0]})[2]["tokens"]
    assert len(token) == 1
    by_token = post(server, prompt=PROMPT, max_tokens=8, stop_token_ids=token)["choices"][0]
    assert by_token["stop_reason"] == token[0] and by_token["text"] == ""
    ends = [
        c
        for e in stream(server, prompt=PROMPT, max_tokens=8, stop_token_ids=token)
        for c in e["choices"]
        if c["finish_reason"]
    ]
    assert [e["stop_reason"] for e in ends] == token
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(server.channel)
    request = pb2.CompletionRequest(prompt=PROMPT, max_tokens=8, temperature=0, stop=["aris"])
    assert stub.Complete(request, timeout=60).choices[0].stop_reason.text == "aris"


def test_choices_share_one_prompt():
    """n = 4 costs one prompt: in usage, in the prefill worker's steps, and on the wire."""
    filler = "The quick brown fox jumps over the lazy dog. " * 8
    with Server() as server:
        prefill = next(p for p in server.workers() if p["role"] == "prefill")

        def work_of_prefill():
            """Tokens of prompts that it has looked up, and those that its steps have computed."""
            steps = http_json(f"http://{prefill['admin']}/debug/trace")[2]["steps"]
            looked_up = metric(prefill, "baton_prefix_cache_queries_total")
            return looked_up, sum(step["prefill_tokens"] for step in steps)

        def cost(first_word, n):
            before = work_of_prefill()
            body = {
                "messages": [{"role": "user", "content": first_word + " " + filler}],
                "max_tokens": 8,
                "n": n,
                "seed": 3,
                "ignore_eos": True,
            }
            answer = server.post("/v1/chat/completions", body)[2]
            assert answer["timings"]["path"] == "disagg"
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] < 32
            after = work_of_prefill()
            assert len(answer["choices"]) == n
            assert answer["usage"]["completion_tokens"] == 8 * n
            texts = {c["message"]["content"] for c in answer["choices"]}
            assert len(texts) == n, "each choice has its own text"
            return {
                "prompt_tokens": answer["usage"]["prompt_tokens"],
                "kv_bytes": answer["timings"]["kv_bytes"],
                "looked_up": after[0] - before[0],
                "computed": after[1] - before[1],
            }

        cost("warm", 1)  # what all prompts have in common is cached from here on
        one = cost("cat", 1)
        four = cost("dog", 4)
        assert four["prompt_tokens"] == one["prompt_tokens"] > 80
        assert four["looked_up"] == four["prompt_tokens"], "the prompt is there once"
        # In however many steps. The beginning is cached.
        assert four["prompt_tokens"] - 32 < four["computed"] == one["computed"]
        assert four["computed"] <= four["prompt_tokens"]
        assert four["kv_bytes"] == one["kv_bytes"] > 0


# Several prompts in one request, and their log-probabilities, as evaluators send them.
PROMPTS = ["The capital of France is", "One, two, three,", "Water is made of hydrogen and"]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=120)


def ask(client, prompt, **fields):
    fields = {"model": "default", "temperature": 0, "max_tokens": 6, **fields}
    return client.completions.create(prompt=prompt, **fields)


def ids_of(server, text):
    return server.post("/tokenize", {"content": text})[2]["tokens"]


def test_a_batch_gives_what_single_requests_give(server, client):
    alone = [ask(client, p) for p in PROMPTS]
    for batch in (PROMPTS, [ids_of(server, p) for p in PROMPTS]):
        answer = ask(client, batch)
        assert [c.text for c in answer.choices] == [a.choices[0].text for a in alone]
        assert [c.index for c in answer.choices] == [0, 1, 2]
        assert answer.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)
        assert answer.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)
        assert all(c.to_dict()["timings"]["decode_worker"] for c in answer.choices)
    texts = [""] * 6
    usage = None
    for chunk in ask(client, PROMPTS, n=2, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [a.choices[0].text for a in alone for _ in range(2)]
    assert usage.completion_tokens == 2 * sum(a.usage.completion_tokens for a in alone)


def test_a_bad_prompt_names_its_place(client):
    for prompt, param in [
        (["a", ""], "prompt[1]"),
        ([[1], [10**6]], "prompt[1]"),
        (["a"] * 1025, "prompt"),
        (["a" * 40, "b " * 20_000], "prompt[1]"),
    ]:
        with pytest.raises(openai.BadRequestError) as failure:
            ask(client, prompt)
        assert failure.value.param == param


def test_echoed_logprobs_are_those_of_the_generated_tokens(server, client):
    prompts = [ids_of(server, p) for p in PROMPTS]
    written = ask(client, prompts, max_tokens=8, logprobs=3, echo=True)
    for ids, choice in zip(prompts, written.choices):
        rows = choice.logprobs
        assert len(rows.tokens) == len(rows.token_logprobs) == len(ids) + 8
        assert rows.token_logprobs[0] is None and rows.top_logprobs[0] is None
        assert rows.text_offset == sorted(rows.text_offset) and rows.text_offset[0] == 0
        for logprob, top in zip(rows.token_logprobs[1:], rows.top_logprobs[1:]):
            assert -40 < logprob <= 0 and max(top.values()) >= logprob
            # Some of the mass lies beyond the three likeliest tokens.
            assert sum(math.exp(v) for v in top.values()) <= 1.0 + 1e-4
        assert all(
            logprob == max(top.values())
            for logprob, top in zip(rows.token_logprobs[-8:], rows.top_logprobs[-8:])
        ), "greedy takes the likeliest"
    # The answers as prompts, computed at once and not token by token: no bit differs.
    longer = [ids_of(server, c.text) for c in written.choices]
    for ids, before in zip(longer, written.choices):
        if len(ids) != len(before.logprobs.tokens):
            continue  # the text has other tokens than those that were sampled
        for max_tokens in (0, 1):
            alone = ask(client, [ids], max_tokens=max_tokens, logprobs=3, echo=True)
            rows = alone.choices[0].logprobs
            assert rows.token_logprobs[: len(ids)] == before.logprobs.token_logprobs
            assert alone.usage.completion_tokens == max_tokens
            assert len(rows.tokens) == len(ids) + max_tokens
            assert alone.usage.to_dict()["prompt_tokens_details"]["cached_tokens"] == 0


def test_text_ids_and_batches_have_equal_bits(server, client):
    fields = {"max_tokens": 0, "echo": True, "logprobs": 2}
    text = "The quick brown fox jumps over the lazy dog. " * 30
    ids = ids_of(server, text)
    assert len(ids) > 256, "several chunks"
    first = ask(client, text, **fields).choices[0].logprobs
    again = ask(client, [ids, ids_of(server, "short"), ids], **fields)
    for choice in (again.choices[0], again.choices[2]):
        assert choice.logprobs.token_logprobs == first.token_logprobs
        assert choice.logprobs.top_logprobs == first.top_logprobs


def test_prompt_logprobs_in_vllms_form(server, client):
    ids = ids_of(server, PROMPTS[0])
    answer = ask(client, PROMPTS[0], max_tokens=1, extra_body={"prompt_logprobs": 2}, logprobs=2)
    positions = answer.choices[0].to_dict()["prompt_logprobs"]
    assert len(positions) == len(ids) and positions[0] is None
    for token, entries in zip(ids[1:], positions[1:]):
        own = entries[str(token)]
        assert own["logprob"] <= 0 and own["rank"] >= 1 and own["decoded_token"]
        assert sorted(e["rank"] for e in entries.values())[:2] == [1, 2]
        assert len(entries) == (2 if own["rank"] <= 2 else 3)
    chat = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "prompt_logprobs": 0},
    )[2]
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def lists_of(chunks):
    """The four lists of each choice of a stream, joined, and each choice's first text."""
    joined, first = {}, {}
    for choice in (c for chunk in chunks for c in chunk["choices"]):
        first.setdefault(choice["index"], choice["text"])
        lists = joined.setdefault(choice["index"], {})
        for name, values in (choice["logprobs"] or {}).items():
            lists.setdefault(name, []).extend(values)
    return joined, first


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_streams_begin_with_those_of_the_prompt(server, max_tokens):
    fields = {"prompt": PROMPTS, "n": 2, "echo": True, "logprobs": 2, "seed": 5}
    fields.update(max_tokens=max_tokens, temperature=0, prompt_logprobs=1)
    whole = post(server, **fields)
    chunks = server.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    joined, first = lists_of(chunks)
    logs = {
        c["index"]: c["prompt_logprobs"]
        for chunk in chunks
        for c in chunk["choices"]
        if "prompt_logprobs" in c
    }
    for choice in whole["choices"]:
        idx = choice["index"]
        assert first[idx] == PROMPTS[idx // 2]
        assert joined[idx] == choice["logprobs"]
        assert logs[idx] == choice["prompt_logprobs"]
        assert joined[idx]["token_logprobs"][0] is None
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert usage[0]["completion_tokens"] == whole["usage"]["completion_tokens"]
    ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert ends == ["length"] * 6


def test_streamed_chats_tell_them_once(server):
    fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "n": 2}
    fields.update(prompt_logprobs=1, temperature=0)
    whole = server.post("/v1/chat/completions", fields)[2]
    chunks = server.stream("/v1/chat/completions", fields)
    assert chunks[0]["prompt_logprobs"] == whole["prompt_logprobs"]
    assert not any("prompt_logprobs" in chunk for chunk in chunks[1:])


def test_a_stream_has_room_for_fewer(server):
    long = "The quick brown fox jumps over the lazy dog. " * 90
    fields = {"prompt": long, "max_tokens": 1, "prompt_logprobs": 20}
    assert len(post(server, **fields)["choices"][0]["prompt_logprobs"]) > 16384 // 21
    error = post(server, 400, stream=True, **fields)["error"]
    assert error["param"] == "prompt_logprobs" and "16384" in error["message"]


def test_streamed_logprobs_over_grpc(server):
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(server.channel)
    for max_tokens in (0, 4):
        request = pb2.CompletionRequest(
            prompts=PROMPTS, max_tokens=max_tokens, echo=True, logprobs=1, temperature=0
        )
        request.prompt_logprobs = 1
        whole = stub.Complete(request)
        texts, tokens, logprobs, positions, ends = {}, {}, {}, {}, []
        for choice in (c for chunk in stub.StreamComplete(request) for c in chunk.choices):
            at = choice.index
            texts[at] = texts.get(at, "") + choice.text
            tokens.setdefault(at, []).extend(choice.logprobs.tokens)
            logprobs.setdefault(at, []).extend(choice.logprobs.token_logprobs)
            positions.setdefault(at, []).extend(choice.prompt_logprobs)
            ends += [choice.finish_reason] if choice.finish_reason else []
        assert ends == ["length"] * 3
        for choice in whole.choices:
            at = choice.index
            assert texts[at] == choice.text and tokens[at] == list(choice.logprobs.tokens)
            assert math.isnan(logprobs[at][0])
            assert logprobs[at][1:] == list(choice.logprobs.token_logprobs)[1:]
            assert positions[at] == list(choice.prompt_logprobs)
    chat = pb2.ChatCompletionRequest(
        messages=[pb2.ChatMessage(role="user", content="Hi")], max_tokens=3, n=2, prompt_logprobs=1
    )
    service = pb2_grpc.ChatServiceStub(server.channel)
    chunks = list(service.StreamChatCompletion(chat))
    assert list(chunks[0].prompt_logprobs) == list(service.ChatCompletion(chat).prompt_logprobs)
    assert not any(chunk.prompt_logprobs for chunk in chunks[1:])


def test_grpc_has_them_too(server, client):
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(server.channel)
    whole = stub.Complete(
        pb2.CompletionRequest(prompts=PROMPTS, max_tokens=0, echo=True, logprobs=1)
    )
    json_form = ask(client, PROMPTS, max_tokens=0, echo=True, logprobs=1)
    for mine, other in zip(whole.choices, json_form.choices):
        assert mine.text == other.text
        assert math.isnan(mine.logprobs.token_logprobs[0])
        for a, b in zip(mine.logprobs.token_logprobs[1:], other.logprobs.token_logprobs[1:]):
            assert math.isclose(a, b, rel_tol=1e-6)
    lists = [pb2.TokenIds(ids=ids_of(server, p)) for p in PROMPTS]
    texts = {}
    for chunk in stub.StreamComplete(
        pb2.CompletionRequest(prompts_token_ids=lists, max_tokens=4, temperature=0)
    ):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert [texts[i] for i in range(3)] == [
        c.text for c in ask(client, PROMPTS, max_tokens=4).choices
    ]
