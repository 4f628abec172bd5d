"""The security table on the built server: each route by each caller; keys that change under load.

route_cases.py has the rows. Environment: BATON_TEST_SEED=<number> gives the order of the load,
`random` a fresh one.
"""

import hashlib
import http.client
import json
import random
import threading

import grpc
import pytest

import guard_cases
import route_cases
from baton_server import PATIENT, Server, generated_stubs, http_json, seed_of_tests, wait_until

OWNER, OTHER, WRONG = "key-of-the-owner", "key-of-another", "key-of-nobody"
KEYS = dict(zip(route_cases.CALLERS, (None, WRONG, OTHER, OWNER)))
FLAGS = ("--max-context", "1024", "--threads", "2")


def entry(tenant, key):
    return {"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}


def write(path, *entries):
    path.with_suffix(".next").write_text(json.dumps(entries))
    path.with_suffix(".next").rename(path)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write(path, entry("owner", OWNER), entry("other", OTHER))
    with Server(*FLAGS, "--api-keys", str(path)) as running:
        yield running


def send(server, method, path, key, body=None, **headers):
    """(status, headers, text); of an event stream that has no end, the status alone."""
    connection = http.client.HTTPConnection(server.http.split("//")[1], timeout=300)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    endless = path == "/v1/cluster/events" and response.status == 200
    text = b"" if endless else response.read()
    connection.close()
    return response.status, response.headers, text


class Owned:
    """What the owner has, made once: a stream, an item, and answers under keys of idempotency."""

    def __init__(self, server):
        self.server = server
        body = {**guard_cases.GOOD["/v1/chat/completions"], "stream": True}
        _, headers, _ = self.ask("/v1/chat/completions", body, **{"X-Baton-Resumable": "1"})
        self.stream = headers["X-Baton-Stream"]
        answer = json.loads(self.ask("/v1/responses", {"input": "Hi", "max_output_tokens": 4})[2])
        self.item = next(o["id"] for o in answer["output"] if o["type"] == "message")
        self.ids = {}
        for path in route_cases.KEY_HOLDERS:
            text = self.ask(path, guard_cases.GOOD[path], **{"Idempotency-Key": "k"})[2]
            self.ids[path] = json.loads(text)["id"]
        for path, body in route_cases.CACHED.items():
            self.ask(path, body)

    def ask(self, path, body, **headers):
        answer = send(self.server, "POST", path, OWNER, body, **headers)
        assert answer[0] == 200, (path, answer)
        return answer


@pytest.fixture(scope="module")
def owned(keyed):
    return Owned(keyed)


def num_cached(answer):
    usage = answer["usage"]
    for name in ("prompt_tokens_details", "input_tokens_details"):
        if name in usage:
            return usage[name]["cached_tokens"]
    return usage["cache_read_input_tokens"]


def path_of(row, owned):
    return row.path.replace("{model}", "smollm2:135m").replace("{stream}", owned.stream)


def cell(server, owned, row, key):
    """What this caller gets, in the words of the table."""
    body, headers = row.body, {}
    if row.what == route_cases.ANSWER:
        headers["Idempotency-Key"] = "k"
    if row.what == route_cases.ITEM:
        items = [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": owned.item}]
        body = {"input": [*items, {"role": "user", "content": "Go on."}], "max_output_tokens": 1}
    status, _, text = send(server, row.method, path_of(row, owned), key, body, **headers)
    if status != 200:
        return str(status)
    if row.what == route_cases.CACHE:
        is_found = num_cached(json.loads(text)) >= route_cases.MIN_CACHED
        return "200, found" if is_found else "200, not found"
    if row.what == route_cases.ANSWER:
        is_same = json.loads(text)["id"] == owned.ids[row.path]
        return "200, found" if is_same else "200, not found"
    return str(status)


def test_each_route_answers_each_caller_as_the_table_says(keyed, owned):
    wrong = []
    for row in route_cases.rows():
        if row.method == "gRPC":
            continue
        for caller, wanted in zip(route_cases.CALLERS, row.cells):
            got = cell(keyed, owned, row, KEYS[caller])
            if got != wanted:
                wrong.append(f"{row.title} with {caller}: {got}, not {wanted}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_every_route_of_the_description(keyed):
    document = json.loads(send(keyed, "GET", "/openapi.json", OWNER)[2])
    described = {(m.upper(), path) for path, ms in document["paths"].items() for m in ms}
    listed = {(row.method, row.path) for row in route_cases.rows() if row.method != "gRPC"}
    assert described <= listed, described - listed
    # Pages are for people and are not described.
    assert listed - described == {("GET", "/"), ("GET", "/ui")}


def test_a_key_in_the_url_is_refused_beside_a_good_one(keyed, owned):
    for row in route_cases.rows():
        if row.method == "gRPC" or row.path in route_cases.OPEN_PATHS:
            continue
        path = path_of(row, owned)
        for name in ("api_key", "key", "token"):
            status, _, text = send(keyed, row.method, f"{path}?{name}={OWNER}", OWNER, row.body)
            assert status == 401, (path, name)
            assert b"A key in the URL is refused" in text, text


GRPC_BODIES = {
    "ChatCompletion": {"messages": guard_cases.ASK, "max_tokens": 1},
    "StreamChatCompletion": {"messages": guard_cases.ASK, "max_tokens": 1},
    "Complete": {"prompt": "Hi", "max_tokens": 1},
    "StreamComplete": {"prompt": "Hi", "max_tokens": 1},
    "CreateEmbedding": {"input": ["Hi"]},
    "ListModels": {},
    "Tokenize": {"content": "Hi"},
    "Detokenize": {"tokens": [1]},
    "ApplyTemplate": {"messages": guard_cases.ASK},
}


def grpc_cell(server, method, key):
    pb2, pb2_grpc = generated_stubs()
    service, _, name = method.partition("/")
    request_type = pb2.DESCRIPTOR.services_by_name[service].methods_by_name[name].input_type.name
    call = getattr(getattr(pb2_grpc, f"{service}Stub")(server.channel), name)
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    try:
        answer = call(
            getattr(pb2, request_type)(**GRPC_BODIES[name]), metadata=metadata, timeout=60
        )
        if "Stream" in name:
            assert list(answer)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def test_each_grpc_method_answers_each_caller_as_the_table_says(keyed):
    pb2, _ = generated_stubs()
    described = {
        f"{service.name}/{method.name}"
        for service in pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert described == set(route_cases.GRPC)
    for row in route_cases.rows():
        if row.method == "gRPC":
            got = [grpc_cell(keyed, row.path, KEYS[caller]) for caller in route_cases.CALLERS]
            assert got == list(row.cells), row.path


STAYS, ROTATIONS, CLIENTS = "key-that-stays", 6, 8
SEEN_LIMIT_S = 10  # the file is looked at once a second
TOKENS = 300  # of a stream, more than a second of decoding beside the load


class Load:
    """Clients with the key that stays, until stop(); each answer that is not 200 is a fault."""

    def __init__(self, server, rng):
        self.server, self.faults, self.count = server, [], 0
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.threads = [
            threading.Thread(target=self.run, args=(random.Random(rng.random()),))
            for _ in range(CLIENTS)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, rng):
        paths = ["/v1/completions", "/v1/messages", "/tokenize", "/v1/responses"]
        while not self.ended.is_set():
            path = rng.choice(paths)
            status, _, text = send(self.server, "POST", path, STAYS, guard_cases.GOOD[path])
            with self.lock:
                self.count += 1
                if status != 200:
                    self.faults.append((path, status, text[:200]))

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def open_stream(server, key, name):
    """The answer to a stream that a worker has taken; None where the key counts no more."""
    body = {"prompt": "The sea", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection(server.http.split("//")[1], timeout=300)
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {key}",
        "X-Request-Id": name,
    }
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status in (200, 401), response.read()
    return response if response.status == 200 else None


class OldStreams:
    """Streams that began with a key that goes; what began with a key ends without it.

    Whenever the newest one has half of its tokens, another one begins, so that one runs until the
    key goes, however long that takes.
    """

    def __init__(self, server, key):
        self.server, self.key = server, key
        self.responses = []
        assert self.keep_one_young(), "the key counts at first"

    def name(self):
        return f"{self.key}-stream-{len(self.responses) - 1}"

    def num_tokens(self):
        """Tokens of the newest stream; None: it has ended."""
        rows = http_json(f"http://{self.server.router['admin']}/debug/requests")[2]
        return next((row["num_tokens"] for row in rows if row["request_id"] == self.name()), None)

    def keep_one_young(self):
        """False: another one was to begin, and the key counts no more."""
        num_tokens = self.num_tokens()
        if num_tokens is not None and num_tokens < TOKENS // 2:
            return True
        name = f"{self.key}-stream-{len(self.responses)}"
        response = open_stream(self.server, self.key, name)
        self.responses += [response] if response else []
        return response is not None

    def ends(self):
        return [response.read() for response in self.responses]


def test_keys_change_under_load_and_those_that_stay_are_never_refused(tmp_path):
    rng = random.Random(seed_of_tests("21"))
    path = tmp_path / "keys.json"
    write(path, entry("a", STAYS), entry("a", "key-0"))
    with Server(*FLAGS, *PATIENT, "--api-keys", str(path)) as server:
        url = server.http + "/v1/models"

        def status_of(key):
            return http_json(url, headers={"Authorization": f"Bearer {key}"})[0]

        load = Load(server, rng)
        num_outlived = 0
        try:
            for i in range(ROTATIONS):
                old, new = f"key-{i}", f"key-{i + 1}"
                streams = OldStreams(server, old)
                wait_until(lambda n=10 * i: load.count > n, 60, "the load runs")
                if i == ROTATIONS // 2:  # a bad file between them: the former keys stay
                    path.write_text("- tenant: a\n")
                    wait_until(
                        lambda: "line 1: the entry has no sha256" in server.output(),
                        SEEN_LIMIT_S,
                        "the bad file is told",
                    )
                    assert status_of(old) == 200 and status_of(STAYS) == 200
                write(path, entry("a", STAYS), entry("a", new))

                def keys_changed(key=new, old_streams=streams):
                    return not old_streams.keep_one_young() or status_of(key) == 200

                wait_until(keys_changed, SEEN_LIMIT_S, "the keys change")
                # Where the old key was refused first, the newest stream had half of its tokens and
                # may have ended by now.
                num_outlived += streams.num_tokens() is not None
                assert status_of(new) == 200 and status_of(old) == 401, "both at once"
                for text in streams.ends():
                    assert text.endswith(b"data: [DONE]\n\n"), text[-200:]
        finally:
            load.stop()
        assert not load.faults, load.faults[:3]
        assert num_outlived, "in some rotation a stream still runs when its key has gone"
        wait_until(server.ledger_is_clean, 30, "the ledger is clean")
        assert STAYS not in server.output()
