#!/usr/bin/env python3
"""What guessing tokens is worth: `--speculate off`, `ngram` and `auto` on one host, in turns.

  benchmarks/serve/speculation.py --model FILE|NAME [--out FILE.json] [--rounds 15] [--isa avx2]

Three servers run at once, and one at a time is asked: A B C, C B A ... for each text and round, so
that what the machine does in a minute is the same for all. Each text is answered by 1 and by 4
streams, and measured in generated tokens a second, from the first token to the last:
  edit     a program is written again with one name changed
  extract  fields of a table are listed again
  rag      sentences of a text are quoted
  free     a story, at temperature 0.8 with a seed
  random   random token ids, at temperature 1 with a seed: nothing repeats itself
The first answers of a server are not measured, and `auto` has half a minute of streams to learn the
cost of a row. The summary has medians, the ratio to `off` in the same round (above 1 = guessing
wins; median, and the interval that holds it with 95 %) and the share of guesses that were right.
The answers of all modes must be equal, or the run ends. Uses the standard library only.
"""

import contextlib
import hashlib
import http.client
import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path

from serving import ROOT, Server, argument_parser, record, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import show, spread  # noqa: E402

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


def warm_up(server, mode):
    loads = workloads(seed=1000)
    for prompt, fields in loads.values():
        answer(server.port, prompt, fields)
    until = time.monotonic() + (LEARN_S if mode == "auto" else 0)
    while time.monotonic() < until:
        for num_streams in (1, 4):
            together(server.port, *loads["extract"], num_streams)
            together(server.port, *loads["free"], num_streams)


def measure(server, prompt, fields, num_streams):
    rows = together(server.port, prompt, fields, num_streams)
    return {
        "tokens_per_s": sum(rate for rate, _, _ in rows),
        "answer": rows[0][1],
        "speculated": sum(t.get("speculated", 0) for _, _, t in rows),
        "accepted": sum(t.get("accepted", 0) for _, _, t in rows),
    }


def measure_round(servers, k):
    """{mode: {name of the text and number of streams: its row}}."""
    found = {mode: {} for mode in MODES}
    for text, (prompt, fields) in workloads(seed=k).items():
        for num_streams in (1, 4):
            name = f"{text}{num_streams}"
            for mode in MODES if k % 2 == 0 else MODES[::-1]:
                found[mode][name] = measure(servers[mode], prompt, fields, num_streams)
            for mode in MODES[1:]:
                if found[mode][name]["answer"] != found["off"][name]["answer"]:
                    raise SystemExit(f"{name}: the answer with --speculate {mode} is another one")
    return found


def summary_of(rounds):
    """Of each row: medians, the ratios to `off` of the same round, and the share of right guesses
    with `ngram`."""
    summary = {}
    for name in rounds[0]["rows"]:
        rows = {m: [r["rows"][name] for r in rounds if r["mode"] == m] for m in MODES}
        rates = {m: [row["tokens_per_s"] for row in rows[m]] for m in MODES}
        guessed = sum(row["speculated"] for row in rows["ngram"])
        summary[name] = {
            "median": {m: statistics.median(rates[m]) for m in MODES},
            "to_off": {
                m: spread([on / off for on, off in zip(rates[m], rates["off"])]) for m in MODES[1:]
            },
            "right": sum(r["accepted"] for r in rows["ngram"]) / guessed if guessed else None,
        }
    return summary


def main():
    parser = argument_parser(__doc__)
    parser.set_defaults(rounds=15)
    parser.add_argument("--isa", default="auto")
    args = parser.parse_args()
    result = {**record("speculation", args.threads), "isa": args.isa, "rounds": []}
    with contextlib.ExitStack() as running:
        servers = {}
        for mode in MODES:
            servers[mode] = Server(args, ["--isa", args.isa, "--speculate", mode])
            running.callback(servers[mode].stop)
        for mode in MODES:
            warm_up(servers[mode], mode)
        for k in range(args.rounds):
            for mode, rows in measure_round(servers, k).items():
                result["rounds"].append({"mode": mode, "round": k, "rows": rows})
    result["summary"] = summary_of(result["rounds"])
    print(f"{'':10} {'off':>8} {'ngram':>8} {'auto':>8}   ngram/off               auto/off")
    for name, row in result["summary"].items():
        cells = " ".join(f"{row['median'][m]:8.1f}" for m in MODES)
        ratios = "   ".join(show(row["to_off"][m]) for m in MODES[1:])
        share = "" if row["right"] is None else f"  {row['right']:.2f} right"
        print(f"{name:10} {cells}   {ratios}{share}")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
