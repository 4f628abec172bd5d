"""Disaggregated over shm and tcp == aggregated, bit for bit; batching changes nothing.

Every comparison also asserts that what it means to compare happened: path, bytes moved, processes.
"""

import json
import os
import random
import threading

import pytest

from baton_server import PATIENT, Server, complete, in_parallel, metric, seed_of_tests, wait_until

BLOCK = 16
SEED = seed_of_tests("20")
NUM_PROMPTS = int(os.environ.get("BATON_E2E_PROMPTS", "13"))  # the corners
NUM_OTHERS = 4 if NUM_PROMPTS <= 13 else 8  # that run beside the prompts
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2  # layers, K and V, KV heads, head size, bf16

# Every fourth request has this form: masks are replayed across the hand-off.
FORM = json.dumps(
    {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer"}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
)


def lengths(rng):
    corners = [
        1,
        2,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        5 * BLOCK - 1,
        5 * BLOCK,
        5 * BLOCK + 1,
        255,
        256,
        257,
        513,
        1500,
    ]
    more = [int(2 ** rng.uniform(0, 10.5)) for _ in range(max(0, NUM_PROMPTS - len(corners)))]
    return (corners + more)[:NUM_PROMPTS]


def requests():
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    rows = []
    for i, length in enumerate(lengths(rng)):
        fields = dict(
            prompt_token_ids=[rng.randrange(17, 49000) for _ in range(length)],
            max_tokens=12,
            ignore_eos=True,
            logprobs=3,
        )
        if i % 3 == 0:
            fields.update(temperature=0)
        else:
            fields.update(temperature=0.9, seed=1000 + i, top_p=0.95, top_k=40)
        if i % 3 == 2:
            fields.update(n=2, presence_penalty=0.5, repetition_penalty=1.1)
        if i % 4 == 1:
            fields.update(structured_outputs={"json": FORM})
        rows.append(fields)
    return rows


class Noise:
    """Keeps other requests running."""

    def __init__(self, server):
        self.stop = threading.Event()
        self.errors = []
        self.done = 0

        def run(k):
            rng = random.Random(k)
            while not self.stop.is_set():
                try:
                    complete(
                        server,
                        prompt_token_ids=[
                            rng.randrange(17, 49000) for _ in range(rng.randrange(1, 200))
                        ],
                        max_tokens=16,
                        ignore_eos=True,
                        temperature=1.0,
                    )
                    self.done += 1
                except Exception as error:  # noqa: BLE001 - reported below
                    self.errors.append(error)
                    return

        self.threads = [threading.Thread(target=run, args=(k,)) for k in range(NUM_OTHERS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        if exc[0] is None:
            assert not self.errors, self.errors[0]
            assert self.done > 0


@pytest.fixture(scope="module")
def aggregated():
    with Server("--mode", "aggregated") as server:
        answers = [complete(server, **fields) for fields in requests()]
        for answer in answers:
            assert answer.timings.path == "local"
            assert answer.timings.kv_bytes == 0
            assert answer.timings.prefill_worker == answer.timings.decode_worker
    return answers


def handed_over(server, transport, fields, wanted):
    """An answer whose KV went by its first link. A tcp link whose ends get no processor for a while
    is left for another way, which changes no bit. The request is asked again then."""

    def ask():
        answer = complete(server, **fields)
        length = len(fields["prompt_token_ids"])
        assert answer.bits() == wanted.bits(), f"prompt of {length} tokens differs over {transport}"
        goes_by_it = answer.timings.path == "disagg" and answer.timings.resumes == 0
        assert goes_by_it or transport == "tcp", answer.timings
        return answer if goes_by_it else None

    return wait_until(ask, 600, f"a hand-off over {transport}")


def check_disaggregated(server, transport, expected):
    pids = {p["worker_id"]: p["pid"] for p in server.topology()}
    with Noise(server):
        pairs = zip(requests(), expected)
        calls = [lambda f=f, w=w: handed_over(server, transport, f, w) for f, w in pairs]
        answers = in_parallel(calls, 2)
    for fields, answer in zip(requests(), answers):
        length = len(fields["prompt_token_ids"])
        assert answer.timings.transport == transport
        blocks = -(-length // BLOCK)
        assert answer.timings.kv_bytes == blocks * BLOCK * KV_BYTES_PER_TOKEN
        assert pids[answer.timings.prefill_worker] != pids[answer.timings.decode_worker]
        assert answer.timings.exact


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_disaggregated_equals_aggregated(aggregated, transport):
    # Without a cache all of the KV crosses each time.
    with Server("--transport", transport, "--prefix-cache", "off", *PATIENT) as server:
        check_disaggregated(server, transport, aggregated)


# The default is one for each processor.
@pytest.mark.parametrize(
    "threads", ["1", *(pytest.param(count, marks=pytest.mark.long) for count in ("2", "4"))]
)
def test_thread_count_changes_no_bit(aggregated, threads):
    with Server("--threads", threads) as server:
        subset = slice(0, 13)
        answers = [complete(server, **f) for f in requests()[subset]]
        assert [a.bits() for a in answers] == [a.bits() for a in aggregated[subset]]


# The default is the last one that the processor has, so every test here asks for that.
@pytest.mark.parametrize(
    "isa", ["portable", "avx2", pytest.param("avx512", marks=pytest.mark.long)]
)
def test_each_isa_is_exact_with_itself(isa):
    flags = open("/proc/cpuinfo").read()
    needs = {"portable": [], "avx2": ["avx2", "fma"], "avx512": ["avx512f", "avx512_vnni"]}[isa]
    if not all(f" {flag} " in flags for flag in needs):
        pytest.skip(
            f"this processor has no {' '.join(needs)}; its bodies are run emulated in tests/kernels"
        )
    picked = [f for f in requests() if len(f["prompt_token_ids"]) <= 300][:8]
    with Server("--mode", "aggregated", "--isa", isa) as server:
        expected = [complete(server, **f).bits() for f in picked]
    with Server("--isa", isa, *PATIENT) as server:
        answers = in_parallel([lambda f=f: complete(server, **f) for f in picked], 4)
    assert all(a.timings.path == "disagg" for a in answers)
    assert [a.bits() for a in answers] == expected


def test_sixteen_streams_each_equal_to_itself_alone(server):
    rng = random.Random(SEED + 1)
    rows = [
        dict(
            prompt=f"Story number {i} about {rng.choice(['rain', 'iron', 'bees', 'tea'])}:",
            max_tokens=24,
            temperature=0.8,
            seed=i,
            ignore_eos=True,
        )
        for i in range(16)
    ]
    alone = [complete(server, **row).bits() for row in rows]
    together = [
        a.bits() for a in in_parallel([lambda r=r: complete(server, **r) for r in rows], 16)
    ]
    assert together == alone


def test_shadows_of_all_requests_are_equal():
    """With --shadow 1 the router itself has each answer computed again by the decode worker."""
    rows = requests()[:7]
    prompt = rows[4]["prompt_token_ids"]
    rows.append(dict(prompt_token_ids=prompt, max_tokens=24, temperature=1.0))  # seed drawn for it
    rows.append(dict(prompt="Once upon a time", max_tokens=24, stop=[" a", "e"]))
    with Server("--shadow", "1") as server:

        def count(result):
            return metric(server.router, "baton_shadow_total", f'result="{result}"')

        for i, fields in enumerate(rows):
            assert complete(server, **fields).timings.path == "disagg"
            wait_until(lambda: count("equal") == i + 1, 30, f"request {i} ran again")
        assert [count(r) for r in ("mismatch", "dropped", "failed")] == [0, 0, 0]
        code_200 = metric(server.router, "baton_requests_total", 'code="200"')
        assert code_200 == len(rows), "shadows are nobody's requests"
        wait_until(server.ledger_is_clean, 15, "their blocks are free")
