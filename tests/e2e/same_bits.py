"""Requests of many prompt lengths whose answers must have the same bits wherever they are computed,
and a decode worker that is killed while it computes them."""

import os
import random
import signal
import threading

import pytest

from baton_server import PATIENT, Server, complete, in_parallel, seed_of_tests, wait_until
from fault_work import stop_amid

SEED = seed_of_tests("20")


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


def kill_a_busy_decode_worker(server, num_tokens, killed):
    """Waits until one computes an answer that lacks the half of its tokens, and kills it."""

    def find():
        return stop_amid(server, lambda row: 1 <= row["num_tokens"] < num_tokens // 2)

    worker = wait_until(find, 60, "a decode worker amid an answer")
    os.kill(worker["pid"], signal.SIGKILL)
    killed.set()


def bits_of(got):
    return [answer.bits() for answer in got]


def bits_alone(model, rows, *flags):
    """The answers one after the other, by one worker that remembers nothing."""
    flags = ("--mode", "aggregated", "--prefix-cache", "off", *flags)
    with Server(*flags, model=model) as server:
        return bits_of(answers(server, rows))


def check_hand_off(model, transport, rows, wanted, kv_bytes_per_token=None, *flags, num_state=0):
    """A batch of requests crosses from worker to worker in blocks of 16 tokens, and so many blocks
    of a fixed state with each."""
    with Server("--transport", transport, *PATIENT, *flags, model=model) as server:
        got = answers(server, rows, 8)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    for answer, fields in zip(got, rows):
        assert answer.timings.path == "disagg" and answer.timings.transport == transport
        if kv_bytes_per_token is not None:
            num_blocks = -(-len(fields["prompt_token_ids"]) // 16) + num_state
            assert answer.timings.kv_bytes == num_blocks * 16 * kv_bytes_per_token
        assert answer.timings.exact
    assert bits_of(got) == wanted


def check_cached_prefix(model, rows, wanted, *flags):
    with Server("--mode", "aggregated", *PATIENT, *flags, model=model) as server:
        for fields in rows:  # leaves a prefix of each that ends within a block, or at its end
            ids = fields["prompt_token_ids"]
            complete(server, **{**fields, "prompt_token_ids": ids[: max(1, len(ids) * 2 // 3)]})
        got = answers(server, rows, 4)
    assert sum(a.timings.cached_tokens for a in got) > 500
    assert bits_of(got) == wanted


def check_guesses(model, rows):
    """Texts that repeat themselves; returns the tokens that were guessed, and those right."""
    rows = [
        {**fields, "prompt_token_ids": fields["prompt_token_ids"][:40] * 4, "max_tokens": 60}
        for fields in rows
    ]
    with Server("--mode", "aggregated", model=model) as server:
        wanted = bits_of(answers(server, rows))
    flags = ("--mode", "aggregated", "--speculate", "ngram", *PATIENT)
    with Server(*flags, model=model) as server:
        got = answers(server, rows, 4)
    assert bits_of(got) == wanted
    return sum(a.timings.speculated for a in got), sum(a.timings.accepted for a in got)


def check_killed_decode_worker(model, rows, *flags):
    """One of two decode workers is killed while it computes long answers to the short prompts. They
    are asked together until the kill meets one of them."""
    rows = [fields for fields in rows if len(fields["prompt_token_ids"]) < 100]
    with Server("--mode", "aggregated", *flags, model=model) as server:
        wanted = bits_of(answers(server, rows))
    killed, num_resumes = threading.Event(), 0
    with Server("--decode", "2", "--prefill", "1", *PATIENT, *flags, model=model) as server:
        args = (server, rows[0]["max_tokens"], killed)
        killer = threading.Thread(target=kill_a_busy_decode_worker, args=args)
        killer.start()
        while killer.is_alive():
            got = answers(server, rows, len(rows))
            assert bits_of(got) == wanted
            num_resumes += sum(a.timings.resumes for a in got)
        killer.join()
        assert killed.is_set(), "no decode worker was met amid an answer"
        wait_until(server.ledger_is_clean, 15, "no block is held")
    assert num_resumes > 0, "it was killed in the middle"


class SameBits:
    """What every model keeps. A class Test.. of it names the model, and prompts around the edges of
    its blocks, tiles, windows and splits. Its long tests make a file one with long tests
    (baton_pytest)."""

    model = ""
    lengths = ()
    num_tokens = 12
    bytes_per_token = None  # of KV that cross; None: they are not counted
    flags = ()

    @classmethod
    def requests(cls, num_tokens=None):
        return requests_of(cls.lengths, num_tokens or cls.num_tokens)

    @pytest.fixture(scope="class")
    def alone(self, request):
        return bits_alone(request.cls.model, request.cls.requests(), *request.cls.flags)

    @pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
    def test_a_hand_off_in_a_batch_changes_no_bit(self, alone, transport):
        kv_bytes = self.bytes_per_token
        check_hand_off(self.model, transport, self.requests(), alone, kv_bytes, *self.flags)

    def test_a_cached_prefix_changes_no_bit(self, alone):
        check_cached_prefix(self.model, self.requests(), alone, *self.flags)
