"""A cluster with certificates: it serves, and whoever has none of its authority stays outside."""

import http.client
import json
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path

import grpc
import pytest

from baton_server import (
    BIN,
    MODEL,
    Server,
    complete,
    generated_stubs,
    metric,
    pool_flags,
    wait_until,
)

PROMPT = "The capital of France is a city that everybody knows, and its name is"


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


class Authority:
    """Signs certificates in a folder of its own."""

    def __init__(self, folder, name):
        self.folder, self.name = Path(folder), name
        self.cert, self.key = self.path("crt"), self.path("key")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", f"/CN={name}", "-days", "2", "-addext", "keyUsage=critical,keyCertSign",
                "-keyout", self.key, "-out", self.cert)
        # Python from 3.13 on checks as strictly.
        openssl("verify", "-x509_strict", "-CAfile", self.cert, self.cert)

    def path(self, suffix):
        return str(self.folder / f"{self.name}.{suffix}")

    def issue(self, name, days="2"):
        """The three flags of a process."""
        stem = str(self.folder / name)
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", f"/CN={name}", "-keyout", stem + ".key", "-out", stem + ".csr")
        Path(stem + ".ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", stem + ".csr", "-CA", self.cert, "-CAkey", self.key,
                "-CAcreateserial", "-days", days, "-extfile", stem + ".ext", "-out", stem + ".crt")
        return ["--tls-cert", stem + ".crt", "--tls-key", stem + ".key", "--tls-ca", self.cert]


@pytest.fixture(scope="module")
def authority():
    with tempfile.TemporaryDirectory(prefix="baton_tls_") as folder:
        yield Authority(folder, "ca")


def read(path):
    return Path(path).read_bytes()


def ordinary_client(authority):
    """A client of the public API has the authority and no certificate."""
    return grpc.ssl_channel_credentials(read(authority.cert))


def member(flags):
    return grpc.ssl_channel_credentials(read(flags[5]), read(flags[3]), read(flags[1]))


@pytest.fixture(scope="module")
def server(authority):
    flags = authority.issue("node")
    # Clients of this module trust the authority: Python's, and those that it starts.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", authority.cert)
        args = ["--transport", "tcp", "--tls-http", "on", *flags]
        with Server(*args, credentials=ordinary_client(authority)) as server:
            server.flags = flags
            yield server


def code_of(address, credentials):
    """How a call that nobody knows ends: UNIMPLEMENTED means that it was let in."""
    if credentials is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, credentials)
    with channel:
        call = channel.unary_unary("/baton.v1.Nothing/Nothing")
        with pytest.raises(grpc.RpcError) as error:
            call(b"", timeout=60)
        return error.value.code()


def by_role(server, role):
    return next(p for p in server.topology() if p["role"] == role)


def test_it_answers_over_both_apis(server):
    # A link whose end gets no processor for a while rests, and the next prompt goes another way.
    def handed_over():
        answer = complete(server, prompt=PROMPT, max_tokens=8, temperature=0)
        return answer if answer.timings.path == "disagg" and answer.timings.kv_bytes > 0 else None

    over_grpc = wait_until(handed_over, 60, "a hand-off over the link")
    assert over_grpc.timings.transport == "tcp"
    # The decode worker counts what it verified, and all of it came through TLS.
    decode = by_role(server, "decode")
    verified = metric(decode, "baton_kv_transfer_bytes_total", 'transport="tcp"')
    assert verified >= over_grpc.timings.kv_bytes
    assert metric(decode, "baton_kv_tls_bytes_total") == verified
    assert server.http.startswith("https://")
    status, _, body = server.post(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    )
    assert status == 200 and body["choices"][0]["text"] == over_grpc.texts[0]


