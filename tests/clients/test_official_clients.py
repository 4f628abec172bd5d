"""The Python packages of OpenAI, Anthropic and Ollama: whole, streamed, typed, with tools.

tests/e2e/test_openai_client.py asks more of them; here their answers are compared on the wire, also
while workers die.
"""

import json
from typing import Literal

import anthropic
import ollama
import openai
import pydantic
import pytest
from conftest import Sky

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
OPENAI = pytest.mark.client("openai")
ANTHROPIC = pytest.mark.client("anthropic")
OLLAMA = pytest.mark.client("ollama")
ASK = dict(model="default", messages=QUESTION, temperature=0, max_tokens=60)

# Anthropic's package has no word for the temperature any more.
GREEDY = dict(model="default", messages=QUESTION, max_tokens=60, extra_body=dict(temperature=0))


class Clock(pydantic.BaseModel):
    """The time in a zone."""

    model_config = pydantic.ConfigDict(extra="forbid")

    zone: int = pydantic.Field(ge=0, le=23)


class Colour(pydantic.BaseModel):
    """Anthropic's package takes bounds of numbers out of a schema: there are none."""

    model_config = pydantic.ConfigDict(extra="forbid")

    colour: Literal["blue", "grey", "red"]


SCHEMA = Clock.model_json_schema()


@pytest.fixture(name="client", scope="module")
def fixture_client(url):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)


@pytest.fixture(name="claude", scope="module")
def fixture_claude(server):
    return anthropic.Anthropic(base_url=server.http, api_key="none", max_retries=0, timeout=600)


@pytest.fixture(name="local", scope="module")
def fixture_local(server):
    return ollama.Client(host=server.http)


