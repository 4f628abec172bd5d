"""pydantic-ai: typed answers in its three modes, tools, streams."""

import pytest
from conftest import AnyObject, Sky
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import OutputTokenLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

pytestmark = pytest.mark.client("pydantic-ai-slim")

SETTINGS = ModelSettings(temperature=0, max_tokens=150)


@pytest.fixture(name="model")
def fixture_model(url):
    return OpenAIChatModel("default", provider=OpenAIProvider(base_url=url, api_key="none"))


MODES = [ToolOutput(Sky), NativeOutput(Sky)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
def test_an_answer_has_the_type(model, mode):
    agent = Agent(model, output_type=mode, model_settings=SETTINGS, retries=0)
    answer = agent.run_sync("How is the sky? Answer with one small JSON object.")
    assert isinstance(answer.output, Sky)
    assert answer.usage.output_tokens > 0


def test_a_prompt_alone_asks_for_an_object(model):
    """The answer is one JSON object. A small model may write one that `max_tokens` cuts."""
    agent = Agent(
        model, output_type=PromptedOutput(AnyObject), model_settings=SETTINGS, retries=0
    )
    try:
        assert isinstance(agent.run_sync("How is the sky?").output, AnyObject)
    except OutputTokenLimitExceeded as error:
        assert "150" in str(error)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
def test_a_typed_answer_is_streamed(model, mode):
    agent = Agent(model, output_type=mode, model_settings=SETTINGS, retries=0)
    whole = agent.run_sync("How is the sky?").output
    with agent.run_stream_sync("How is the sky?") as stream:
        *_, last = stream.stream_output(debounce_by=None)
    assert last == whole


def test_a_tool_is_used_before_the_typed_answer(model):
    """The answer's form is a tool too, so each step must call one of both."""
    agent = Agent(model, output_type=ToolOutput(Sky), model_settings=SETTINGS, retries=0)
    asked = []

    async def until_asked(context, tool):
        return None if asked else tool

    @agent.tool_plain(prepare=until_asked)
    def clouds_over(hour: int) -> int:
        """How many clouds there are at an hour of the day."""
        asked.append(hour)
        return 3

    answer = agent.run_sync("Ask how many clouds there are at hour 9. Then answer.")
    assert isinstance(answer.output, Sky)


def test_text_is_streamed(model):
    agent = Agent(model, model_settings=SETTINGS)
    whole = agent.run_sync("Why is the sky blue?").output
    with agent.run_stream_sync("Why is the sky blue?") as stream:
        assert "".join(stream.stream_text(delta=True, debounce_by=None)) == whole
