#!/usr/bin/env python3
"""Streams one answer over gRPC and prints how long each token took from the router's view.

    examples/chat_grpc.py [--address HOST:PORT] [QUESTION]

Needs: python3 -m venv venv && venv/bin/pip install grpcio grpcio-tools. The stubs are generated
on the fly.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import grpc
from grpc_tools import protoc

parser = argparse.ArgumentParser(description="Streams one answer over gRPC.")
parser.add_argument("--address", default="127.0.0.1:7070", help="default: %(default)s")
parser.add_argument("question", nargs="*", help="words of the question")
args = parser.parse_args()
protos = Path(__file__).resolve().parents[1] / "proto"
stubs = tempfile.mkdtemp()
protoc.main(
    [
        "protoc",
        f"-I{protos}",
        f"--python_out={stubs}",
        f"--grpc_python_out={stubs}",
        "baton/v1/inference.proto",
    ]
)
sys.path.insert(0, stubs)
from baton.v1 import inference_pb2, inference_pb2_grpc  # noqa: E402

question = " ".join(args.question) or "Why is the sky blue?"
chat = inference_pb2_grpc.ChatServiceStub(grpc.insecure_channel(args.address))
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
