"""Tests what a web page makes its browser send, and what a proxy on the same host passes on."""

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from baton_server import BIN, Server, wait_until

PAGE = "https://chat.example:8443"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}


def ask(address, method, path, headers, body=b""):
    """(status, headers, body) of one request with exactly these header fields."""
    host, port = address.rsplit(":", 1)
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    lines += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall("\r\n".join(lines).encode() + body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), fields, rest


def post_chat(address, headers, **more):
    fields = {"Content-Type": "application/json", **headers}
    body = json.dumps({**CHAT, **more}).encode()
    return ask(address, "POST", "/v1/chat/completions", fields, body)


@pytest.fixture(scope="module")
def open_to_page():
    allowed = ("--cors-origins", PAGE, "--allowed-hosts", "proxy.example,10.0.0.7:80")
    with Server(*allowed, "--ui", "off") as running:
        yield running


def admin_addresses(server):
    return [process["admin"] for process in server.topology()]


def test_a_rebound_name_reaches_no_port(server):
    http = server.router["http"]
    for method, path in (("GET", "/v1/topology"), ("GET", "/ui"), ("POST", "/v1/chat/completions")):
        status, _, body = ask(http, method, path, {"Host": "evil.example:8080"})
        assert status == 403, path
        error = json.loads(body)["error"]
        assert error["code"] == "host_not_allowed" and "--allowed-hosts" in error["message"]
    for admin in admin_addresses(server):
        for path in ("/metrics", "/debug/requests", "/livez"):
            status, _, body = ask(admin, "GET", path, {"Host": "evil.example"})
            assert status == 403 and b"host_not_allowed" in body, (admin, path)
            for own in ("localhost", "LOCALHOST.:1", admin, "[::1]", "127.3.2.1:9"):
                assert ask(admin, "GET", path, {"Host": own})[0] == 200, (admin, path, own)


def test_pages_of_other_origins_send_nothing(server):
    http = server.router["http"]
    for origin in ("https://evil.example", "null", "http://localhost:1", f"https://{http}.evil"):
        status, headers, body = post_chat(http, {"Host": http, "Origin": origin})
        assert status == 403 and json.loads(body)["error"]["code"] == "origin_not_allowed"
        assert not any(name.startswith("access-control") for name in headers)
        # Without a preflight, as a page can send it.
        plain = {"Host": http, "Origin": origin, "Content-Type": "text/plain"}
        assert ask(http, "POST", "/v1/chat/completions", plain, b"{}")[0] == 403
    assert post_chat(http, {"Host": http, "Origin": f"http://{http}"})[0] == 200
    assert post_chat(http, {"Host": http})[0] == 200, "a program sends no Origin"
    for admin in admin_addresses(server):
        for method in ("GET", "POST", "OPTIONS"):
            fields = {"Host": admin, "Origin": "https://evil.example"}
            assert ask(admin, method, "/metrics", fields)[0] == 403, (admin, method)


def test_an_allowed_page_reads_every_kind_of_answer(open_to_page):
    http = open_to_page.router["http"]
    own = {"Host": http, "Origin": PAGE}
    asked = {
        **own,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    status, headers, _ = ask(http, "OPTIONS", "/v1/chat/completions", asked)
    assert status == 204
    allowed = [name.strip().lower() for name in headers["access-control-allow-headers"].split(",")]
    own_names = {"authorization", "content-type", "x-request-id", "idempotency-key"}
    assert own_names | {"x-stainless-os"} <= set(allowed)
    assert "POST" in headers["access-control-allow-methods"]
    for more, status in (({}, 200), ({"temperature": -1}, 400), ({"stream": True}, 200)):
        got, headers, _ = post_chat(http, own, **more)
        assert got == status
        assert headers["access-control-allow-origin"] == PAGE
        assert headers["vary"] == "Origin"
        assert "X-Request-Id" in headers["access-control-expose-headers"]
    got, headers, _ = ask(http, "GET", "/nothing", own)
    assert got == 404 and headers["access-control-allow-origin"] == PAGE
    other = {**asked, "Origin": "https://other.example"}
    got, headers, _ = ask(http, "OPTIONS", "/v1/chat/completions", other)
    assert got == 403 and "access-control-allow-origin" not in headers


def test_a_proxy_on_this_host_may_pass_its_name_on(open_to_page):
    http = open_to_page.router["http"]
    for name, status in (
        ("proxy.example", 200),
        ("Proxy.Example.:443", 200),
        ("10.0.0.7:80", 200),
        ("10.0.0.7:81", 403),
        ("other.example", 403),
    ):
        assert ask(http, "GET", "/v1/models", {"Host": name})[0] == status, name
    # The proxy ended TLS: the page is one of this server's own.
    fields = {"Host": "proxy.example", "Origin": "https://proxy.example"}
    assert post_chat(http, fields)[0] == 200
    for admin in admin_addresses(open_to_page):
        assert ask(admin, "GET", "/metrics", {"Host": "proxy.example"})[0] == 200


def test_a_server_on_all_addresses_is_asked_by_any_name():
    with Server("--mode", "aggregated", "--http", "0.0.0.0:0") as server:
        port = server.router["http"].rsplit(":", 1)[1]
        address = f"127.0.0.1:{port}"
        assert ask(address, "GET", "/v1/models", {"Host": "node-7.example"})[0] == 200
        assert post_chat(address, {"Host": "node-7", "Origin": "https://evil.example"})[0] == 403


@pytest.mark.parametrize(
    "flag, value",
    [("--cors-origins", "*"), ("--cors-origins", "a.example"), ("--allowed-hosts", "*")],
)
def test_a_list_that_is_none_ends_the_start(flag, value):
    for command in (("serve", "smollm2:135m"), ("router",), ("decode", "--router", "a:1")):
        argv = [BIN, *command, flag, value]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert f"{flag}: '{value}' is not" in done.stderr


def test_the_first_minutes_of_a_newcomer(server):
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args):
            return None

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(Stay).open(server.http + "/", timeout=10)
    assert caught.value.code == 302 and caught.value.headers["Location"] == "/ui"
    page = urllib.request.urlopen(server.http, timeout=10).read().decode()
    assert "<title>Baton</title>" in page
    wait_until(lambda: "/ui" in server.output(), 15, "the start line names the page")
    status, _, answer = server.post("/v1/chat/completion", CHAT)
    assert status == 404 and "POST /v1/chat/completions" in answer["error"]["message"]


