"""A model whose layers are mostly gated delta nets, or of Mamba-2: each sequence has a fixed state
beside its KV, which every token moves on, so that no cut, batch, worker, grammar, choice or lost
worker changes a bit. The feed-forward layers of one are experts: no bit depends on which rows share
an expert."""

import random
from pathlib import Path

import pytest

from baton_server import PATIENT, Server, complete, metric, wait_until
from same_bits import (
    SEED,
    answers,
    bits_alone,
    bits_of,
    check_hand_off,
    check_killed_decode_worker,
    requests_of,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
DENSE, EXPERTS, MAMBA = "qwen35", "qwen35moe", "nemotron_h"
BLOCK = 16
# Layers of attention, and the states in the slices of one: the two first have four delta nets, the
# last has two layers of Mamba-2 before each of its two layers of attention, or after both.
ATTENTION = {DENSE: 1, EXPERTS: 1, MAMBA: 2}
STATES = {DENSE: 4, EXPERTS: 4, MAMBA: 2}
# K and V of 16 elements in bf16, or in q8 with a scale of two bytes each.
BYTES_PER_ROW = 2 * 16 * 2
Q8_BYTES_PER_ROW = 2 * (16 + 2)
# A matrix of 4 x 16 x 32 and the last 3 tokens of 192 channels in fp32.
STATE_BYTES = (4 * 16 * 32 + 3 * 192) * 4
# Around the reach of a convolution, blocks, tiles and splits.
LENGTHS = [1, 2, 3, 4, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 33, 63, 64, 65, 255, 256, 257, 400]


def state_blocks(name, bytes_per_row=BYTES_PER_ROW):
    return -(-STATES[name] * STATE_BYTES // (BLOCK * bytes_per_row))


def two_sequences(name):
    """Memory for two sequences of 512 tokens: a block's place in the pool has 4 KiB."""
    return f"{(2 * (512 // BLOCK + state_blocks(name)) + 2) * 4}KiB"


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module", params=[DENSE, EXPERTS, MAMBA])
def name(request):
    return request.param


# For tests of what does not differ: the others are long.
FIRST_AT_EVERY_COMMIT = pytest.mark.parametrize(
    "name",
    [DENSE, *(pytest.param(name, marks=pytest.mark.long) for name in (EXPERTS, MAMBA))],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module")
def model(name):
    return str(GOLDEN / f"tiny_{name}.gguf")


@pytest.fixture(scope="module")
def alone(model):
    return bits_alone(model, requests())


@pytest.mark.parametrize("form", [".gguf", ""], ids=["file", "folder"])
@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_hand_off_in_a_batch_changes_no_bit(name, alone, form, transport):
    path = str(GOLDEN / f"tiny_{name}{form}")
    row_bytes = ATTENTION[name] * BYTES_PER_ROW
    num_state = state_blocks(name)
    check_hand_off(path, transport, requests(), alone, row_bytes, num_state=num_state)


@FIRST_AT_EVERY_COMMIT
def test_a_hand_off_in_q8_changes_no_bit(name, model, alone):
    q8 = ("--kv-dtype", "q8")
    wanted = bits_alone(model, requests(), *q8)
    assert wanted != alone
    row_bytes = ATTENTION[name] * Q8_BYTES_PER_ROW
    num_state = state_blocks(name, Q8_BYTES_PER_ROW)
    check_hand_off(model, "shm", requests(), wanted, row_bytes, *q8, num_state=num_state)


def last_border(num_tokens):
    """The last border of a block before a prompt's last token: its state there is kept."""
    return (num_tokens - 1) // BLOCK * BLOCK


def test_a_repeated_prompt_goes_on_from_its_state_and_changes_no_bit(model, alone):
    with Server("--mode", "aggregated", model=model) as server:
        answers(server, requests())
        got = answers(server, requests(), 4)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert [a.timings.cached_tokens for a in got] == [last_border(n) for n in LENGTHS]
    assert bits_of(got) == alone


def chat(server, num_turns=10):
    """A conversation whose turns are drawn from a fixed seed; the answers of each turn."""
    rng = random.Random(SEED + 1)
    ids = []
    got = []
    for turn in range(num_turns):
        ids = ids + [rng.randrange(3, 263) for _ in range(23)]
        fields = dict(
            prompt_token_ids=ids, max_tokens=12, ignore_eos=True, logprobs=3, temperature=0
        )
        if turn % 2 == 1:
            fields.update(temperature=0.8, seed=turn)
        answer = complete(server, **fields)
        got.append((len(ids), answer))
        ids = ids + list(answer.tokens[0])
    wait_until(server.ledger_is_clean, 15, "no block is held")
    return got


@FIRST_AT_EVERY_COMMIT
@pytest.mark.parametrize("mode", ["aggregated", "disagg"])
def test_a_chat_of_ten_turns_goes_on_from_its_states(model, mode):
    flags = ("--mode", "aggregated") if mode == "aggregated" else ()
    with Server(*flags, "--prefix-cache", "off", model=model) as server:
        wanted = chat(server)
    with Server(*flags, model=model) as server:
        got = chat(server)
    assert bits_of([a for _, a in got]) == bits_of([a for _, a in wanted])
    assert [a.timings.cached_tokens for _, a in wanted] == [0] * len(wanted)
    lengths = [n for n, _ in got]
    found = [a.timings.cached_tokens for _, a in got]
    assert found == [0] + [last_border(n) for n in lengths[:-1]]
    assert all(a.timings.path == ("local" if mode == "aggregated" else "disagg") for _, a in got)


@FIRST_AT_EVERY_COMMIT
def test_a_pool_of_two_sequences_keeps_states_without_refusing_anyone(name, model):
    rows = requests() * 3
    with Server("--mode", "aggregated", "--prefix-cache", "off", model=model) as server:
        wanted = bits_of(answers(server, rows))
    flags = ("--mode", "aggregated", "--kv-memory", two_sequences(name), *PATIENT)
    with Server(*flags, model=model) as server:
        got = answers(server, rows, 6)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert bits_of(got) == wanted


@FIRST_AT_EVERY_COMMIT
def test_a_pool_of_two_sequences_preempts_and_changes_no_bit(name, model):
    rows = [f for f in requests(400) if len(f["prompt_token_ids"]) < 100]
    with Server("--mode", "aggregated", model=model) as server:
        wanted = bits_of(answers(server, rows))
    flags = ("--mode", "aggregated", "--kv-memory", two_sequences(name), *PATIENT)
    with Server(*flags, model=model) as server:
        got = answers(server, rows, len(rows))
        wait_until(server.ledger_is_clean, 15, "no block is held")
        workers = [w for w in server.workers() if w["role"] == "decode"]
        assert sum(metric(w, "baton_preemptions_total") for w in workers) > 0
    assert bits_of(got) == wanted


@FIRST_AT_EVERY_COMMIT
def test_choices_of_one_prompt_go_on_from_states_of_their_own(model):
    rows = [dict(f, n=3, temperature=0.9, seed=11) for f in requests(24)[5:9]]
    with Server("--mode", "aggregated", model=model) as server:
        wanted = bits_of(answers(server, rows))
        wait_until(server.ledger_is_clean, 15, "no block is held")
    with Server(*PATIENT, model=model) as server:
        got = answers(server, rows, len(rows))
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert [a.timings.path for a in got] == ["disagg"] * len(rows)
    assert bits_of(got) == wanted
    for answer in got:
        assert len({tuple(tokens) for tokens in answer.tokens.values()}) >= 2


@FIRST_AT_EVERY_COMMIT
def test_a_killed_decode_worker_changes_no_bit(model):
    check_killed_decode_worker(model, requests(400))


@pytest.mark.parametrize("mode", ["ngram", "auto"])
def test_guesses_are_refused_by_name(model, mode):
    with pytest.raises(AssertionError) as refused:
        with Server("--mode", "aggregated", "--speculate", mode, model=model):
            pass
    assert f"--speculate {mode}" in str(refused.value)