def test_the_http_port_speaks_tls_alone(server):
    host, port = server.router["http"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = plain.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"https://" in answer
    chat = [BIN, "chat", "--url", server.http, "--prompt", "Hi", "--max-tokens", "4"]
    run = subprocess.run(chat, capture_output=True, timeout=60)
    assert run.returncode == 0 and run.stdout.strip(), run.stderr
    # A client that does not trust the authority is told how to.
    run = subprocess.run(
        chat, capture_output=True, timeout=60, env={**os.environ, "SSL_CERT_FILE": "/nowhere"}
    )
    assert run.returncode == 1 and b"SSL_CERT_FILE" in run.stderr
    # The admin port has no TLS, and says so.
    top = [BIN, "top", "--once", "--admin", "https://" + server.router["admin"]]
    run = subprocess.run(top, capture_output=True, timeout=60)
    assert run.returncode == 2 and b"http://HOST:PORT" in run.stderr


def test_a_stream_over_tls_ends_with_its_client(server):
    body = {"prompt": PROMPT, "max_tokens": 1500, "stream": True, "ignore_eos": True}
    host, port = server.router["http"].rsplit(":", 1)
    connection = http.client.HTTPSConnection(host, int(port), timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline().startswith(b"data: ")
    response.close()
    connection.close()
    wait_until(server.ledger_is_clean, 15, "the answer is aborted")


def test_the_grpc_port_of_the_router(server, authority):
    assert code_of(server.grpc, ordinary_client(authority)) == grpc.StatusCode.UNIMPLEMENTED
    assert code_of(server.grpc, member(server.flags)) == grpc.StatusCode.UNIMPLEMENTED
    assert code_of(server.grpc, None) == grpc.StatusCode.UNAVAILABLE
    with tempfile.TemporaryDirectory() as folder:
        foreign = Authority(folder, "foreign").issue("stranger")
        foreign[5] = authority.cert
        assert code_of(server.grpc, member(foreign)) == grpc.StatusCode.UNAVAILABLE


def test_the_grpc_ports_of_the_workers_take_members_only(server, authority):
    for role in ("prefill", "decode"):
        address = by_role(server, role)["grpc"]
        assert code_of(address, member(server.flags)) == grpc.StatusCode.UNIMPLEMENTED
        assert code_of(address, ordinary_client(authority)) == grpc.StatusCode.UNAVAILABLE
        assert code_of(address, None) == grpc.StatusCode.UNAVAILABLE


def test_the_kv_port_takes_tls_only(server):
    decode = by_role(server, "decode")
    before = metric(decode, "baton_kv_connection_ends_total", 'reason="tls_missing"')
    host, port = decode["kv"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        peer.sendall(b"BTKV" + secrets.token_bytes(200))
        peer.settimeout(60)
        assert peer.recv(4) == b"BTKV", "a worker without TLS is told in its own words"
    wait_until(lambda: metric(decode, "baton_kv_connection_ends_total", 'reason="tls_missing"')
               == before + 1, 20, "the refusal is counted by its reason")
    # With TLS, but without a certificate of the cluster.
    context = ssl.create_default_context(cafile=server.flags[5])
    context.check_hostname = False
    before = metric(decode, "baton_kv_connection_ends_total", 'reason="tls_certificate"')
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        with pytest.raises(OSError):
            with context.wrap_socket(peer) as secured:
                assert secured.version() == "TLSv1.3"
                secured.recv(1)
    wait_until(lambda: metric(decode, "baton_kv_connection_ends_total", 'reason="tls_certificate"')
               == before + 1, 20, "the refusal is counted by its reason")


def test_a_worker_of_another_authority_is_told_why(server):
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        args = [BIN, "decode", "--router", server.grpc, "--model", MODEL, "--worker-id", "decode-9"]
        args += pool_flags(MODEL)
        args += Authority(folder, "foreign").issue("stranger")
        with open(log, "wb") as file:
            process = subprocess.Popen(args, stdout=file, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: b"ertificate" in read(log).replace(b"CERTIFICATE", b"ertificate")
                       and b"handshake failed" in read(log), 60, "the log names the certificate")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert "decode-9" not in {p["worker_id"] for p in server.get("/v1/topology")[2]["processes"]}


def failure_of(*args):
    """Exit code and the one line of a command that refuses to start."""
    result = subprocess.run([BIN, *args], capture_output=True, timeout=60)
    (line,) = result.stderr.decode().strip().splitlines()
    return result.returncode, line


def test_what_cannot_work_is_refused_at_the_start(authority):
    flags = authority.issue("one")
    other = authority.issue("two")
    code, line = failure_of("serve", MODEL, *flags[:4])
    assert code == 2 and "--tls-ca is missing" in line
    code, line = failure_of("decode", "--router", "127.0.0.1:1", "--model", MODEL, *flags[2:])
    assert code == 2 and "--tls-cert is missing" in line
    code, line = failure_of("serve", MODEL, "--tls-http", "on")
    assert code == 2 and "--tls-http on: give --tls-cert" in line
    mixed = [*flags[:2], *other[2:4], *flags[4:]]
    for command in (["serve", MODEL], ["router", "--grpc", "127.0.0.1:0"],
                    ["decode", "--router", "127.0.0.1:1", "--model", MODEL]):
        code, line = failure_of(*command, *mixed)
        assert code == 1 and re.search(r"--tls-key \S+ is not the key of --tls-cert \S+$", line)
        code, line = failure_of(*command, *flags[:4], "--tls-ca", "/nowhere/ca.crt")
        assert code == 1 and "--tls-ca /nowhere/ca.crt" in line
        # gRPC would abort the process.
        for i in (1, 3, 5):
            folder = [*flags[:i], "/usr", *flags[i + 1:]]
            code, line = failure_of(*command, *folder)
            assert code == 1 and line.endswith(f"{flags[i - 1]} /usr: no regular file"), line
