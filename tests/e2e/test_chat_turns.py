"""A chat goes back to the decode worker that answered it: of each turn the prefill worker computes
what its own cache lacks, only the rows that the decode worker lacks cross, and no bit changes."""

import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_server import (
    BIN,
    MODEL,
    Server,
    complete,
    in_parallel,
    metric,
    seed_of_tests,
    wait_until,
)
from same_bits import bits_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SEED = seed_of_tests("71")
BLOCK = 16
NUM_TURNS = 10
NUM_ASKED = 23  # tokens that a turn adds to the chat
NUM_ANSWER = 12


@dataclass
class Kept:
    """What a model keeps of a sequence, and the tokens of its texts."""

    path: str
    bytes_per_token: int
    tokens: range
    state_blocks: int = 0

    def blocks_at_prefill(self, num_prompt):
        """Blocks of a prompt that its prefill worker can go on from."""
        # The last token is always computed, and a state is kept at the last border before it.
        return (num_prompt - 1 if self.state_blocks else num_prompt) // BLOCK

    def blocks_at_decode(self, num_prompt):
        """Blocks of a prompt and its answer whose KV the decode worker has after the answer."""
        return (num_prompt + NUM_ANSWER - 1) // BLOCK  # the last token of an answer has no KV

    def states_at_decode(self, num_prompt):
        """The answer passes the first border after its prompt."""
        border = (num_prompt // BLOCK + 1) * BLOCK
        return int(self.state_blocks > 0 and num_prompt + NUM_ANSWER - 1 >= border)


MODELS = {
    # Four convolutions of three slices and two layers of attention, 2 * 8 elements each.
    "lfm2": Kept(str(GOLDEN / "tiny_lfm2.gguf"), (4 * 3 + 2) * 16 * 2, range(3, 263)),
    # The states of four delta nets beside one layer of attention.
    "qwen35": Kept(str(GOLDEN / "tiny_qwen35.gguf"), 2 * 16 * 2, range(3, 263), 41),
    "smollm2": Kept(MODEL, 30 * 3 * 64 * 2 * 2, range(17, 49000)),
}


def ask(server, ids, turn, **more):
    fields = dict(max_tokens=NUM_ANSWER, ignore_eos=True, logprobs=3, temperature=0)
    if turn % 2 == 1:
        fields.update(temperature=0.8, seed=turn)
    return complete(server, prompt_token_ids=ids, **{**fields, **more})


def wait_told(server, num_links):
    """The router knows so many blocks and states, and that nothing runs."""

    def is_told():
        _, _, body = server.get("/v1/topology")
        workers = [p for p in body["processes"] if p["role"] != "router"]
        is_idle = all(p["running"] == 0 and p["waiting"] == 0 for p in workers)
        return is_idle and metric(server.router, "baton_prefix_index_links") >= num_links

    wait_until(is_told, 30, f"the router is told of {num_links} links")


def chat(server, kept, is_told=True):
    """The prompt's length and the answer of each turn."""
    rng = random.Random(SEED)
    ids = []
    got = []
    num_states = 0
    for turn in range(NUM_TURNS):
        ids = ids + rng.sample(kept.tokens, NUM_ASKED)
        answer = ask(server, ids, turn)
        got.append((len(ids), answer))
        if is_told:
            at_prefill = len(ids) // BLOCK
            num_states += kept.states_at_decode(len(ids)) + int(kept.state_blocks > 0)
            wait_told(server, at_prefill + kept.blocks_at_decode(len(ids)) + num_states)
        ids = ids + list(answer.tokens[0])
    wait_until(server.ledger_is_clean, 15, "no block is held")
    return got


def show(name, rows):
    """One line a turn, for the log."""
    print(f"{name}: tokens in the prompt, computed; KV bytes handed over, of the whole prompt")
    for turn, (num_prompt, num_computed, num_bytes, num_whole) in enumerate(rows):
        print(f"{turn:>4} {num_prompt:>6} {num_computed:>6} {num_bytes:>10} {num_whole:>10}")


@pytest.mark.parametrize("name", MODELS)
def test_a_chat_of_ten_turns_moves_and_computes_what_is_new(name):
    kept = MODELS[name]
    cold = ("--mode", "aggregated", "--prefix-cache", "off")
    with Server(*cold, model=kept.path) as server:
        wanted = chat(server, kept, is_told=False)
    with Server("--decode", "2", model=kept.path) as server:
        got = chat(server, kept)
    assert bits_of([a for _, a in got]) == bits_of([a for _, a in wanted])
    assert len({a.timings.decode_worker for _, a in got}) == 1, "it stays where it was answered"

    rows = []
    num_before = None  # tokens of the prompt before
    for num_prompt, answer in got:
        at_prefill = 0 if num_before is None else kept.blocks_at_prefill(num_before)
        at_decode = 0 if num_before is None else kept.blocks_at_decode(num_before)
        num_blocks = -(-num_prompt // BLOCK)
        block_bytes = BLOCK * kept.bytes_per_token
        num_crossing = num_blocks - min(at_decode, num_blocks - 1) + kept.state_blocks
        timings = answer.timings
        assert timings.path == "disagg"
        assert timings.cached_tokens == at_prefill * BLOCK
        assert timings.kv_bytes == num_crossing * block_bytes
        whole_bytes = (num_blocks + kept.state_blocks) * block_bytes
        rows.append(
            (num_prompt, num_prompt - timings.cached_tokens, timings.kv_bytes, whole_bytes)
        )
        num_before = num_prompt
    show(name, rows)
    # A turn adds its question and the answer before it, and at most a block on either side.
    num_new = NUM_ASKED + NUM_ANSWER
    assert all(computed <= num_new + BLOCK for _, computed, _, _ in rows[1:])


def test_a_turn_goes_to_a_busier_worker_for_its_prefix_and_says_so():
    kept = MODELS["smollm2"]
    rng = random.Random(SEED + 1)
    num_prompt = 6 * BLOCK
    with Server("--decode", "2", model=kept.path) as server:
        ids = rng.sample(kept.tokens, num_prompt)
        first = ask(server, ids, 0)
        home = first.timings.decode_worker
        ids += first.tokens[0]
        wait_told(server, num_prompt // BLOCK + kept.blocks_at_decode(num_prompt))
        before = metric(server.router, "baton_prefix_placements_total")
        stream = lambda: ask(server, ids + [20] * 20, 0, max_tokens=600)  # noqa: E731
        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(stream)
            wait_until(
                lambda: metric(server.router, "baton_requests_running") == 1, 30, "it streams"
            )
            counted = metric(server.router, "baton_prefix_placements_total")
            assert counted == before, "two idle workers are as loaded"
            second = ask(server, ids + [30] * 20, 0, max_tokens=2, request_id="second")
            assert not busy.done(), "the worker still had the stream"
            assert busy.result().timings.decode_worker == home
        assert second.timings.decode_worker == home
        assert metric(server.router, "baton_prefix_placements_total") == counted + 1
        why = subprocess.run(
            [BIN, "why", "second", "--admin", server.router["admin"]],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert why.returncode == 0, why.stderr
        held = kept.blocks_at_decode(num_prompt) * BLOCK
        words = f"{home} was taken to hold {held} tokens of the prompt, more than a less loaded"
        assert words in why.stdout, why.stdout


@pytest.mark.long
def test_the_states_of_a_thousand_sessions_keep_to_their_part_of_the_pool():
    kept = MODELS["qwen35"]
    num_blocks = 2048
    place_bytes = 4096  # of a block in the pool
    rng = random.Random(SEED + 2)
    sessions = [rng.sample(kept.tokens, NUM_ASKED) for _ in range(1000)]

    def check(server):
        """At most half of each pool has states; returns how many sessions that is, for each."""
        counts = []
        for worker in server.workers():
            blocks = sum(server.blocks(worker).values())
            live = metric(worker, "baton_state_checkpoints_kept_total") - metric(
                worker, "baton_state_checkpoints_dropped_total"
            )
            assert live * kept.state_blocks <= blocks / 2, worker["worker_id"]
            counts.append(live)
        return counts

    flags = ("--kv-memory", f"{num_blocks * place_bytes // 1024}KiB", "--max-context", "256")
    with Server(*flags, model=kept.path) as server:
        got = []
        for begin in range(0, len(sessions), 100):
            part = sessions[begin : begin + 100]
            got += in_parallel([lambda ids=ids: ask(server, ids, 0) for ids in part], 16)
            check(server)
        last = [i + list(a.tokens[0]) + i for i, a in zip(sessions[-8:], got[-8:])]
        second = [ask(server, ids, 1) for ids in last]
        wait_until(server.ledger_is_clean, 15, "no block is held")
        counts = check(server)
    assert all(a.timings.cached_tokens == BLOCK for a in second), "the latest go on from theirs"
    # 24 states of 41 blocks are in half of 2,048.
    assert all(count <= num_blocks // 2 // kept.state_blocks for count in counts)
    print(f"states kept after 1,000 sessions, by worker: {counts}")
    with Server("--mode", "aggregated", "--prefix-cache", "off", model=kept.path) as server:
        wanted = [ask(server, ids, 0) for ids in sessions[-8:]] + [ask(server, i, 1) for i in last]
    assert bits_of(got[-8:] + second) == bits_of(wanted)
