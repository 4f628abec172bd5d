"""Two models behind one router: each answers as it does alone, and one may lose its workers."""

import os
import re
import signal
import subprocess

import pytest

from baton_server import BIN, Server, metrics_text, wait_until

MODELS = ("smollm2:135m", "gemma3:270m")
POOL = ("--max-context", "1024", "--kv-memory", "128MiB")
# The file of the second model has no chat template.
QUESTION = {"prompt": "Three colours are", "temperature": 0, "max_tokens": 12}


def ask(server, model, **more):
    return server.post("/v1/completions", {**QUESTION, "model": model, **more})


def text_of(answer):
    status, _, body = answer
    assert status == 200, body
    return body["choices"][0]["text"], body["model"], body["usage"]


@pytest.fixture(scope="module")
def alone():
    texts = {}
    for model in MODELS:
        with Server(*POOL, model=model) as server:
            texts[model] = text_of(ask(server, model))
    return texts


@pytest.fixture(scope="module")
def server():
    with Server(MODELS[1], *POOL, model=MODELS[0]) as running:
        yield running


def test_each_answers_as_alone(server, alone):
    for model in MODELS:
        assert text_of(ask(server, model)) == alone[model]


def test_names(server):
    for body in ({}, {"model": "default"}):
        status, _, answer = server.post("/v1/completions", {**QUESTION, **body})
        assert status == 400
        assert all(model in answer["error"]["message"] for model in MODELS), answer
    status, _, answer = ask(server, "no-such-model")
    assert status == 404
    assert all(model in answer["error"]["message"] for model in MODELS), answer
    _, _, models = server.get("/v1/models")
    assert {model["id"] for model in models["data"]} == set(MODELS)
    _, _, tags = server.get("/api/tags")
    assert {model["name"] for model in tags["models"]} == set(MODELS)


def test_text_endpoints_are_of_the_model(server):
    tokens = {}
    for model in MODELS:
        status, _, body = server.post("/tokenize", {"content": "colours of a day", "model": model})
        assert status == 200
        tokens[model] = body["tokens"]
        status, _, body = server.post(
            "/detokenize", {"tokens": tokens[model], "model": model}
        )
        assert body["content"] == "colours of a day"
    assert tokens[MODELS[0]] != tokens[MODELS[1]]


def test_workers_and_metrics_say_their_model(server):
    workers = server.workers()
    assert len({w["worker_id"] for w in workers}) == 4
    assert sorted(w["model"] for w in workers) == sorted(MODELS * 2)
    _, _, topology = server.get("/v1/topology")
    assert {p["model"] for p in topology["processes"] if p["role"] != "router"} == set(MODELS)

    def counts():
        rows = re.findall(
            r'^baton_requests_total\{([^}]*code="200"[^}]*)\} (\S+)$',
            metrics_text(server.router),
            re.M,
        )
        return {re.search(r'model="([^"]*)"', labels).group(1): float(n) for labels, n in rows}

    before = counts()
    assert set(MODELS) < set(before)
    ask(server, MODELS[1])
    after = counts()
    assert after[MODELS[1]] == before[MODELS[1]] + 1
    assert after[MODELS[0]] == before[MODELS[0]]


def test_chat_asks_one_of_them(server):
    def chat(*args):
        return subprocess.run(
            [BIN, "chat", "--url", server.http, "--prompt", "Hi", "--max-tokens", "3", *args],
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert chat("--model", MODELS[0]).returncode == 0
    nameless = chat()
    assert nameless.returncode == 1
    assert all(model in nameless.stderr for model in MODELS), nameless.stderr


def test_a_model_that_loses_its_workers(server, alone):
    def decoders():
        _, _, topology = server.get("/v1/topology")
        workers = [p for p in topology["processes"] if p["role"] == "decode"]
        return [p for p in workers if p["model"] == MODELS[1]]

    def is_refused():
        # Each life that comes meanwhile is ended too; a request that it has would be resumed.
        for process in decoders():
            try:
                os.kill(process["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass  # supervision has not told of its end yet
        wait_until(lambda: not decoders(), 10, "the router sees its end")
        status, headers, body = ask(server, MODELS[1], max_tokens=1)
        return status == 503 and (headers["Retry-After"], body["error"]["code"])

    retry_after, code = wait_until(is_refused, 30, "a model without workers is 503")
    assert int(retry_after) >= 1
    assert code == "no_workers"
    assert text_of(ask(server, MODELS[0])) == alone[MODELS[0]]
    wait_until(lambda: ask(server, MODELS[1])[0] == 200, 60, "its workers are back")
    assert text_of(ask(server, MODELS[1])) == alone[MODELS[1]]


@pytest.mark.parametrize(
    "args", [("smollm2:135m", "smollm2:135m"), ("one/same.gguf", "two/same.gguf")]
)
def test_one_id_twice_is_a_usage_error(tmp_path, args):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.gguf").write_bytes(b"GGUF")
    run = subprocess.run(
        [BIN, "serve", *args, "--http", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert run.returncode == 2, run.stderr
    assert all(arg in run.stderr for arg in args), run.stderr
