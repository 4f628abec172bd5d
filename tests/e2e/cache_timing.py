#!/usr/bin/env python3
"""Whether a tenant can tell by time what another one has in the prefix cache.

  cache_timing.py [--guesses 2000] [--seed N] [--json FILE]     (scripts/test_full.sh timing)

Tenant A asks prompts. Tenant B then guesses them, and as many that nobody asked, in random order,
and times each answer. A guess is good for something when the times of A's prompts are
shorter: the area under the ROC curve (AUC) is the chance that a random one of them is. 0.5 is none.
The 95 % interval (DeLong) must contain 0.5 and end below 0.55. Times of A's own prompts, asked by A
once more, show that the clock sees a hit: their AUC must be above 0.9.

A server that tells nothing misses an interval of 95 % once in 20 runs. Then a second series is
taken, and both together are judged by the same rule: a fair server fails about once in 60 runs,
and a difference that is there is seen better by twice the guesses. The control holds for each
series alone.
"""

import argparse
import bisect
import hashlib
import http.client
import json
import math
import random
import sys
import tempfile
import time
from pathlib import Path

from baton_server import Server

TENANTS = ("a", "b")
PROMPT_TOKENS = 48
BATCH = 20  # prompts of A that are cached at once, and B's misses beside them
FIRST_ID, LAST_ID = 1000, 40000  # plain tokens of the demo model
LIMIT = 0.55
CONTROL = 0.9


def keys_file(folder):
    rows = [
        {"tenant": name, "sha256": hashlib.sha256(key_of(name).encode()).hexdigest()}
        for name in TENANTS
    ]
    path = Path(folder) / "keys.json"
    path.write_text(json.dumps(rows))
    return path


def key_of(tenant):
    return f"key-of-{tenant}"


class Client:
    """One tenant's connection, which stays open: no guess pays for a handshake."""

    def __init__(self, server, tenant):
        self.connection = http.client.HTTPConnection(server.http.split("//")[1], timeout=120)
        self.headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {key_of(tenant)}",
        }

    def ask(self, prompt):
        """(seconds, cached tokens) of one answer of one token."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0})
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, self.headers)
        response = self.connection.getresponse()
        text = response.read()
        seconds = time.perf_counter() - begin
        assert response.status == 200, text
        return seconds, json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def auc_with_interval(hits, misses):
    """The chance that a hit is faster, and its 95 % interval by DeLong's variance."""

    def shares(values, others):
        """The share of the others that are larger, for each value; equal ones count half."""
        others = sorted(others)
        larger = [len(others) - bisect.bisect_right(others, v) for v in values]
        equal = [bisect.bisect_right(others, v) - bisect.bisect_left(others, v) for v in values]
        return [(a + b / 2) / len(others) for a, b in zip(larger, equal)]

    def variance_of_mean(values):
        mean = sum(values) / len(values)
        return sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)

    of_hits = shares(hits, misses)
    of_misses = [1 - share for share in shares(misses, hits)]
    auc = sum(of_hits) / len(of_hits)
    half = 1.96 * math.sqrt(variance_of_mean(of_hits) + variance_of_mean(of_misses))
    return auc, auc - half, auc + half


def series(server, guesses, rng):
    """Times of B's guesses at A's prompts and at nobody's, and of A's own prompts again."""
    a, b = (Client(server, tenant) for tenant in TENANTS)
    times = {"hit": [], "miss": [], "own": []}

    def prompt():
        return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(PROMPT_TOKENS)]

    while len(times["hit"]) + len(times["miss"]) < guesses:
        asked = [prompt() for _ in range(BATCH)]
        for p in asked:
            assert a.ask(p)[1] == 0, "a new prompt is cached"
        order = [("hit", p) for p in asked] + [("miss", prompt()) for _ in asked]
        rng.shuffle(order)
        for kind, p in order:
            seconds, cached = b.ask(p)
            assert cached == 0, f"tenant b is told of {cached} cached tokens"
            times[kind].append(seconds)
        for p in asked[:4]:
            seconds, cached = a.ask(p)
            assert cached > 0, "A's prompts are cached while B guesses"
            times["own"].append(seconds)
    return times


def pooled(taken):
    return {kind: [s for times in taken for s in times[kind]] for kind in taken[0]}


def judge(times):
    auc, low, high = auc_with_interval(times["hit"], times["miss"])
    own = auc_with_interval(times["own"], times["miss"])[0]
    return {
        "guesses": len(times["hit"]) + len(times["miss"]),
        "auc": round(auc, 4),
        "interval": [round(low, 4), round(high, 4)],
        "control_auc": round(own, 4),
        "median_ms": {k: round(1e3 * sorted(v)[len(v) // 2], 2) for k, v in times.items()},
        "passed": low <= 0.5 <= high < LIMIT,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--guesses", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--json")
    parser.add_argument("serve", nargs="*", help="more flags of serve, after --")
    flags = parser.parse_args()
    print(f"seed {flags.seed}")
    rng = random.Random(flags.seed)
    taken, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        with Server("--api-keys", str(keys_file(folder)), *flags.serve) as server:
            while not results or (len(taken) < 2 and not results[-1]["passed"]):
                taken.append(series(server, flags.guesses, rng))
                results.append(judge(taken[-1]))
                print(json.dumps(results[-1]), flush=True)
    controls = [result["control_auc"] for result in results]
    if len(taken) == 2:
        results.append(judge(pooled(taken)))
        print("both together:", json.dumps(results[-1]))
    if flags.json:
        Path(flags.json).write_text(json.dumps({"seed": flags.seed, "series": results}))
    if min(controls) < CONTROL:
        print("cache_timing.py: the clock does not see a tenant's own hits, so it proves nothing")
        return 1
    return 0 if results[-1]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