@OPENAI
def test_openai_streams_what_it_answers_whole(client):
    # The helper raises where `max_tokens` ends an answer.
    fields = dict(**ASK, n=2, stop=["."])
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    texts = ["", ""]
    for chunk in client.chat.completions.create(
        **fields, logprobs=True, top_logprobs=2, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == texts


@OPENAI
def test_openai_parses_a_type_whole_and_streamed(client):
    parsed = client.chat.completions.parse(**ASK, response_format=Sky).choices[0].message.parsed
    assert isinstance(parsed, Sky)
    with client.chat.completions.stream(**ASK, response_format=Sky) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    assert {"chunk", "content.delta", "content.done"} <= kinds


@OPENAI
def test_openai_calls_tools_and_goes_on(client):
    tools = [openai.pydantic_function_tool(Clock, name="clock")]
    for tool_choice in ("required", {"type": "function", "function": {"name": "clock"}}):
        fields = dict(tools=tools, tool_choice=tool_choice, parallel_tool_calls=False)
        message = client.chat.completions.parse(**ASK, **fields).choices[0].message
        (call,) = message.tool_calls
        assert isinstance(call.function.parsed_arguments, Clock)
        with client.chat.completions.stream(**ASK, **fields) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        assert [e.arguments for e in done] == [call.function.arguments]
        history = [*QUESTION, message.to_dict(),
                   {"role": "tool", "tool_call_id": call.id, "content": "It is noon."}]  # fmt: skip
        after = {**ASK, "messages": history, "tools": tools, "tool_choice": "none"}
        assert client.chat.completions.create(**after).choices[0].message.content


@OPENAI
def test_openai_asks_several_prompts_and_scores(client):
    prompts = ["The capital of France is", "One, two, three,"]
    fields = dict(model="default", temperature=0, max_tokens=12)
    both = client.completions.create(**fields, prompt=prompts)
    alone = [client.completions.create(**fields, prompt=prompt) for prompt in prompts]
    assert [c.text for c in both.choices] == [one.choices[0].text for one in alone]
    texts = ["", ""]
    for chunk in client.completions.create(**fields, prompt=prompts, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in both.choices]
    fields["max_tokens"] = 0
    scored = client.completions.create(**fields, prompt=prompts, echo=True, logprobs=2)
    for choice, prompt in zip(scored.choices, prompts, strict=True):
        assert choice.text == prompt and choice.logprobs.token_logprobs[0] is None


@OPENAI
def test_openai_responses_whole_typed_and_streamed(client):
    ask = dict(model="default", input="Why is the sky blue?", temperature=0, max_output_tokens=60)
    whole = client.responses.create(**ask)
    with client.responses.stream(**ask) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == whole.output_text
    counted = client.responses.input_tokens.count(model="default", input=ask["input"])
    assert counted.input_tokens == whole.usage.input_tokens
    assert isinstance(client.responses.parse(**ask, text_format=Sky).output_parsed, Sky)
    tools = [dict(type="function", name="clock", parameters=SCHEMA, strict=True)]
    fields = dict(tools=tools, tool_choice="required", parallel_tool_calls=False)
    (call,) = [o for o in client.responses.create(**ask, **fields).output
               if o.type == "function_call"]  # fmt: skip
    Clock.model_validate_json(call.arguments)


@ANTHROPIC
def test_anthropic_whole_streamed_and_typed(claude):
    whole = claude.messages.create(**GREEDY)
    with claude.messages.stream(**GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model="default", messages=QUESTION).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert isinstance(claude.messages.parse(**GREEDY, output_format=Colour).parsed_output, Colour)


@ANTHROPIC
def test_anthropic_uses_a_tool_and_goes_on(claude):
    tools = [dict(name="clock", description="The time in a zone", input_schema=SCHEMA)]
    choice = dict(type="any", disable_parallel_tool_use=True)
    called = claude.messages.create(**GREEDY, tools=tools, tool_choice=choice)
    use = next(block for block in called.content if block.type == "tool_use")
    Clock.model_validate(use.input)
    with claude.messages.stream(**GREEDY, tools=tools, tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].input == use.input and streamed.stop_reason == "tool_use"
    result = dict(type="tool_result", tool_use_id=use.id, content="It is noon.")
    content = [block.to_dict() for block in called.content]
    messages = [*QUESTION, dict(role="assistant", content=content),
                dict(role="user", content=[result])]  # fmt: skip
    fields = dict(tools=tools, tool_choice=dict(type="none"))
    answer = claude.messages.create(**{**GREEDY, "messages": messages}, **fields)
    assert answer.content[0].text


@ANTHROPIC
def test_anthropic_runs_a_tool_by_itself(claude):
    """The runner asks the server to keep the conversation, and goes on where it does not."""

    @anthropic.beta_tool
    def clock(zone: int) -> str:
        """The time in a zone."""
        return f"It is noon in {zone}."

    choice = dict(type="any", disable_parallel_tool_use=True)
    runner = claude.beta.messages.tool_runner(
        **GREEDY, tools=[clock], tool_choice=choice, max_iterations=2
    )
    answers = list(runner)
    assert [answer.content[-1].type for answer in answers] == ["tool_use", "tool_use"]


@OLLAMA
def test_ollama_whole_streamed_typed_and_with_tools(local):
    options = dict(temperature=0, num_predict=60)
    ask = dict(model="smollm2:135m", messages=QUESTION, options=options)
    whole = local.chat(**ask)
    parts = list(local.chat(**ask, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    typed = local.chat(**ask, format=Sky.model_json_schema())
    assert isinstance(Sky.model_validate(json.loads(typed.message.content)), Sky)
    count = dict(model="smollm2:135m", prompt="One, two, three,", raw=True, options=options)
    made = local.generate(**count)
    parts = local.generate(**count, stream=True)
    assert "".join(part.response for part in parts) == made.response
    clock = dict(type="function", function=dict(name="clock", parameters=SCHEMA))
    call = dict(function=dict(name="clock", arguments=dict(zone=3)))
    calling = dict(role="assistant", content="", tool_calls=[call])
    result = dict(role="tool", tool_name="clock", content="It is noon.")
    after = local.chat(**{**ask, "messages": [*QUESTION, calling, result]}, tools=[clock])
    assert after.message.content or after.message.tool_calls
