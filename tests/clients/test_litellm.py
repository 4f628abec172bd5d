"""LiteLLM: chat, streams, tools, types and completions, by its prefixes openai and hosted_vllm."""

import json

import litellm
import pytest
from conftest import Sky

pytestmark = pytest.mark.client("litellm")

ASK = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "temperature": 0}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "integer", "minimum": 0, "maximum": 23}},
            "required": ["zone"],
        },
    },
}


@pytest.fixture(params=["openai", "hosted_vllm"])
def ask(request, url):
    def run(**fields):
        return litellm.completion(
            model=f"{request.param}/default", api_base=url, api_key="none", **{**ASK, **fields}
        )

    return run


def test_a_stream_is_the_whole_answer(ask):
    whole = ask(max_tokens=32)
    chunks = list(ask(max_tokens=32, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == text
    assert rebuilt.choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_call_is_made_and_its_result_is_answered(ask):
    fields = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
    message = ask(max_tokens=60, **fields).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "clock"
    assert 0 <= json.loads(call.function.arguments)["zone"] <= 23
    chunks = list(ask(max_tokens=60, stream=True, **fields))
    (streamed,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is noon."}
    answer = ask(
        messages=[*ASK["messages"], message, result],
        tools=[CLOCK],
        tool_choice="none",
        max_tokens=32,
    )
    assert answer.choices[0].message.content


def test_an_answer_has_the_type(ask):
    answer = ask(max_tokens=80, response_format=Sky)
    assert Sky.model_validate_json(answer.choices[0].message.content)


def test_completions_and_errors(url):
    fields = {"model": "text-completion-openai/default", "api_base": url, "api_key": "none"}
    text = litellm.text_completion(
        prompt="The capital of France is", max_tokens=4, temperature=0, **fields
    )
    assert "Paris" in text.choices[0].text
    with pytest.raises(litellm.BadRequestError, match="top_p"):
        litellm.completion(
            model="openai/default", api_base=url, api_key="none", top_p=7, num_retries=0, **ASK
        )
