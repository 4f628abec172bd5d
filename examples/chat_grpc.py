#!/usr/bin/env python3
"""Streams one answer over gRPC and prints how long each token took from the router's view.

Needs: pip install grpcio grpcio-tools. Run from the repository root; stubs are generated on
the fly.
"""

import sys
import tempfile

import grpc
from grpc_tools import protoc

stubs = tempfile.mkdtemp()
protoc.main(
    [
        "protoc",
        "-Iproto",
        f"--python_out={stubs}",
        f"--grpc_python_out={stubs}",
        "baton/v1/inference.proto",
    ]
)
sys.path.insert(0, stubs)
from baton.v1 import inference_pb2, inference_pb2_grpc  # noqa: E402

question = " ".join(sys.argv[1:]) or "Why is the sky blue?"
chat = inference_pb2_grpc.ChatServiceStub(grpc.insecure_channel("127.0.0.1:7070"))
request = inference_pb2.ChatCompletionRequest(
    messages=[inference_pb2.ChatMessage(role="user", content=question)],
    temperature=0,
    max_completion_tokens=100,
)
last_us = None
for chunk in chat.StreamChatCompletion(request):
    now_us = chunk.server_times.token_unix_us
    gap = "first" if last_us is None else f"{(now_us - last_us) / 1000:.1f} ms"
    print(f"{chunk.token_index:4d} {gap:>9} {chunk.choices[0].delta.content!r}")
    last_us = now_us
print(chunk.timings)
