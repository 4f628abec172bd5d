"""A model whose layers are mostly gated delta nets: each sequence has a fixed state beside its KV,
which every token moves on, so that no cut, batch, worker, grammar, choice or lost worker changes a
bit."""

import threading
from pathlib import Path

import pytest

from baton_server import Server, metric, wait_until
from same_bits import answers, kill_a_busy_decode_worker, requests_of

MODEL = str(Path(__file__).resolve().parents[1] / "golden" / "tiny_qwen35.gguf")
BLOCK = 16
# One layer of attention: K and V of 16 elements in bf16. The states of four delta nets, matrices of
# 4 x 16 x 32 and the last 3 tokens of 192 channels in fp32, lie in its slices.
KV_BYTES_PER_TOKEN = 2 * 16 * 2
STATE_BLOCKS = -(-4 * (4 * 16 * 32 + 3 * 192) * 4 // (BLOCK * KV_BYTES_PER_TOKEN))
# Around the reach of a convolution, blocks, tiles and splits.
LENGTHS = [1, 2, 3, 4, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 33, 63, 64, 65, 255, 256, 257, 400]
# Of the pool: what two sequences of 512 tokens need.
TWO_SEQUENCES = 2 * (512 // BLOCK + STATE_BLOCKS) + 2


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module")
def alone():
    """One after the other, by one worker."""
    with Server("--mode", "aggregated", model=MODEL) as server:
        return [a.bits() for a in answers(server, requests())]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_hand_off_in_a_batch_changes_no_bit(alone, transport):
    with Server("--transport", transport, model=MODEL) as server:
        got = answers(server, requests(), 8)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    for answer, length in zip(got, LENGTHS):
        assert answer.timings.path == "disagg" and answer.timings.transport == transport
        blocks = -(-length // BLOCK) + STATE_BLOCKS
        assert answer.timings.kv_bytes == blocks * BLOCK * KV_BYTES_PER_TOKEN
        assert answer.timings.exact
    assert [a.bits() for a in got] == alone


def test_a_repeated_prompt_is_computed_anew_and_changes_no_bit(alone):
    with Server("--mode", "aggregated", model=MODEL) as server:
        answers(server, requests())
        got = answers(server, requests(), 4)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert [a.timings.cached_tokens for a in got] == [0] * len(LENGTHS)
    assert [a.bits() for a in got] == alone


def test_a_pool_of_two_sequences_preempts_and_changes_no_bit():
    rows = [f for f in requests(400) if len(f["prompt_token_ids"]) < 100]
    with Server("--mode", "aggregated", model=MODEL) as server:
        wanted = [a.bits() for a in answers(server, rows)]
    memory = f"{TWO_SEQUENCES * 4}KiB"  # a block's place in the pool has 4 KiB
    with Server("--mode", "aggregated", "--kv-memory", memory, model=MODEL) as server:
        got = answers(server, rows, len(rows))
        wait_until(server.ledger_is_clean, 15, "no block is held")
        workers = [w for w in server.workers() if w["role"] == "decode"]
        assert sum(metric(w, "baton_preemptions_total") for w in workers) > 0
    assert [a.bits() for a in got] == wanted


def test_choices_of_one_prompt_go_on_from_states_of_their_own():
    rows = [dict(f, n=3, temperature=0.9, seed=11) for f in requests(24)[5:9]]
    with Server("--mode", "aggregated", model=MODEL) as server:
        wanted = [a.bits() for a in answers(server, rows)]
        wait_until(server.ledger_is_clean, 15, "no block is held")
    with Server(model=MODEL) as server:
        got = answers(server, rows, len(rows))
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert [a.timings.path for a in got] == ["disagg"] * len(rows)
    assert [a.bits() for a in got] == wanted
    for answer in got:
        assert len({tuple(tokens) for tokens in answer.tokens.values()}) == 3


def test_a_killed_decode_worker_changes_no_bit():
    rows = [f for f in requests(400) if len(f["prompt_token_ids"]) < 100]
    with Server("--mode", "aggregated", model=MODEL) as server:
        wanted = [a.bits() for a in answers(server, rows)]
    with Server("--decode", "2", "--prefill", "1", model=MODEL) as server:
        killer = threading.Thread(target=kill_a_busy_decode_worker, args=(server,))
        killer.start()
        got = answers(server, rows, len(rows))
        killer.join()
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert [a.bits() for a in got] == wanted
    assert sum(a.timings.resumes for a in got) > 0, "it was killed in the middle"


@pytest.mark.parametrize("mode", ["ngram", "auto"])
def test_guesses_are_refused_by_name(mode):
    with pytest.raises(AssertionError) as refused:
        with Server("--mode", "aggregated", "--speculate", mode, model=MODEL):
            pass
    assert f"--speculate {mode}" in str(refused.value)
