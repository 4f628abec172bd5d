"""Tests viewers of /v1/cluster/events that are many, read nothing, are cut off, hold a wrong key,
come through nginx, or watch a router without workers: none of them may hold up an answer."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from baton_server import BIN, PATIENCE_S, Server, free_port, http_json, wait_until

MAX_VIEWERS = 200  # src/api/cluster_events.h
EVENTS = "/v1/cluster/events"
ASKED = {"prompt": "One, two,", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


def open_viewer(address, headers=""):
    """A socket that has asked for the events and read nothing."""
    host, port = address.rsplit(":", 1)
    viewer = socket.socket()
    viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    viewer.settimeout(PATIENCE_S)
    viewer.connect((host, int(port)))
    viewer.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    return viewer


def read_until(viewer, words):
    data = b""
    while words not in data:
        more = viewer.recv(65536)
        assert more, data
        data += more
    return data


def text_of(server):
    status, _, answer = server.post("/v1/completions", ASKED)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def status_of(address):
    with contextlib.closing(open_viewer(address)) as viewer:
        return read_until(viewer, b"\r\n\r\n")


def test_200_viewers_that_read_nothing_hold_up_no_answer(server):
    address, want = server.router["http"], text_of(server)
    with contextlib.ExitStack() as stack:
        viewers = [
            stack.enter_context(contextlib.closing(open_viewer(address)))
            for _ in range(MAX_VIEWERS)
        ]
        # The last one is told its state, so all before it have their places.
        read_until(viewers[-1], b'"type":"cluster"')
        assert text_of(server) == want
        refused = status_of(address)
        assert refused.startswith(b"HTTP/1.1 503 ")
        with contextlib.closing(open_viewer(address)) as viewer:
            read_until(viewer, b'"too_many_connections"')
        assert server.get("/health")[0] == 200
        # A stream of those that read goes on beside those that do not.
        read_until(viewers[-1], b'"type":"answer"')
    wait_until(lambda: status_of(address).startswith(b"HTTP/1.1 200 "), 30, "places are free again")
    assert text_of(server) == want


def test_viewers_that_are_cut_off_amid_an_event_are_forgotten(server):
    address, want = server.router["http"], text_of(server)
    for _ in range(MAX_VIEWERS + 20):
        viewer = open_viewer(address)
        assert viewer.recv(10)
        # A reset, not an orderly end: what the kernel still holds is thrown away.
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        viewer.close()
    assert text_of(server) == want
    assert wait_until(lambda: status_of(address).startswith(b"HTTP/1.1 200 "), 30, "room again")


@pytest.fixture(scope="module")
def lone_router(tmp_path_factory):
    """A router that no worker has joined."""
    folder = tmp_path_factory.mktemp("router")
    args = [f"--{name}=127.0.0.1:0" for name in ("http", "grpc", "admin")]
    reports, report_fd = os.pipe()
    with open(folder / "out", "wb") as log:
        process = subprocess.Popen(
            [BIN, "router", *args], stdout=log, stderr=log, pass_fds=(report_fd,),
            env={**os.environ, "BATON_REPORT_FD": str(report_fd)},
        )  # fmt: skip
    os.close(report_fd)
    try:
        with open(reports) as report:
            line = report.readline()  # the router writes it once it listens, or ends
        assert line, (folder / "out").read_text()
        yield json.loads(line)["http"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


def test_a_router_without_workers_says_so_to_a_viewer(lone_router):
    with urllib.request.urlopen(f"http://{lone_router}{EVENTS}", timeout=60) as stream:
        lines = (line for line in stream if line.startswith(b"data: "))
        hello, cluster = (json.loads(next(lines)[6:]) for _ in range(2))
    assert hello["type"] == "hello" and cluster["type"] == "cluster"
    assert cluster["workers"] == [] and cluster["ready"] is False
    assert urllib.request.urlopen(f"http://{lone_router}/ui", timeout=10).status == 200
    status, headers, answer = http_json(f"http://{lone_router}/v1/completions", ASKED)
    assert status == 503 and headers["Retry-After"], answer


def test_a_viewer_needs_a_key_where_there_are_keys(tmp_path):
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"right").hexdigest()
    keys.write_text(f"- tenant: a\n  sha256: {digest}\n")
    with Server("--api-keys", str(keys)) as server:
        assert urllib.request.urlopen(server.http + "/ui", timeout=10).status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            status, _, answer = http_json(server.http + EVENTS, headers=headers)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key", headers
        line = "Authorization: Bearer right\r\n"
        with contextlib.closing(open_viewer(server.router["http"], line)) as viewer:
            read_until(viewer, b'"type":"cluster"')


NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://{upstream}; proxy_http_version 1.1; proxy_set_header Host localhost;
    }}
  }}
}}
"""


def test_nginx_with_its_own_settings_holds_no_event_back(server, tmp_path):
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is missing")
    port = free_port()
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(folder=tmp_path, port=port, upstream=server.router["http"]))
    process = subprocess.Popen([nginx, "-c", config, "-e", tmp_path / "error.log", "-p", tmp_path])
    try:
        def listens():
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port), 1).close() is None

        wait_until(listens, 20, "nginx listens")
        with contextlib.closing(open_viewer(f"127.0.0.1:{port}")) as viewer:
            head = read_until(viewer, b'"type":"cluster"')
        assert b"X-Accel-Buffering" not in head, "nginx keeps the field to itself"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        with contextlib.suppress(OSError):
            print(Path(tmp_path / "error.log").read_text())
