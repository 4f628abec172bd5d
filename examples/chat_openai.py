#!/usr/bin/env python3
"""Streams one answer with the official OpenAI client (pip install openai)."""

import sys

import openai

client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
question = " ".join(sys.argv[1:]) or "Why is the sky blue?"
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": question}],
    temperature=0,
    max_completion_tokens=200,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print(f"\n{chunk.usage.completion_tokens} tokens, {chunk.to_dict()['timings']}")
