"""A generated Python client, reflection and health."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from google.protobuf.descriptor_pool import DescriptorPool

from baton_server import complete, generated_stubs


@pytest.fixture(scope="module")
def stubs(server):
    pb2, pb2_grpc = generated_stubs()
    return pb2, pb2_grpc.ChatServiceStub(server.channel), pb2_grpc.ModelServiceStub(server.channel)


def question(pb2, **extra):
    return pb2.ChatCompletionRequest(
        messages=[pb2.ChatMessage(role="user", content="Why is the sky blue?")],
        temperature=0,
        max_completion_tokens=32,
        **extra,
    )


def test_stream_equals_unary(stubs):
    pb2, chat, _ = stubs
    whole = chat.ChatCompletion(question(pb2), timeout=120)
    chunks = list(chat.StreamChatCompletion(question(pb2), timeout=120))
    assert "".join(c.choices[0].delta.content for c in chunks) == whole.choices[0].message.content
    assert [c.token_index for c in chunks] == list(range(whole.usage.completion_tokens))
    usages = [chunks[-1].usage, whole.usage]
    for usage in usages:  # what is cached by now is all that may differ
        usage.ClearField("prompt_tokens_details")
    assert usages[0] == usages[1]
    assert chunks[-1].timings.path == "disagg"
    assert all(c.server_times.sent_unix_us >= c.server_times.received_unix_us for c in chunks)


def test_models_and_tokens(stubs):
    pb2, _, models = stubs
    assert [m.id for m in models.ListModels(pb2.ListModelsRequest()).data] == ["smollm2:135m"]
    tokens = models.Tokenize(pb2.TokenizeRequest(content="Hello world")).tokens
    assert models.Detokenize(pb2.DetokenizeRequest(tokens=tokens)).content == "Hello world"
    prompt = models.ApplyTemplate(
        pb2.ApplyTemplateRequest(messages=[pb2.ChatMessage(role="user", content="Hi")])
    ).prompt
    assert prompt.endswith("<|im_start|>assistant\n")


def test_errors_have_codes(stubs):
    pb2, chat, _ = stubs
    for request, code in [
        (question(pb2, top_p=2.0), grpc.StatusCode.INVALID_ARGUMENT),
        (question(pb2, model="other"), grpc.StatusCode.NOT_FOUND),
        (pb2.ChatCompletionRequest(), grpc.StatusCode.INVALID_ARGUMENT),
    ]:
        with pytest.raises(grpc.RpcError) as error:
            chat.ChatCompletion(request, timeout=60)
        assert error.value.code() == code
    with pytest.raises(grpc.RpcError) as error:
        chat.ChatCompletion(
            pb2.ChatCompletionRequest(
                messages=[pb2.ChatMessage(role="user", content="Tell me a long story")],
                ignore_eos=True,
                max_completion_tokens=4000,
            ),
            timeout=0.5,
        )
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_reflection_and_health(server):
    names = ProtoReflectionDescriptorDatabase(server.channel).get_services()
    for name in ("ChatService", "CompletionService", "EmbeddingService", "ModelService"):
        assert f"baton.v1.{name}" in names
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(server.channel))
    method = pool.FindServiceByName("baton.v1.ChatService").FindMethodByName("ChatCompletion")
    assert method.input_type.full_name == "baton.v1.ChatCompletionRequest"
    # Everything that is listed can be resolved, by tools that know it from here alone.
    for name in names:
        if not name.startswith("grpc.reflection."):
            assert pool.FindServiceByName(name).methods, name
    health = health_pb2_grpc.HealthStub(server.channel)
    assert (
        health.Check(health_pb2.HealthCheckRequest()).status
        == health_pb2.HealthCheckResponse.SERVING
    )


def test_completion_stream_counts_every_token(server):
    answer = complete(
        server, prompt="Once upon a time", max_tokens=20, temperature=0, ignore_eos=True, logprobs=2
    )
    assert len(answer.tokens[0]) == 20 == answer.usage.completion_tokens
    assert len(answer.logprobs[0]) == 20
