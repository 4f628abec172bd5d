"""Requests of many prompt lengths whose answers must have the same bits wherever they are computed,
and a decode worker that is killed while it computes them."""

import os
import random
import secrets
import signal

from baton_server import complete, in_parallel, metric, wait_until

SEED_TEXT = os.environ.get("BATON_TEST_SEED", "20")  # as tests/test_seed.h reads it
SEED = secrets.randbits(32) if SEED_TEXT == "random" else int(SEED_TEXT)
print(f"BATON_TEST_SEED={SEED}")


def requests_of(lengths, num_tokens=12):
    rng = random.Random(SEED)
    rows = []
    for i, length in enumerate(lengths):
        fields = dict(
            prompt_token_ids=[rng.randrange(3, 263) for _ in range(length)],
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=3,
            temperature=0,
        )
        if i % 2 == 1:
            fields.update(temperature=0.8, seed=rng.randrange(1 << 30), top_p=0.95)
        rows.append(fields)
    return rows


def answers(server, rows, width=1):
    return in_parallel([lambda f=f: complete(server, **f) for f in rows], width)


def kill_a_busy_decode_worker(server):
    """Waits until one runs requests, then kills it."""
    busy = []

    def find():
        workers = [w for w in server.workers() if w["role"] == "decode"]
        busy[:] = [w for w in workers if metric(w, "baton_requests_running") > 0]
        return bool(busy)

    wait_until(find, 60, "a decode worker runs requests")
    os.kill(busy[0]["pid"], signal.SIGKILL)
