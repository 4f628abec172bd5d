"""Thoughts have a field of their own in every form of a chat answer, unless somebody says no."""

import json

import anthropic
import openai
import pytest

from baton_server import Server, generated_stubs
from scripted_model import ANSWER, THOUGHT, write_thinker

THOUGHTS = "".join(THOUGHT[2:5]) + "."
CONTENT = "".join(ANSWER)
RAW = "".join(THOUGHT) + CONTENT
# How the prompt ends -> (thoughts, content, tokens until the thoughts are over).
CASES = {
    "think": (THOUGHTS, CONTENT, len(THOUGHT)),
    "open": (THOUGHTS, CONTENT, len(THOUGHT) - 2),  # "<think>\n" is the template's
    "plain": ("", CONTENT, 0),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_thinker(tmp_path_factory.mktemp("model") / "thinker.gguf")


@pytest.fixture(scope="module")
def thinker(model):
    with Server(model=model) as running:
        yield running


def ask(server, text="think", **fields):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    return answer


def stream(server, text="think", **fields):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    return server.stream(
        "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
    )


def joined(events, field, choice=0):
    rows = [c for e in events for c in e["choices"] if c["index"] == choice]
    return "".join(row["delta"].get(field, "") for row in rows)


@pytest.mark.parametrize("text", CASES)
def test_whole_streamed_and_grpc_answers_agree(thinker, text):
    thoughts, content, num_thought = CASES[text]
    answer = ask(thinker, text)
    message = answer["choices"][0]["message"]
    assert message["content"] == content
    assert message["reasoning_content"] == (thoughts or None)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] is None, "the model ended it"
    usage = answer["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == num_thought
    assert usage["completion_tokens"] == num_thought + len(ANSWER) + 1

    events = stream(thinker, text)
    assert joined(events, "reasoning_content") == thoughts
    assert joined(events, "content") == content
    assert len(events) == usage["completion_tokens"] + 3, "one for each token, three more"
    assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == num_thought

    pb2, pb2_grpc = generated_stubs()
    chat = pb2_grpc.ChatServiceStub(thinker.channel)
    request = pb2.ChatCompletionRequest(
        messages=[pb2.ChatMessage(role="user", content=text)], temperature=0
    )
    whole = chat.ChatCompletion(request, timeout=60)
    assert whole.choices[0].message.reasoning_content == thoughts
    assert whole.choices[0].message.content == content
    assert whole.usage.completion_tokens_details.reasoning_tokens == num_thought
    chunks = list(chat.StreamChatCompletion(request, timeout=60))
    assert "".join(c.choices[0].delta.reasoning_content for c in chunks) == thoughts
    assert "".join(c.choices[0].delta.content for c in chunks) == content
    assert len(chunks) == usage["completion_tokens"]


def test_the_openai_client_reads_the_thoughts(thinker):
    client = openai.OpenAI(base_url=thinker.http + "/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "think"}]
    answer = client.chat.completions.create(model="default", messages=messages, temperature=0)
    assert answer.choices[0].message.reasoning_content == THOUGHTS
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(THOUGHT)
    chunks = list(
        client.chat.completions.create(
            model="default", messages=messages, temperature=0, stream=True
        )
    )
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == THOUGHTS
    assert "".join(d.content or "" for d in deltas) == CONTENT


def test_responses_have_the_thoughts_as_the_summary_that_was_asked_for(thinker):
    client = openai.OpenAI(base_url=thinker.http + "/v1", api_key="none", max_retries=0)
    ask = {"model": "default", "input": "think", "temperature": 0}
    plain = client.responses.create(**ask).output[0]
    assert plain.summary == [] and [part.text for part in plain.content] == [THOUGHTS]
    ask["reasoning"] = {"summary": "auto"}
    whole = client.responses.create(**ask)
    assert [part.text for part in whole.output[0].summary] == [THOUGHTS]
    assert whole.output_text == CONTENT and whole.reasoning.summary == "auto"
    events = list(client.responses.create(**ask, stream=True))
    deltas = [e.delta for e in events if e.type == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == THOUGHTS
    assert events[-1].response.output[0].summary == whole.output[0].summary


def test_an_answer_may_end_within_its_thoughts(thinker):
    cut = ask(thinker, max_tokens=4)["choices"][0]
    assert cut["message"]["reasoning_content"] == "Let me"
    assert cut["message"]["content"] == ""
    assert cut["finish_reason"] == "length" and cut["stop_reason"] is None
    in_the_tag = ask(thinker, max_tokens=8)["choices"][0]
    assert in_the_tag["message"]["reasoning_content"] == THOUGHTS + "\n</think"
    stopped = ask(thinker, stop=["nothing", " see"])["choices"][0]
    assert stopped["message"]["reasoning_content"] == "Let me"
    assert stopped["finish_reason"] == "stop" and stopped["stop_reason"] == " see"
    events = stream(thinker, stop=["nothing", " see"])
    assert joined(events, "reasoning_content") == "Let me"
    ends = [c for e in events for c in e["choices"] if c["finish_reason"]]
    assert [e["stop_reason"] for e in ends] == [" see"]


def test_a_stop_text_may_stand_across_both_parts(thinker):
    answer = ask(thinker, stop=["</think>\n\nThe sky"])["choices"][0]
    assert answer["message"]["reasoning_content"] == THOUGHTS
    assert answer["message"]["content"] == ""
    assert answer["stop_reason"] == "</think>\n\nThe sky"


def test_choices_and_logprobs(thinker):
    answer = ask(thinker, n=2, logprobs=True, top_logprobs=1)
    assert len(answer["choices"]) == 2
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"] == THOUGHTS
        assert choice["message"]["content"] == CONTENT
        tokens = [t["token"] for t in choice["logprobs"]["content"]]
        assert "".join(tokens[:-1]) == RAW, "the thoughts' tokens and tags too"
    details = answer["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 2 * len(THOUGHT)
    events = stream(thinker, n=2)
    for choice in (0, 1):
        assert joined(events, "reasoning_content", choice) == THOUGHTS
        assert joined(events, "content", choice) == CONTENT


def test_thoughts_stay_in_the_content_when_somebody_says_so(thinker, model):
    message = ask(thinker, reasoning_format="none")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": RAW}
    assert joined(stream(thinker, reasoning_format="none"), "content") == RAW
    with Server("--reasoning-format", "none", model=model) as off:
        answer = ask(off)
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": RAW}
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
        message = ask(off, reasoning_format="auto")["choices"][0]["message"]
        assert message["reasoning_content"] == THOUGHTS


def test_a_plain_completion_is_never_split(thinker):
    status, _, answer = thinker.post(
        "/v1/completions", {"prompt": "<think>", "max_tokens": 20, "temperature": 0}
    )
    assert status == 200
    assert "reasoning_content" not in json.dumps(answer)


def test_messages_have_thoughts_as_a_block(thinker):
    client = anthropic.Anthropic(base_url=thinker.http, api_key="none", max_retries=0, timeout=60)
    fields = {"model": "default", "max_tokens": 64, "extra_body": {"temperature": 0}}
    asked = [{"role": "user", "content": "think"}]
    whole = client.messages.create(messages=asked, **fields)
    with client.messages.stream(messages=asked, **fields) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].thinking == THOUGHTS
        assert message.content[1].text == CONTENT
        assert message.usage.output_tokens_details.thinking_tokens == len(THOUGHT)
    hidden = {"type": "adaptive", "display": "omitted"}
    blocks = client.messages.create(messages=asked, thinking=hidden, **fields).content
    assert (blocks[0].thinking, blocks[1].text) == ("", CONTENT)
    # The message goes back as it came.
    again = asked + [whole.to_param(), {"role": "user", "content": "plain"}]
    assert [b.type for b in client.messages.create(messages=again, **fields).content] == ["text"]
