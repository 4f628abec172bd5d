#!/usr/bin/env python3
"""Measures what the prefix cache saves, and checks that it changes no bit. Two servers of two
prefill and two decode workers each (--pools), one with --prefix-cache on and one with off, get the
same requests in turn.

  benchmarks/serve/prefix_cache.py --model FILE|NAME [--out FILE.json] [--rounds 3]

  chat     ten turns of one conversation: each asks 40 new words and gets 48 tokens; short_chat: 15
           words and 8 tokens, for a vocabulary in which a word is many tokens
  system   20 users, one after another, after one system prompt of 512 tokens
  cuts     a prompt that shares its first 256, 511, 512, 513 or 1500 tokens with an earlier one,
           which are the sides of the window of a gemma3
Every answer's tokens and log-probabilities are compared between the two servers; a difference ends
the run with status 1. Uses the standard library only.
"""

import http.client
import json
import random
import statistics
import sys
import time
from pathlib import Path

from serving import ROOT, WORDS, Server, argument_parser, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import count, record  # noqa: E402

SETTLE_S = 0.6  # a heartbeat and more: the router has heard of the blocks of the answer before
CUTS = (256, 511, 512, 513, 1500)
# The fields of an answer that may differ between two servers.
TIMES = ("ttft_ms", "cached_tokens", "prompt_tokens")


def post(server, path, body):
    """One streamed answer: its bits, TTFT, and what it says of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    body = {**body, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    sent = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()[:300]}")
    answer = {"text": "", "logprobs": [], "ttft_ms": None}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            answer["prompt_tokens"] = chunk["usage"]["prompt_tokens"]
            answer["cached_tokens"] = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        for choice in chunk["choices"]:
            if answer["ttft_ms"] is None:
                answer["ttft_ms"] = (time.monotonic() - sent) * 1e3
            answer["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if choice.get("logprobs"):
                answer["logprobs"].append(choice["logprobs"])
    return answer


def ask_both(servers, path, body, first):
    """Sends one request to both, `first` first; fails when a bit differs."""
    answers = {}
    for name in (first, "off" if first == "on" else "on"):
        answers[name] = post(servers[name], path, body)
    bits = {
        name: {key: value for key, value in answer.items() if key not in TIMES}
        for name, answer in answers.items()
    }
    if bits["on"] != bits["off"] or not bits["on"]["logprobs"]:
        raise SystemExit(f"the cache changed an answer of {path}: {bits}")
    return answers


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def row(case, answers):
    return {
        "case": case,
        "prompt_tokens": answers["on"]["prompt_tokens"],
        "cached_tokens": answers["on"]["cached_tokens"],
        "cached_tokens_off": answers["off"]["cached_tokens"],
        "ttft_ms_on": answers["on"]["ttft_ms"],
        "ttft_ms_off": answers["off"]["ttft_ms"],
    }


def chat(servers, rng, first, num_words=40, num_tokens=48):
    messages, rows = [], []
    for turn in range(1, 11):
        messages.append({"role": "user", "content": words(rng, num_words)})
        body = {"messages": messages, "max_tokens": num_tokens, "temperature": 0, "logprobs": True}
        answers = ask_both(servers, "/v1/chat/completions", body, first)
        rows.append(row(turn, answers))
        messages.append({"role": "assistant", "content": answers["on"]["text"]})
        time.sleep(SETTLE_S)
    return rows


def system(servers, rng, first):
    prompt = token_prompt(rng, 512)
    rows = []
    for user in range(1, 21):
        tokens = prompt + token_prompt(rng, 20)
        body = {"prompt": tokens, "max_tokens": 8, "temperature": 0, "logprobs": 2}
        rows.append(row(user, ask_both(servers, "/v1/completions", body, first)))
        time.sleep(SETTLE_S)
    return rows


def cuts(servers, rng, first):
    rows = []
    for cut in CUTS:
        prompt = token_prompt(rng, cut + 5)
        again = prompt[:cut] + token_prompt(rng, 30)
        for tokens in (prompt, again):
            body = {"prompt": tokens, "max_tokens": 16, "temperature": 0, "logprobs": 2}
            answers = ask_both(servers, "/v1/completions", body, first)
            time.sleep(SETTLE_S)
        rows.append(row(cut, answers))
    return rows


def short_chat(servers, rng, first):
    return chat(servers, rng, first, num_words=15, num_tokens=8)


EXPERIMENTS = {"chat": chat, "short_chat": short_chat, "system": system, "cuts": cuts}


def summarise(name, runs):
    """Medians over the rounds, by case."""
    rows = []
    for same in zip(*runs):
        rows.append(
            {
                key: same[0][key] if key == "case" else statistics.median(r[key] for r in same)
                for key in same[0]
            }
        )
    print(f"{name}: case, prompt tokens, of them cached, TTFT with and without the cache")
    for r in rows:
        print(
            f"  {r['case']:>5} {r['prompt_tokens']:>6.0f} {r['cached_tokens']:>6.0f}"
            f" {r['ttft_ms_on']:>8.1f} ms {r['ttft_ms_off']:>8.1f} ms"
        )
    return rows


def main():
    parser = argument_parser(__doc__)
    usual = ["chat", "system", "cuts"]
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=usual)
    parser.add_argument("--pools", type=count, default=2, help="workers of each role")
    parser.add_argument("--kv-memory", help="that of serve; else its own")
    args = parser.parse_args()
    # Each of the workers gets a thread of its own: only one of them computes at a time.
    args.threads = max(args.threads, 2 * args.pools)
    result = {**record("prefix_cache", args.threads), "model": Path(args.model).name}
    result["pools"] = args.pools
    pools = ["--prefill", str(args.pools), "--decode", str(args.pools)]
    if args.kv_memory:
        pools += ["--kv-memory", args.kv_memory]
    servers = {}
    try:
        for name in ("on", "off"):
            servers[name] = Server(args, [*pools, "--prefix-cache", name])
        for name in args.experiments:
            runs = []
            for k in range(args.rounds):
                runs.append(EXPERIMENTS[name](servers, random.Random(k), ("on", "off")[k % 2]))
            result[name] = summarise(name, runs)
    finally:
        for server in servers.values():
            server.stop()
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
