#!/usr/bin/env python3
"""Streams one answer with the official OpenAI client (pip install openai).

    examples/chat_openai.py [--url http://HOST:PORT] [QUESTION]
"""

import argparse

import openai

parser = argparse.ArgumentParser(description="Streams one answer with the OpenAI client.")
parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
parser.add_argument("question", nargs="*", help="words of the question")
args = parser.parse_args()
base_url = args.url.rstrip("/").removesuffix("/v1") + "/v1"
client = openai.OpenAI(base_url=base_url, api_key="none")
question = " ".join(args.question) or "Why is the sky blue?"
try:
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_completion_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
    )
except openai.APIConnectionError:
    raise SystemExit(f"no server answers at {base_url}: start one with `baton serve`") from None
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print(f"\n{chunk.usage.completion_tokens} tokens, {chunk.to_dict()['timings']}")
