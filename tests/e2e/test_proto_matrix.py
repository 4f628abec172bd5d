"""Each field of each gRPC request with bytes that it should not get.

A call is served, or ends with INVALID_ARGUMENT and the field's name (NOT_FOUND for a model). A
number means what it means over HTTP. What protobuf cannot parse is always refused.
"""

import re

import grpc
import pytest

import field_cases
import proto_cases
from baton_server import Server, generated_stubs, in_parallel
from test_field_matrix import FLAGS, processes

SERVICE = "/baton.v1."
# Message, method, and the path whose description has the same fields.
CALLS = (
    ("ChatCompletionRequest", "ChatService/ChatCompletion", "/v1/chat/completions"),
    ("CompletionRequest", "CompletionService/Complete", "/v1/completions"),
    ("EmbeddingRequest", "EmbeddingService/CreateEmbedding", "/v1/embeddings"),
    ("TokenizeRequest", "ModelService/Tokenize", None),
    ("DetokenizeRequest", "ModelService/Detokenize", None),
    ("ApplyTemplateRequest", "ModelService/ApplyTemplate", None),
)
# The fields of one thing under its name in errors.
SAME = {
    "prompts": "prompt",
    "prompts_token_ids": "prompt",
    "prompt_token_ids": "prompt",
    "input_token_ids": "input",
}
AT_ONCE = 4


@pytest.fixture(scope="module")
def bare_server():
    with Server(*FLAGS) as running:
        yield running


def good_messages(pb2):
    turn = pb2.ChatMessage(role="user", content="Hi")
    return {
        "ChatCompletionRequest": pb2.ChatCompletionRequest(messages=[turn], max_tokens=1),
        "CompletionRequest": pb2.CompletionRequest(prompt="Hi", max_tokens=1),
        "EmbeddingRequest": pb2.EmbeddingRequest(input=["Hi"]),
        "TokenizeRequest": pb2.TokenizeRequest(content="Hi"),
        "DetokenizeRequest": pb2.DetokenizeRequest(tokens=[1]),
        "ApplyTemplateRequest": pb2.ApplyTemplateRequest(messages=[turn]),
    }


def call(server, method, data):
    """(code, field at fault, text) of a call with these bytes."""
    stub = server.channel.unary_unary(SERVICE + method)
    try:
        stub(data, timeout=120)
    except grpc.RpcError as error:
        told = dict(error.trailing_metadata() or ())
        field = told.get("baton-error-param", "")
        is_field_at_fault = field and error.code() != grpc.StatusCode.DEADLINE_EXCEEDED
        if is_field_at_fault and len(error.details()) <= 1024:
            assert field.encode() in told["grpc-status-details-bin"], "google.rpc.BadRequest"
        return error.code(), field, error.details()
    return grpc.StatusCode.OK, "", ""


def is_served_number(schema, field, value):
    """Whether HTTP's description allows the number that the message carries."""
    if value is None or field.cpp_type == field.CPPTYPE_BOOL:
        return None
    if field.cpp_type != field.CPPTYPE_FLOAT:
        bits = 64 if field.cpp_type == field.CPPTYPE_INT64 else 32
        value &= 2**bits - 1  # as protobuf keeps it
        value -= 2**bits if value >= 2 ** (bits - 1) else 0
    return value == value and field_cases.is_described(schema, value)


def names(field, param, text):
    """Whether the error is about the field, something within it, or the object that it is in."""
    known = {field, SAME.get(field, field)}
    if param.split(".")[0].split("[")[0] in known:
        return True
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) for name in known)


def test_a_sentence_with_the_letters_of_a_field_does_not_name_it():
    assert not names("n", "", "the token is invalid")
    assert names("n", "", "'n' must be at least 1") and names("n", "n", "")


def fault_of(server, method, good, schemas, case):
    field, what, data, value = case
    code, param, text = call(server, method, good + data)
    said = f"{method} {field.name} = {what}: {code.name} {param} {text}"[:300]
    if value == proto_cases.UNREADABLE and code == grpc.StatusCode.OK:
        return "read: " + said
    if field.name == param == "timeout_ms" and code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return None
    if field.name == "model" and code == grpc.StatusCode.NOT_FOUND:
        return None
    if code == grpc.StatusCode.OK:
        is_out = field.name in schemas and (
            is_served_number(schemas[field.name], field, value) is False
        )
        return "taken: " + said if is_out else None
    if code != grpc.StatusCode.INVALID_ARGUMENT:
        return "status: " + said
    return None if names(field.name, param, text) else "not named: " + said


def test_every_field_of_every_message_refuses_by_its_name(bare_server):
    pb2, _ = generated_stubs()
    document = bare_server.get("/openapi.json")[2]
    before = processes(bare_server)
    faults, count = [], 0
    for name, method, path in CALLS:
        good = good_messages(pb2)[name]
        schemas = field_cases.fields_of(document, path) if path else {}
        cases = list(proto_cases.cases(good))
        count += len(cases)
        data = good.SerializeToString()
        calls = [
            lambda c=c, m=method, d=data, s=schemas: fault_of(bare_server, m, d, s, c)
            for c in cases
        ]
        faults += [fault for fault in in_parallel(calls, AT_ONCE) if fault]
    print(count, "calls")
    assert not faults, f"{len(faults)}:\n" + "\n".join(faults[:60])
    assert processes(bare_server) == before
    for name, method, _ in CALLS:
        good = good_messages(pb2)[name].SerializeToString()
        assert call(bare_server, method, good)[0] == grpc.StatusCode.OK, method
