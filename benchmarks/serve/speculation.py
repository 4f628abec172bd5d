#!/usr/bin/env python3
"""What guessing tokens is worth: `--speculate off`, `ngram` and `auto` on one host, in turns.

  benchmarks/serve/speculation.py --model FILE|NAME [--out FILE.json] [--rounds 3] [--isa avx2]

Servers A B C C B A ... over the rounds, each alone on the machine. Each text is answered by 1 and
by 4 streams, and measured in generated tokens a second, from the first token to the last:
  edit     a program is written again with one name changed
  extract  fields of a table are listed again
  rag      sentences of a text are quoted
  free     a story, at temperature 0.8 with a seed
  random   random token ids, at temperature 1 with a seed: nothing repeats itself
The first request of a server is not measured, and `auto` has half a minute of streams to learn the
cost of a row. The summary has medians, the ratio to `off` (above 1 = guessing wins) and the share
of guesses that were right. The answers of all modes must be equal, or the run ends. Uses the
standard library only.
"""

import hashlib
import http.client
import json
import random
import statistics
import threading
import time
from pathlib import Path

from serving import Server, argument_parser, record, token_prompt

MODES = ("off", "ngram", "auto")
MAX_TOKENS = 160
LEARN_S = 30
CODE = """def total(prices, tax):
    result = 0
    for price in prices:
        result = result + price * (1 + tax)
    return result

def average(prices, tax):
    if not prices:
        return 0
    return total(prices, tax) / len(prices)
"""
ROWS = "\n".join(
    f"| {name} | {city} | {age} | member since {year} |"
    for name, city, age, year in [
        ("Ada Byron", "London", 36, 2011),
        ("Emil Roth", "Vienna", 52, 2007),
        ("Ines Prado", "Lisbon", 29, 2019),
        ("Jonas Falk", "Oslo", 44, 2015),
        ("Mira Sato", "Osaka", 61, 2001),
    ]
)
TEXT = (
    "The lighthouse was built in 1884 on the northern rock. Its lamp was seen from thirty miles "
    "away. In 1931 the keeper Harald Lund rescued nine sailors in a storm. Since 1978 the lamp has "
    "been lit by electricity, and nobody lives on the rock any more. "
)


def workloads(seed):
    rng = random.Random(seed)
    drawn = {"temperature": 0.8, "seed": seed}
    edit = f"The program:\n{CODE}\nThe program again, with `tax` renamed to `rate`:\n"
    edit += CODE.replace("tax", "rate")[:60]
    return {
        "edit": (edit, {}),
        "extract": (f"The table:\n{ROWS}\nAll rows again:\n| Ada Byron |", {}),
        "rag": (f"{TEXT}\nQuote the text word by word:\n{TEXT[:60]}", {}),
        "free": ("It was a cold morning when the old clock maker", drawn),
        "random": (token_prompt(rng, 64), {"temperature": 1, "seed": seed}),
    }


def answer(port, prompt, fields):
    """(tokens a second from the first token on, hash of the text, timings)."""
    body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    body.update(stream=True, **fields)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()[:300]}")
    first = last = None
    text, timings = "", {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        last = time.monotonic()
        first = first or last
        chunk = json.loads(line[6:])
        timings = chunk.get("timings") or timings
        text += "".join(c.get("text") or "" for c in chunk["choices"])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return (MAX_TOKENS - 1) / (last - first), digest, timings


def together(port, prompt, fields, num_streams):
    results = [None] * num_streams

    def run(index):
        results[index] = answer(port, prompt, fields)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(num_streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def measure(server, mode, seed):
    """{name: (tokens a second of all streams, hash of the answer, guessed, right)}."""
    loads = workloads(seed)
    answer(server.port, *loads["free"])
    until = time.monotonic() + (LEARN_S if mode == "auto" else 0)
    while time.monotonic() < until:
        for num_streams in (1, 4):
            together(server.port, *loads["extract"], num_streams)
            together(server.port, *loads["free"], num_streams)
    found = {}
    for name, (prompt, fields) in loads.items():
        for num_streams in (1, 4):
            rows = together(server.port, prompt, fields, num_streams)
            found[f"{name}{num_streams}"] = {
                "tokens_per_s": sum(rate for rate, _, _ in rows),
                "answer": rows[0][1],
                "speculated": sum(t.get("speculated", 0) for _, _, t in rows),
                "accepted": sum(t.get("accepted", 0) for _, _, t in rows),
            }
    return found


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--isa", default="auto")
    args = parser.parse_args()
    result = {**record("speculation", args.threads), "isa": args.isa, "rounds": []}
    for k in range(args.rounds):
        answers = {}
        for mode in MODES if k % 2 == 0 else MODES[::-1]:
            server = Server(args, ["--isa", args.isa, "--speculate", mode])
            found = measure(server, mode, seed=k)
            server.stop()
            result["rounds"].append({"mode": mode, "round": k, "rows": found})
            for name, row in found.items():
                if answers.setdefault(name, row["answer"]) != row["answer"]:
                    raise SystemExit(f"{name}: the answer with --speculate {mode} is another one")
    result["summary"] = {}
    print(f"{'':10} {'off':>8} {'ngram':>8} {'auto':>8}   ngram/off  auto/off  right")
    for name in result["rounds"][0]["rows"]:
        rows = {m: [r["rows"][name] for r in result["rounds"] if r["mode"] == m] for m in MODES}
        medians = {m: statistics.median(r["tokens_per_s"] for r in rows[m]) for m in MODES}
        guessed = sum(r["speculated"] for r in rows["ngram"])
        right = sum(r["accepted"] for r in rows["ngram"]) / guessed if guessed else None
        ratios = {m: medians[m] / medians["off"] for m in ("ngram", "auto")}
        result["summary"][name] = {"median": medians, "to_off": ratios, "right": right}
        cells = " ".join(f"{medians[m]:8.1f}" for m in MODES)
        share = "" if right is None else f"{right:5.2f}"
        print(f"{name:10} {cells}   {ratios['ngram']:9.3f} {ratios['auto']:9.3f}  {share}")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
