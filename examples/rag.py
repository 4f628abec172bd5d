#!/usr/bin/env python3
"""Answers a question from pages: finds the best sections, then asks the model (pip install openai).

    examples/rag.py [--url http://HOST:PORT] [--pages FILE ...] [QUESTION]

Retrieval is BM25 over the sections of Markdown files, by default the pages of this repository. The
pages come first in the prompt and the question last, so that prefix caches serve the next question
about the same sections.
"""

import argparse
import math
import re
from collections import Counter
from pathlib import Path

import openai

ROOT = Path(__file__).resolve().parents[1]
MAX_SECTION_CHARS = 1200
NUM_SECTIONS = 3
K1, B = 1.2, 0.75  # the usual constants of BM25


def sections(path):
    """(title, text) of each heading's section, cut to MAX_SECTION_CHARS."""
    title, lines = path.name, []
    for line in [*path.read_text(encoding="utf-8").splitlines(), "# "]:
        if line.startswith("#"):
            text = "\n".join(lines).strip()
            for begin in range(0, len(text), MAX_SECTION_CHARS):
                yield f"{path.name}: {title}", text[begin : begin + MAX_SECTION_CHARS]
            title, lines = line.lstrip("# "), []
        else:
            lines.append(line)


def words(text):
    return [word.rstrip("s") for word in re.findall(r"[a-z0-9_]+", text.lower())]


def best_sections(found, question):
    """The NUM_SECTIONS sections with the highest BM25 scores for the question."""
    bags = [Counter(words(title + " " + text)) for title, text in found]
    mean = sum(map(Counter.total, bags)) / len(bags)
    scores = [0.0] * len(bags)
    for word in set(words(question)):
        holders = sum(word in bag for bag in bags)
        rarity = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
        for i, bag in enumerate(bags):
            weight = bag[word] + K1 * (1 - B + B * bag.total() / mean)
            scores[i] += rarity * bag[word] * (K1 + 1) / weight
    order = sorted(range(len(found)), key=lambda i: -scores[i])
    return [found[i] for i in order[:NUM_SECTIONS]]


parser = argparse.ArgumentParser(description="Answers a question from pages.")
parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
parser.add_argument("--pages", nargs="+", type=Path, help="Markdown files")
parser.add_argument("question", nargs="*", help="words of the question")
args = parser.parse_args()
pages = args.pages or [ROOT / "README.md", ROOT / "src" / "api" / "API.md"]
question = " ".join(args.question) or "How do I give tenants keys and limits?"
chosen = best_sections([section for page in pages for section in sections(page)], question)
for title, _ in chosen:
    print(f"source: {title}")
context = "\n\n".join(f"[{title}]\n{text}" for title, text in chosen)
base_url = args.url.rstrip("/").removesuffix("/v1") + "/v1"
client = openai.OpenAI(base_url=base_url, api_key="none")
stream = client.chat.completions.create(
    model="default",
    messages=[
        {"role": "system", "content": f"Answer from these sections alone.\n\n{context}"},
        {"role": "user", "content": question},
    ],
    temperature=0,
    max_completion_tokens=100,
    stream=True,
)
print("answer: ", end="")
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
