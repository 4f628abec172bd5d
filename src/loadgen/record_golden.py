#!/usr/bin/env python3
"""Asks a server that is trusted, one prompt at a time, and writes its greedy answers for --golden.

  src/loadgen/record_golden.py URL PROMPTS.txt OUT.jsonl [--max-tokens 32] [--api chat]

PROMPTS.txt has one prompt a line. Uses the standard library only.
"""

import argparse
import json
import urllib.request


def ask(args, prompt):
    """The text that the load client would collect: reasoning and content alike."""
    body = {"max_tokens": args.max_tokens, "temperature": 0, "stream": True}
    if args.api == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if args.model:
        body["model"] = args.model
    path = "/v1/chat/completions" if args.api == "chat" else "/v1/completions"
    request = urllib.request.Request(
        args.url.rstrip("/") + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    text = ""
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:]).get("choices", []):
                delta = choice.get("delta", choice)
                for key in ("reasoning_content", "content", "text"):
                    text += delta.get(key) or ""
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("prompts")
    parser.add_argument("out")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--api", choices=["chat", "completions"], default="chat")
    parser.add_argument("--model")
    args = parser.parse_args()
    with open(args.prompts) as prompts, open(args.out, "w") as out:
        for prompt in filter(None, map(str.strip, prompts)):
            row = {"prompt": prompt, "max_tokens": args.max_tokens, "text": ask(args, prompt)}
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
