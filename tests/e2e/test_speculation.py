"""`--speculate` changes no bit of an answer: not a token, a log-probability, a text or an end."""

import json
import os
import random
import signal
import subprocess
import urllib.request

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
from fault_work import stop_amid

SEED = seed_of_tests("20")

CODE = """def area(width, height):
    return width * height

def volume(width, height, depth):
    return width * height * depth
"""
# The answers copy from the prompt, so that guesses are right.
COPYING = (
    f"Repeat this code and nothing else:\n{CODE}\nThe code is:\n{CODE}",
    "one two three four five six seven " * 8,
    "Name: Ada. City: Rome. Age: 36.\nName: Ada. City: Rome. Age: 36.\nName: Ada. City:",
)
FREE = ("The sea in winter", "Once upon a time there was a")


# States of an answer's last decode step, by mode.
STATES = {"ngram": {"off", "on", "no_repeats", "wrong_guesses", "grammar"}}
STATES["auto"] = STATES["ngram"] | {"no_gain", "prompts"}


def bodies():
    """Requests of /v1/completions, greedy and seeded, with everything that chooses a token."""
    rng = random.Random(SEED)
    rows = []
    for prompt in COPYING + FREE:
        for seeded in (False, True):
            body = dict(prompt=prompt, max_tokens=48, logprobs=3, temperature=0)
            if seeded:
                body.update(temperature=0.7, seed=rng.randrange(1 << 30), top_p=0.95)
            rows.append(body)
    rows[0].update(frequency_penalty=0.2, presence_penalty=0.1)
    rows[1].update(n=3)
    rows[2].update(stop=["five six"])
    rows[3].update(min_p=0.05, repetition_penalty=1.1)
    rows[4].update(logit_bias={"30": 2}, min_tokens=20, stop=[" Age"])
    rows[5].update(stop_token_ids=[28], ignore_eos=True)
    rows[6].update(ignore_eos=True, max_tokens=90)
    return rows


def answer_of(server, body):
    """(the choices of a whole answer, its timings)."""
    status, _, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"], answer["timings"]


@pytest.fixture(scope="module")
def plain():
    with Server() as server:
        answers = [answer_of(server, body) for body in bodies()]
        assert all(t["speculated"] == t["accepted"] == 0 for _, t in answers)
        assert all(t["speculation"] == "off" for _, t in answers)
        (decode,) = [w for w in server.workers() if w["role"] == "decode"]
        for result in ("proposed", "accepted"):
            assert metric(decode, "baton_speculation_tokens_total", f'result="{result}"') == 0
    return [choices for choices, _ in answers]


@pytest.mark.parametrize("mode", ["ngram", "auto"])
def test_answers_are_those_without_speculation(plain, mode):
    with Server("--speculate", mode) as server:
        alone = [answer_of(server, body) for body in bodies()]
        beside = in_parallel([lambda b=b: answer_of(server, b) for b in bodies()], 4)
        for body, wanted, *got in zip(bodies(), plain, alone, beside):
            for choices, timings in got:
                assert choices == wanted, body
                assert timings["path"] == "disagg"
                assert timings["accepted"] <= timings["speculated"]
                assert timings["speculation"] in STATES[mode]
                if body.get("max_tokens") == 90:  # it has decode steps, whatever it says
                    assert timings["speculation"] != "off"
        (decode,) = [w for w in server.workers() if w["role"] == "decode"]
        proposed = metric(decode, "baton_speculation_tokens_total", 'result="proposed"')
        accepted = metric(decode, "baton_speculation_tokens_total", 'result="accepted"')
        assert proposed >= accepted
        if mode == "ngram":
            assert accepted > 50
            assert sum(t["accepted"] for _, t in alone + beside) > 50
        wait_until(server.ledger_is_clean, 15, "no block is held")


def test_grpc_tells_what_was_guessed_and_streams_one_chunk_a_token():
    fields = dict(prompt=COPYING[1], max_tokens=40, temperature=0, logprobs=2, ignore_eos=True)
    with Server("--mode", "aggregated") as server:
        wanted = complete(server, **fields)
        assert wanted.timings.speculated == wanted.timings.accepted == 0
    with Server("--mode", "aggregated", "--speculate", "ngram") as server:
        got = complete(server, **fields)
    assert got.bits() == wanted.bits()
    assert 0 < got.timings.accepted <= got.timings.speculated


def test_a_constrained_answer_says_that_it_is_not_guessed():
    form = {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 8}}
    body = {"prompt": COPYING[1], "max_tokens": 24, "temperature": 0}
    with Server("--mode", "aggregated", "--speculate", "ngram") as server:
        _, timings = answer_of(server, {**body, "structured_outputs": form})
        assert timings["speculation"] == "grammar" and timings["speculated"] == 0
        got = complete(server, **body)
        assert got.timings.speculation in STATES["ngram"]


@pytest.mark.parametrize("seeded", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_killed_decode_worker_changes_nothing(seeded):
    body = dict(prompt=COPYING[0], max_tokens=120, logprobs=2, ignore_eos=True, temperature=0)
    if seeded:
        body.update(temperature=0.6, seed=SEED)
    with Server("--speculate", "ngram", "--decode", "2", "--prefill", "1") as server:
        wanted, _ = answer_of(server, body)

        def killed_at(at):
            """The answer's decode worker is killed at the token; False: it had sent all by then."""
            killed = []

            def kill(num_tokens):
                if num_tokens < at or killed:
                    return
                worker = stop_amid(server, lambda row: 1 <= row["num_tokens"] < body["max_tokens"])
                killed.append(worker and worker["pid"])
                if worker:
                    os.kill(worker["pid"], signal.SIGKILL)

            text, logprobs, finish, timings = "", [], None, {}
            for event in events_of(server, body):
                for choice in event["choices"]:
                    text += choice["text"]
                    finish = choice["finish_reason"] or finish
                    logprobs += (choice["logprobs"] or {}).get("token_logprobs", [])
                timings = event.get("timings", timings)
                kill(len(logprobs))
            assert (text, finish) == (wanted[0]["text"], wanted[0]["finish_reason"])
            assert logprobs == wanted[0]["logprobs"]["token_logprobs"]
            if killed[0] is None:
                return False
            assert timings["resumes"] >= 1
            wait_until(
                lambda: (
                    killed[0] not in [p["pid"] for p in server.topology()]
                    and len(server.workers()) == 3
                ),
                20,
                "another worker is there",
            )
            return True

        for at in (3, 40):
            wait_until(lambda at=at: killed_at(at), 300, f"a kill at token {at}")
        wait_until(server.ledger_is_clean, 20, "no block is held")


def events_of(server, body):
    """The events of a stream, each as soon as it is there."""
    request = urllib.request.Request(
        server.http + "/v1/completions",
        json.dumps({**body, "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return
            yield json.loads(line[6:])
    raise AssertionError("the stream ended without [DONE]")


def test_a_device_refuses_by_name():
    ended = subprocess.run(
        [BIN, "serve", MODEL, "--device", "simt", "--speculate", "ngram"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "--speculate ngram" in ended.stderr or "--device simt" in ended.stderr
