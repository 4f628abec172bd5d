#!/usr/bin/env python3
"""Lets the model call a function, runs it, and streams the answer (pip install openai).

    examples/tools_openai.py [--url http://HOST:PORT] [CITY]

`tool_choice` "required" makes the server force a call by a grammar: the name and the arguments
follow the function's schema whatever the model is. With "auto" the model decides.
"""

import argparse
import json

import openai

POPULATION = {"Paris": 2_100_000, "Rome": 2_750_000, "Oslo": 720_000}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "population",
            "description": "The number of people who live in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": sorted(POPULATION)}},
                "required": ["city"],
            },
        },
    }
]


def population(city):
    return {"city": city, "people": POPULATION[city]}


parser = argparse.ArgumentParser(description="Lets the model call a function.")
parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
parser.add_argument("city", nargs="?", default="Rome", help="default: %(default)s")
args = parser.parse_args()
base_url = args.url.rstrip("/").removesuffix("/v1") + "/v1"
client = openai.OpenAI(base_url=base_url, api_key="none")

messages = [{"role": "user", "content": f"How many people live in {args.city}?"}]
first = client.chat.completions.create(
    model="default",
    messages=messages,
    tools=TOOLS,
    tool_choice="required",
    parallel_tool_calls=False,
    temperature=0,
)
message = first.choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    arguments = json.loads(call.function.arguments)
    result = population(**arguments)
    print(f"call: {call.function.name}({json.dumps(arguments)}) -> {json.dumps(result)}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})

stream = client.chat.completions.create(
    model="default",
    messages=messages,
    tools=TOOLS,
    tool_choice="none",
    temperature=0,
    max_completion_tokens=60,
    stream=True,
)
print("answer: ", end="")
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
