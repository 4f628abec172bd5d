#!/usr/bin/env python3
"""Asks for an answer that is an object of a Python type (pip install openai).

    examples/schema_openai.py [--url http://HOST:PORT] [TEXT]

The client turns the type into a JSON Schema, and the server allows only tokens that continue a
text of that schema. So the answer always parses, unless `max_completion_tokens` cuts it.
"""

import argparse
from typing import Literal

import openai
from pydantic import BaseModel, Field


class Review(BaseModel):
    mood: Literal["good", "bad", "mixed"]
    stars: int = Field(ge=1, le=5)
    topics: list[Literal["food", "service", "price", "place"]] = Field(min_length=1, max_length=3)


TEXT = "The soup was cold and the waiter was slow, but the view over the lake was wonderful."

parser = argparse.ArgumentParser(description="Asks for an object of a type.")
parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
parser.add_argument("text", nargs="*", help="a review in words")
args = parser.parse_args()
base_url = args.url.rstrip("/").removesuffix("/v1") + "/v1"
client = openai.OpenAI(base_url=base_url, api_key="none")
text = " ".join(args.text) or TEXT
answer = client.chat.completions.parse(
    model="default",
    messages=[
        {"role": "system", "content": "Read the review. Answer with its mood, stars and topics."},
        {"role": "user", "content": text},
    ],
    response_format=Review,
    temperature=0,
    max_completion_tokens=200,
)
review = answer.choices[0].message.parsed
print(f"mood: {review.mood}, stars: {review.stars}, topics: {', '.join(review.topics)}")
