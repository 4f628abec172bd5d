"""API keys against the built server: clients of each kind, a changed file, and a bad one."""

import hashlib
import json
import os
import subprocess

from baton_server import BIN, Server, http_json, wait_until

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
