"""--mode adaptive decides for each prompt: a short one and one that the decode worker holds most of
are computed there, an equal one goes to the prefill worker, and the server says why."""

import random
import subprocess

import pytest

from baton_server import BIN, Server, complete, metric, seed_of_tests, wait_until

BLOCK = 16
NUM_PROMPT = 10 * BLOCK
NUM_ANSWER = 12 * BLOCK
SHORT = 8
SEED = seed_of_tests("44")


@pytest.fixture(scope="module")
def adaptive():
    flags = ("--mode", "adaptive", "--local-prefill-tokens", str(SHORT))
    with Server(*flags) as server:
        yield server


def ask(server, token_ids, max_tokens=2, **fields):
    return complete(
        server,
        prompt_token_ids=token_ids,
        max_tokens=max_tokens,
        ignore_eos=True,
        temperature=0,
        **fields,
    )


def routes(server, reason):
    return metric(server.router, "baton_routes_total", f'reason="{reason}"')


def draw(rng, count):
    return [rng.randrange(17, 49000) for _ in range(count)]


def wait_idle(server):
    """No stream runs and nothing waits, by the reports that the router has as well."""
    (decode,) = [p for p in server.workers() if p["role"] == "decode"]
    wait_until(lambda: metric(decode, "baton_requests_running") == 0, 30, "no stream runs")
    wait_until(lambda: router_view(server)["running"] == 0, 30, "the router was told")


def router_view(server):
    status, _, body = server.get("/v1/topology")
    assert status == 200
    (decode,) = [p for p in body["processes"] if p["role"] == "decode"]
    return decode


def test_a_short_prompt_is_the_decode_workers(adaptive):
    rng = random.Random(SEED)
    before = routes(adaptive, "short_prompt")
    assert ask(adaptive, draw(rng, SHORT)).timings.path == "local"
    assert routes(adaptive, "short_prompt") == before + 1


# The second turn of a chat: both workers hold its prompt, and the decode worker the answer too.
def test_a_prompt_goes_where_most_of_it_is_cached():
    rng = random.Random(SEED + 1)
    with Server("--mode", "adaptive", "--local-prefill-tokens", "0") as server:
        prompt = draw(rng, NUM_PROMPT)
        first = ask(server, prompt, NUM_ANSWER, request_id="first")
        assert first.timings.path == "disagg", "no speed is measured yet: a tie"
        # The last token of an answer has no KV.
        num_held = NUM_PROMPT // BLOCK + (NUM_PROMPT + NUM_ANSWER - 1) // BLOCK
        wait_until(
            lambda: metric(server.router, "baton_prefix_index_links") >= num_held,
            30,
            "the router knows what both hold",
        )
        wait_idle(server)
        turn = prompt + first.tokens[0] + draw(rng, 2 * BLOCK)
        second = ask(server, turn, request_id="second")
        assert second.timings.path == "local"
        assert second.timings.cached_tokens >= NUM_PROMPT + NUM_ANSWER - BLOCK
        assert routes(server, "pair") == 1
        assert routes(server, "decode_hit") == 1
        # A request that asks for a pair gets one.
        asked = ask(server, prompt + first.tokens[0] + draw(rng, BLOCK), path="disagg")
        assert asked.timings.path == "disagg"
        assert routes(server, "pair") == 2

        why = subprocess.run(
            [BIN, "why", "second", "--admin", server.router["admin"]],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert why.returncode == 0, why.stderr
        assert "all of it at decode-0 (decode_hit)" in why.stdout


def test_the_answers_are_those_of_a_pair(adaptive):
    rng = random.Random(SEED + 2)
    prompt = draw(rng, 5 * BLOCK + 3)
    answers = [ask(adaptive, prompt, 12, path=path) for path in ("local", "disagg", "auto")]
    assert [answer.timings.path for answer in answers[:2]] == ["local", "disagg"]
    assert answers[0].bits() == answers[1].bits() == answers[2].bits()
