"""API keys against the built server: clients of each kind, a changed file, and a bad one."""

import hashlib
import json
import os
import subprocess
import threading

from baton_server import BIN, Server, http_json, metric, wait_until

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def entry(tenant, key, **limits):
    return {"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest(), **limits}


def write(path, *entries):
    path.with_suffix(".next").write_text(json.dumps(entries))
    path.with_suffix(".next").rename(path)


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_clients_need_a_key_of_the_file(tmp_path):
    path = tmp_path / "keys.yaml"
    write(path, entry("a", "key-a"), entry("b", "key-b", requests_per_minute=1))
    with Server("--mode", "aggregated", "--api-keys", str(path)) as server:
        assert server.get("/health")[0] == 200
        status, headers, answer = server.post("/v1/chat/completions", BODY)
        assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        assert headers["WWW-Authenticate"] == "Bearer"
        url = server.http + "/v1/chat/completions"
        assert http_json(url + "?api_key=key-a", BODY, headers=bearer("key-a"))[0] == 401
        assert http_json(url, BODY, headers=bearer("key-a"))[0] == 200
        status, headers, _ = http_json(
            server.http + "/v1/messages", BODY, headers={"x-api-key": "key-b"}
        )
        assert status == 200 and headers["x-ratelimit-remaining-requests"] == "0"
        status, headers, answer = http_json(url, BODY, headers=bearer("key-b"))
        assert status == 429 and answer["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(headers["Retry-After"]) <= 60

        chat = [BIN, "chat", "--url", server.http, "--prompt", "Hi", "--max-tokens", "2"]
        keyed = {**os.environ, "MY_KEY": "key-a"}
        assert subprocess.run(chat, capture_output=True, timeout=60).returncode == 1
        run = subprocess.run(
            [*chat, "--api-key-env", "MY_KEY"], capture_output=True, timeout=60, env=keyed
        )
        assert run.returncode == 0, run.stderr
        top = [BIN, "top", "--once", "--admin", server.router["admin"]]
        assert subprocess.run(top, capture_output=True, timeout=60).returncode == 0

        write(path, entry("a", "newer"))
        models = server.http + "/v1/models"
        wait_until(lambda: http_json(models, headers=bearer("newer"))[0] == 200, 10, "a new key")
        assert http_json(models, headers=bearer("key-a"))[0] == 401
        assert "API key refused" in server.output() and "key-a" not in server.output()


def test_a_share_of_kv_holds_its_tenant_back_and_nobody_else(tmp_path):
    path = tmp_path / "keys.yaml"
    write(path, entry("a", "key-a", kv_share=0.2), entry("b", "key-b"))
    flags = ("--mode", "aggregated", "--max-context", "1024", "--kv-memory", "64MiB")
    with Server(*flags, "--queue-wait-ms", "300", "--api-keys", str(path)) as server:
        url = server.http + "/v1/completions"

        def ask(key, prompt_tokens, max_tokens=1):
            prompt = [1000 + i for i in range(prompt_tokens)]
            body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
            return http_json(url, body, headers=bearer(key))

        answers = []
        first = threading.Thread(target=lambda: answers.append(ask("key-a", 300, 700)))
        first.start()
        wait_until(lambda: not server.ledger_is_clean(), 60, "the first answer runs")
        status, headers, refused = ask("key-a", 400)
        assert status == 429 and refused["error"]["code"] == "rate_limit_exceeded", refused
        assert "kv_share 0.2" in refused["error"]["message"]
        assert int(headers["Retry-After"]) >= 1
        assert ask("key-b", 400)[0] == 200, "another tenant does not wait"
        status, _, refused = ask("key-a", 900)
        assert status == 400 and "kv_share 0.2" in refused["error"]["message"], refused
        assert first.is_alive(), "all that was beside the first answer"
        first.join()
        assert answers[0][0] == 200, answers
        assert ask("key-a", 400)[0] == 200, "its share is free again"
        refusals = 'tenant="a",limit="kv_share"'
        assert metric(server.router, "baton_tenant_refusals_total", refusals) >= 1


def test_a_bad_file_is_one_line(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("- tenant: a\n")
    bad = (str(path), "line 1: the entry has no sha256")
    twice = tmp_path / "twice.yaml"
    write(twice, entry("a", "one"), entry("b", "one"))
    shared = (str(twice), "again; a key has one tenant")
    for name, said in (bad, shared, ("/nowhere/keys", "--api-keys /nowhere/keys")):
        run = subprocess.run(
            [BIN, "serve", "smollm2:135m", "--api-keys", name],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode in (1, 2) and said in run.stderr, run.stderr
        assert len(run.stderr.strip().splitlines()) == 1