def test_the_page_is_one_file_that_runs_only_its_own_script(server):
    status, headers, body = ask(server.router["http"], "GET", "/ui", {"Host": "localhost"})
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    assert 20_000 < len(body) <= 300_000
    policy = headers["content-security-policy"]
    (nonce,) = re.findall(r"script-src 'nonce-([0-9a-f]{32})'", policy)
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
    page = body.decode()
    tags = re.findall(r"<(?:script|style|link|img|iframe|object)[^>]*>", page)
    assert f'<script nonce="{nonce}">' in tags and f'<style nonce="{nonce}">' in tags
    assert '<link rel="icon" href="data:,">' in tags and len(tags) == 3
    assert not re.search(r"https?://|innerHTML|@import| on[a-z]+=", page)


def test_a_page_that_is_switched_off_is_404(open_to_page):
    for path in ("/ui", "/"):
        status, _, body = ask(open_to_page.router["http"], "GET", path, {"Host": "localhost"})
        assert status == 404 and "--ui off" in json.loads(body)["error"]["message"], path


def cluster_events(response):
    """The events of an open stream, as they come."""
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def test_a_viewer_sees_the_cluster_and_each_answer_without_its_text(server):
    url = server.http + "/v1/cluster/events"
    with urllib.request.urlopen(url, timeout=60) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        events = cluster_events(stream)
        hello, cluster = next(events), next(events)
        assert (hello["version"], hello["type"]) == (1, "hello")
        assert hello["incarnation"] == server.router["incarnation"]
        assert cluster["type"] == "cluster" and cluster["ready"]
        workers = {worker["id"]: worker for worker in cluster["workers"]}
        assert sorted(workers) == ["decode-0", "prefill-0"]
        assert sum(workers["decode-0"]["blocks"].values()) > 0
        prompt = "Xylophones and zithers"
        asked = {**CHAT, "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
        status, _, answer = server.post("/v1/chat/completions", {**asked, "request_id": "my-name"})
        assert status == 200
        short_id = answer["id"].split("-")[-1][:12]
        told, texts = {}, ""
        for event in events:
            texts += json.dumps(event)
            if event.get("id") == short_id:
                told[event["type"]] = event
            if "answer" in told:
                break
    handoff, end = told["handoff"], told["answer"]
    assert (handoff["from"], handoff["to"]) == ("prefill-0", "decode-0")
    assert handoff["bytes"] == answer["timings"]["kv_bytes"] > 0
    assert (end["status"], end["path"]) == (200, "disagg")
    assert end["output_tokens"] == answer["usage"]["completion_tokens"]
    stages = ["queue", "prefill", "transfer", "wait", "first_step", "decode"]
    assert list(end["stages_ms"]) == stages and end["stages_ms"]["prefill"] > 0
    assert "Xylo" not in texts and "my-name" not in texts
    assert answer["id"] not in texts


def test_the_events_are_for_the_server_s_own_pages(server):
    http = server.router["http"]
    fields = {"Host": "evil.example"}
    assert ask(http, "GET", "/v1/cluster/events", fields)[0] == 403
    assert ask(http, "POST", "/v1/cluster/events", {"Host": http})[0] == 405


def test_a_request_chooses_its_path(server):
    for path, prefill_worker in (("disagg", "prefill-0"), ("local", "decode-0")):
        status, _, answer = server.post("/v1/chat/completions", {**CHAT, "path": path})
        assert status == 200
        assert answer["timings"]["path"] == path
        assert answer["timings"]["prefill_worker"] == prefill_worker
    status, _, answer = server.post("/v1/chat/completions", {**CHAT, "path": "split"})
    assert status == 400 and answer["error"]["param"] == "path"
    assert '"auto", "disagg" or "local"' in answer["error"]["message"]
