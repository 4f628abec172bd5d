#!/usr/bin/env python3
"""An agent of LangChain with two tools (pip install langchain langchain-openai).

    examples/agent_langchain.py [--url http://HOST:PORT] [QUESTION]

A small model does not plan well. So the middleware offers each tool until it was used, and demands
a call while one is left: the server forces name and arguments by a grammar. Then the model answers.
Without the middleware the model decides itself, which suits larger ones.
"""

import argparse
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

City = Literal["Oslo", "Paris", "Rome"]


@tool
def population(city: City) -> int:
    """The number of people who live in a city."""
    return {"Oslo": 720_000, "Paris": 2_100_000, "Rome": 2_750_000}[city]


@tool
def area_km2(city: City) -> int:
    """The area of a city in square kilometres."""
    return {"Oslo": 454, "Paris": 105, "Rome": 1285}[city]


@wrap_model_call
def each_tool_once(request, handler):
    used = {m.name for m in request.messages if isinstance(m, ToolMessage)}
    left = [offered for offered in request.tools if offered.name not in used]
    return handler(request.override(tools=left, tool_choice="required" if left else None))


parser = argparse.ArgumentParser(description="Runs an agent with two tools.")
parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
parser.add_argument("question", nargs="*", help="words of the question")
args = parser.parse_args()
model = ChatOpenAI(
    model="default",
    base_url=args.url.rstrip("/").removesuffix("/v1") + "/v1",
    api_key="none",
    temperature=0,
    max_completion_tokens=100,
    model_kwargs={"parallel_tool_calls": False},
)
agent = create_agent(model, [population, area_km2], middleware=[each_tool_once])
question = " ".join(args.question) or "How many people live in Rome, and how large is it?"
for update in agent.stream({"messages": [("user", question)]}, stream_mode="updates"):
    for node in update.values():
        for message in node["messages"]:
            for call in getattr(message, "tool_calls", []):
                print(f"call: {call['name']}({call['args']})")
            if isinstance(message, ToolMessage):
                print(f"result: {message.name} -> {message.content}")
            elif message.text:
                print(f"answer: {message.text}")
