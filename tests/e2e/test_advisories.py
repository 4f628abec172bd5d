"""Each kind of tests/advisories.json that a client can reach costs only itself.

advisory_cases.py has the inputs, which the built server gets. For each kind: every process lives, a
refusal takes 100 ms at most, what is at a limit is served, no process keeps more than 16 MiB for
it, and a stream beside it says what it says alone.
"""

import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

import advisory_cases
from baton_server import Server, wait_until

# A sanitizer build takes longer for everything.
SLOW = 10 if "BATON_E2E_START_LIMIT_S" in os.environ else 1
REFUSAL_LIMIT_S, LARGE_LIMIT_S, SERVED_LIMIT_S = 0.1 * SLOW, 2 * SLOW, 20 * SLOW
GROWTH_MIB = 16
CLOSED_LIMIT_S = 10 * SLOW
WARM_UPS = 3
STREAM_TOKENS = 100  # so many that a part of the work is done before the last one
TRIES = 3  # the machine may be busy; a guard that is slow is slow each time
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    digest = hashlib.sha256(advisory_cases.KEY.encode()).hexdigest()
    path.write_text(json.dumps([{"tenant": "guards", "sha256": digest}]))
    with Server("--max-context", "1024", "--api-keys", str(path)) as running:
        yield running


def send(server, data):
    """(status, text, seconds from the last byte sent to the answer)."""
    host, port = server.router["http"].split(":")
    with socket.create_connection((host, int(port)), 120) as client:
        client.settimeout(120)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(data)
        began = time.monotonic()
        received = b""
        while b"\r\n\r\n" not in received:
            piece = client.recv(1 << 16)
            assert piece, f"closed without an answer: {data[:200]!r}"
            received += piece
        seconds = time.monotonic() - began
        top, _, text = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", top, re.I)
        while length and len(text) < int(length[1]):
            piece = client.recv(1 << 16)
            if not piece:
                break
            text += piece
    return int(top.split()[1]), text.decode(errors="replace"), seconds


def check(server, case):
    """Asks until the answer is soon enough."""
    limit = SERVED_LIMIT_S if case.is_served else REFUSAL_LIMIT_S
    limit = max(limit, LARGE_LIMIT_S) if case.is_large else limit
    taken = []
    while not taken or (taken[-1] > limit and len(taken) < TRIES):
        status, text, seconds = send(server, case.request)
        assert status in case.statuses, (case.what, status, text[:300])
        assert not case.lacks or case.lacks not in text, (case.what, text)
        taken.append(seconds)
    assert min(taken) <= limit, (case.what, taken)
    return min(taken)


def memory_mib(server):
    """Of each process, what it has for itself; shared memory of KV was there before."""
    rows = {}
    for process in server.topology():
        text = Path(f"/proc/{process['pid']}/status").read_text()
        rows[process["worker_id"]] = int(re.search(r"RssAnon:\s+(\d+)", text)[1]) / 1024
    return rows


def pids(server):
    return {p["worker_id"]: p["pid"] for p in server.topology()}


@contextlib.contextmanager
def beside_a_stream(server):
    """A stream that has begun when the block does; gives the list that its texts are added to."""
    texts, begun = [], threading.Event()
    body = {"prompt": "The sea", "max_tokens": STREAM_TOKENS, "temperature": 0}
    body.update(ignore_eos=True, stream=True)
    headers = {
        "Authorization": f"Bearer {advisory_cases.KEY}",
        "Content-Type": "application/json",
    }
    connection = http.client.HTTPConnection(server.router["http"], timeout=120)

    def read():
        try:
            for line in response:
                if line.startswith(b"data: {"):
                    texts.append(json.loads(line[6:])["choices"][0]["text"])
                    begun.set()
        finally:
            begun.set()

    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(60) and texts, "its first token"
    assert thread.is_alive(), "the work begins beside it"
    yield texts
    thread.join()
    connection.close()


@pytest.fixture(scope="module")
def alone(guarded):
    with beside_a_stream(guarded) as texts:
        pass
    assert "".join(texts), texts
    return "".join(texts)


def costs_only_itself(server, alone, work):
    """`work` again and again; what threads keep of their first large bodies is kept once."""
    for _ in range(WARM_UPS):
        work()
    wait_until(server.ledger_is_clean, 60, "the ledger is clean")
    before, lives = memory_mib(server), pids(server)
    with beside_a_stream(server) as beside:
        work()
    assert "".join(beside) == alone, "the stream beside it"
    assert pids(server) == lives, "no process ended"
    assert server.get("/health")[0] == 200

    def grown():
        return {name: mib - before[name] for name, mib in memory_mib(server).items()}

    # A refused body goes when its connection does.
    wait_until(lambda: max(grown().values()) <= GROWTH_MIB, CLOSED_LIMIT_S, f"{GROWTH_MIB} MiB")
    return grown()


@pytest.mark.parametrize("kind", advisory_cases.OF_KIND)
def test_a_kind_costs_only_itself(guarded, alone, kind):
    cases = list(advisory_cases.OF_KIND[kind]())
    taken = {}

    def work():
        for case in cases:
            taken[case.what] = (case.is_served, case.is_large, check(guarded, case))

    grown = costs_only_itself(guarded, alone, work)
    refusals = [s for served, large, s in taken.values() if not served and not large]
    slowest = f"{1e3 * max(refusals):.1f} ms" if refusals else "none"
    print(f"{kind}: {len(cases)} cases, slowest refusal {slowest}, grown {max(grown.values()):.1f}")


@pytest.mark.parametrize("kind", advisory_cases.FOREIGN_BYTES)
def test_foreign_bytes_between_processes_cost_only_their_connection(guarded, alone, kind):
    ports = [p[name] for p in guarded.topology() for name in ("grpc", "kv", "admin") if p.get(name)]

    def work():
        for address in ports:
            for data in advisory_cases.FOREIGN_BYTES[kind]:
                host, port = address.split(":")
                with socket.create_connection((host, int(port)), 10) as client:
                    client.sendall(data)

    costs_only_itself(guarded, alone, work)


def test_a_viewer_that_reads_nothing_costs_nobody(guarded, alone):
    request = advisory_cases.head("/v1/cluster/events", (), "GET")
    host, port = guarded.router["http"].split(":")
    viewers = []

    def work():
        for _ in range(20):
            viewer = socket.create_connection((host, int(port)), 10)
            viewer.sendall(request)
            viewers.append(viewer)
        assert send(guarded, advisory_cases.head("/version", (), "GET"))[0] == 200

    try:
        costs_only_itself(guarded, alone, work)
    finally:
        for viewer in viewers:
            viewer.close()


def test_each_kind_here_stands_in_the_table():
    rows = json.loads((ROOT / "tests" / "advisories.json").read_text())
    kinds = {row["kind"] for row in rows}
    assert set(advisory_cases.OF_KIND) | set(advisory_cases.FOREIGN_BYTES) <= kinds
