"""Vectors of texts: OpenAI's and Ollama's clients, equal bits alone and in batches, the workers."""

import base64
import math
import struct

import grpc
import ollama
import openai
import pytest

from baton_server import PATIENT, Server, generated_stubs, in_parallel, metric, wait_until
from scripted_model import write_thinker

TEXTS = [
    "The cat sleeps on the sofa.",
    "A kitten naps on the couch.",
    "Central banks raised interest rates to fight inflation.",
]
LONG = "A sentence that is long enough to be cut into chunks. " * 60


@pytest.fixture(scope="module")
def server():
    """One that refuses no chat for the prompts that it computes before."""
    with Server(*PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=300)


def embed(server, expect=200, **fields):
    status, _, answer = server.post("/v1/embeddings", fields, timeout=300)
    assert status == expect, answer
    return answer


def vectors(answer):
    assert [row["index"] for row in answer["data"]] == list(range(len(answer["data"])))
    return [row["embedding"] for row in answer["data"]]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def test_openais_client_reads_vectors_of_length_one(server, client):
    answer = client.embeddings.create(model="smollm2:135m", input=TEXTS)
    assert answer.object == "list" and answer.model == "smollm2:135m"
    rows = [row.embedding for row in answer.data]
    assert [len(row) for row in rows] == [576] * 3
    for row in rows:
        assert math.isclose(dot(row, row), 1, rel_tol=1e-5)
    tokens = [len(server.post("/tokenize", {"content": t})[2]["tokens"]) for t in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(tokens)
    floats = client.embeddings.create(model="smollm2:135m", input=TEXTS, encoding_format="float")
    for row, other in zip(rows, floats.data):
        assert other.embedding == pytest.approx(row, rel=1e-6)


def test_related_texts_are_nearer_than_unrelated_ones(server):
    a, b, c = vectors(embed(server, input=TEXTS))
    again = vectors(embed(server, input=TEXTS[0]))[0]
    assert math.isclose(dot(a, again), 1, rel_tol=1e-5)
    assert dot(a, b) > dot(a, c), (dot(a, b), dot(a, c))
    assert dot(a, b) > dot(b, c), (dot(a, b), dot(b, c))


def test_the_same_bits_alone_in_a_batch_and_beside_chats(server):
    inputs = [*TEXTS, LONG, "Hi"]
    alone = [vectors(embed(server, input=text))[0] for text in inputs]
    assert vectors(embed(server, input=inputs)) == alone
    ids = [server.post("/tokenize", {"content": text})[2]["tokens"] for text in inputs]
    assert vectors(embed(server, input=ids)) == alone
    body = {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 24}
    calls = [lambda: server.post("/v1/chat/completions", body, timeout=300)[0] for _ in range(4)]
    calls += [lambda: vectors(embed(server, input=inputs)) for _ in range(4)]
    results = in_parallel(calls, len(calls))
    assert results[:4] == [200] * 4 and results[4:] == [alone] * 4


def test_base64_has_the_same_floats(server):
    plain = vectors(embed(server, input=TEXTS[0]))[0]
    coded = vectors(embed(server, input=TEXTS[0], encoding_format="base64"))[0]
    data = base64.b64decode(coded)
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == [
        struct.unpack("<f", struct.pack("<f", x))[0] for x in plain
    ]


def test_grpc_gives_the_same_floats(server):
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.EmbeddingServiceStub(server.channel)
    answer = stub.CreateEmbedding(pb2.EmbeddingRequest(input=TEXTS), timeout=300)
    assert [row.index for row in answer.data] == [0, 1, 2]
    for row, expected in zip(answer.data, vectors(embed(server, input=TEXTS))):
        assert list(row.embedding) == pytest.approx(expected, rel=1e-6)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0
    with pytest.raises(grpc.RpcError) as error:
        stub.CreateEmbedding(pb2.EmbeddingRequest(input=["a", ""]), timeout=60)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "input[1]" in error.value.details()


def test_ollamas_client(server):
    client = ollama.Client(host=server.http)
    answer = client.embed(model="smollm2:135m", input=TEXTS[:2])
    expected = vectors(embed(server, input=TEXTS[:2]))
    assert [list(row) for row in answer.embeddings] == expected
    assert answer.prompt_eval_count > 0
    older = client.embeddings(model="smollm2:135m", prompt=TEXTS[0])
    assert list(older.embedding) == expected[0]


@pytest.mark.parametrize(
    "fields,param,word",
    [
        ({}, "input", "required"),
        ({"input": ""}, "input", "token"),
        ({"input": ["a"] * 1025}, "input", "1024"),
        ({"input": "a", "dimensions": 64}, "dimensions", "576"),
        ({"input": "a", "encoding_format": "ubinary"}, "encoding_format", "base64"),
        ({"input": [{"image": "x"}]}, "input", "string"),
        ({"input": LONG * 20}, "input", ""),
    ],
)
def test_bad_input_is_named(server, fields, param, word):
    error = embed(server, 400, **fields)["error"]
    assert error["param"] == param, error
    assert word in error["message"], error


def test_too_long_says_by_how_much(server):
    error = embed(server, 400, input=LONG * 20)["error"]
    assert error["code"] == "context_length_exceeded"


def test_prefill_workers_compute_them_and_keep_nothing(server):
    decode = next(p for p in server.workers() if p["role"] == "decode")
    before = metric(server.router, "baton_requests_total", 'code="200"')
    computed = metric(decode, "baton_prefix_cache_queries_total")
    embed(server, input="A text that no other test embeds.")
    assert metric(server.router, "baton_requests_total", 'code="200"') == before + 1
    assert metric(decode, "baton_prefix_cache_queries_total") == computed, "the decode worker rests"
    wait_until(server.ledger_is_clean, 10, "blocks to be free")


def test_decode_workers_compute_them_in_aggregated_mode(server):
    expected = vectors(embed(server, input=TEXTS[0]))[0]
    with Server("--mode", "aggregated") as aggregated:
        assert vectors(embed(aggregated, input=TEXTS[0]))[0] == expected


def test_a_batch_is_not_refused_for_its_own_parts():
    """The worker's KV holds one part at a time, which takes longer than the next one may wait."""
    flags = ("--queue-wait-ms", "1000", "--max-context", "512", "--kv-memory", "16MiB")
    with Server(*flags) as server:
        inputs = [f"Text {i}. {LONG[:2000]}" for i in range(8)]
        for _ in range(2):  # and once more where the router knows how long a place takes
            rows = vectors(embed(server, input=inputs))
            assert len(rows) == len(inputs)
        body = {"prompt": inputs, "max_tokens": 1, "temperature": 0}
        status, _, answer = server.post("/v1/completions", body, timeout=300)
        assert status == 200 and len(answer["choices"]) == len(inputs), answer


MEAN, CLASS, RANK = 1, 2, 4  # llama.cpp's numbers


def test_a_mean_counts_every_token(tmp_path):
    """The hidden state of a token of this model is a unit vector of its own."""
    with Server(model=write_thinker(tmp_path / "mean.gguf", MEAN)) as server:
        for text in ("aab", "ab" * 200 + "a" * 100):
            (row,) = vectors(embed(server, input=text))
            counts = [text.count("a"), text.count("b")]
            length = math.hypot(*counts)
            assert [x for x in row if x] == pytest.approx([c / length for c in counts], rel=1e-6)
            again = vectors(embed(server, input=["zz", text, "a"]))[1]
            assert again == row, "with a filled cache, in a batch"


@pytest.mark.parametrize("pooling,name", [(CLASS, "cls"), (RANK, "rank"), (0, "none")])
def test_where_it_makes_no_sense_it_is_refused(tmp_path, pooling, name):
    with Server(model=write_thinker(tmp_path / "other.gguf", pooling)) as server:
        error = embed(server, 400, input="a")["error"]
        assert error["code"] == "unsupported_parameter" and error["param"] == "model"
        assert name in error["message"], error
        body = {"messages": [{"role": "user", "content": "plain"}], "max_tokens": 4}
        assert server.post("/v1/chat/completions", body)[0] == 200
