"""Programs that are no libraries: grpcurl, buf, guidellm and aiperf, each as its users run it.

Environment: BATON_CLIENTS_TOOLS, a folder with these programs (links will do); what is missing
there is skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import Sky, model_path

GRPCURL = pytest.mark.client("grpcurl")
BUF = pytest.mark.client("npm:@bufbuild/buf")
GUIDELLM = pytest.mark.client("guidellm")
AIPERF = pytest.mark.client("aiperf")
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]


def program(name):
    path = Path(os.environ.get("BATON_CLIENTS_TOOLS", "/none")) / name
    if not path.exists():
        pytest.skip(f"BATON_CLIENTS_TOOLS has no {name}")
    return path.absolute()


def objects_of(text):
    """The JSON objects that stand one after another in a text."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text.rstrip()):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return found


@pytest.fixture(name="grpcurl")
def fixture_grpcurl(server):
    """Runs it, and says what it printed; all that it knows of Baton it asks the server for."""
    path = program("grpcurl")

    def run(*args, fields=None, fails=False):
        before, target = ([], args) if fields is None else (["-d", json.dumps(fields)], args)
        command = [path, "-plaintext", "-emit-defaults", *before, server.grpc, *target]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture(name="ask")
def fixture_ask(server, grpcurl):
    """Asks for an answer, amid which a worker dies when workers are killed."""

    def run(method, **fields):
        fields = dict(temperature=0, max_tokens=60, **fields)
        key = f"baton.v1/{method} {json.dumps(fields, sort_keys=True)}"
        name = f"grpcurl-{os.urandom(8).hex()}"
        with server.killing(key, name):
            text = grpcurl(f"baton.v1.{method}", fields={**fields, "request_id": name})
        answers = objects_of(text)
        timings = [a["timings"] for a in answers if a.get("timings")]
        server.count("Stream" in method, timings)
        texts, calls, finish = "", "", ""
        for answer in answers:
            for choice in answer["choices"]:
                part = choice.get("delta") or choice.get("message") or choice
                texts += part.get("content") or part.get("text") or ""
                for call in part.get("tool_calls") or []:
                    calls += call["function"]["name"] + call["function"]["arguments"]
                finish = choice.get("finish_reason") or finish
        usage = answers[-1]["usage"]["completion_tokens"]
        said = dict(text=texts, calls=calls, finish=finish, completion_tokens=usage)
        server.compare(key, json.dumps(said, sort_keys=True))
        return said

    return run


@GRPCURL
def test_grpcurl_finds_the_services_and_their_fields(grpcurl):
    services = {"baton.v1.ChatService", "baton.v1.ModelService", "grpc.health.v1.Health"}
    assert services <= set(grpcurl("list").split())
    assert "rpc StreamChatCompletion" in grpcurl("describe", "baton.v1.ChatService")
    assert "response_format" in grpcurl("describe", "baton.v1.ChatCompletionRequest")
    health = json.loads(grpcurl("grpc.health.v1.Health/Check", fields={}))
    assert health["status"] == "SERVING"
    (model,) = json.loads(grpcurl("baton.v1.ModelService/ListModels", fields={}))["data"]
    assert model["id"] == "smollm2:135m"


@GRPCURL
def test_grpcurl_streams_what_it_gets_whole(ask):
    whole = ask("ChatService/ChatCompletion", messages=MESSAGES)
    assert whole["text"] and ask("ChatService/StreamChatCompletion", messages=MESSAGES) == whole
    prompt = "The capital of France is"
    whole = ask("CompletionService/Complete", prompt=prompt)
    assert "Paris" in whole["text"]
    assert ask("CompletionService/StreamComplete", prompt=prompt) == whole


@GRPCURL
def test_grpcurl_gets_a_type_and_a_call(ask):
    schema = json.dumps(Sky.model_json_schema())
    form = dict(type="json_schema", strict=True, json_schema=schema)
    whole = ask("ChatService/ChatCompletion", messages=MESSAGES, response_format=form)
    Sky.model_validate_json(whole["text"])
    stream = ask("ChatService/StreamChatCompletion", messages=MESSAGES, response_format=form)
    assert stream == whole
    tool = dict(type="function", function=dict(name="sky", parameters=schema, strict=True))
    fields = dict(messages=MESSAGES, tools=[tool], tool_choice="required")
    fields["parallel_tool_calls"] = False
    whole = ask("ChatService/ChatCompletion", **fields)
    assert whole["finish"] == "tool_calls"
    Sky.model_validate_json(whole["calls"].removeprefix("sky"))
    assert ask("ChatService/StreamChatCompletion", **fields)["calls"] == whole["calls"]


@GRPCURL
def test_grpcurl_is_told_which_field_is_wrong(grpcurl):
    fields = dict(messages=MESSAGES, top_p=7)
    said = grpcurl("baton.v1.ChatService/ChatCompletion", fields=fields, fails=True)
    assert "InvalidArgument" in said and "top_p" in said


@pytest.fixture(name="buf")
def fixture_buf(server):
    """Runs `buf curl`, which asks the server for its services; says what it printed."""
    folder = Path(os.environ.get("BATON_CLIENTS_NODE", "/none")) / "node_modules"
    path = folder / "@bufbuild/buf-linux-x64/bin/buf"
    if not path.exists():
        pytest.skip("BATON_CLIENTS_NODE has no @bufbuild/buf")

    def run(method, fails=False, **fields):
        command = [path, "curl", "--protocol", "grpc", "--http2-prior-knowledge"]
        command += ["--data", json.dumps(fields), f"http://{server.grpc}/baton.v1.{method}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else objects_of(done.stdout)

    return run


@BUF
def test_buf_streams_what_it_gets_whole(buf):
    (model,) = buf("ModelService/ListModels")[0]["data"]
    assert model["id"] == "smollm2:135m"
    fields = dict(messages=MESSAGES, temperature=0, max_tokens=40)
    (whole,) = buf("ChatService/ChatCompletion", **fields)
    chunks = buf("ChatService/StreamChatCompletion", **fields)
    deltas = [c["choices"][0].get("delta", {}).get("content", "") for c in chunks if "choices" in c]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"] != ""
    assert "top_p" in buf("ChatService/ChatCompletion", fails=True, messages=MESSAGES, top_p=7)


@pytest.fixture(name="tokenizer", scope="module")
def fixture_tokenizer(tmp_path_factory):
    """A folder with the model's tokenizer as Hugging Face keeps it: both programs load one."""
    from gguf import GGUFReader
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    reader = GGUFReader(model_path())
    tokens, merges = (
        reader.get_field(f"tokenizer.ggml.{name}").contents() for name in ("tokens", "merges")
    )
    made = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
        )
    )
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False)])
    made.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


PROMPTS = ("Why is the sky blue?", "Count to three.", "Name a fish.", "What is tea?")
NUM_REQUESTS, MAX_TOKENS = 8, 16


def run_load(command, folder):
    env = {**os.environ, "HF_HOME": str(folder), "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@GUIDELLM
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_guidellm_measures_a_load_without_an_error(server, tokenizer, tmp_path, stream):
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps(dict(prompt=prompt)) + "\n" for prompt in PROMPTS * 2)
    )
    backend = dict(
        kind="openai_http", target=server.http, model="smollm2:135m", stream=stream,
        max_tokens=MAX_TOKENS, extras=dict(body=dict(temperature=0)),
    )  # fmt: skip
    parts = dict(
        backend=backend,
        tokenizer=dict(kind="hf_auto", model=str(tokenizer)),
        profile=dict(kind="concurrent", streams=[2]),
        data=dict(kind="json_file", path="prompts.jsonl"),
        constraint=dict(kind="max_requests", count=NUM_REQUESTS),
        output=dict(kind="json", path="report.json"),
    )
    flags = [text for name, part in parts.items() for text in (f"--{name}", json.dumps(part))]
    run_load([program("guidellm"), "run", "--disable-console", *flags], tmp_path)
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    made = benchmark["metrics"]["request_totals"]
    assert made["successful"] == NUM_REQUESTS and made["errored"] == 0
    assert benchmark["metrics"]["output_token_count"]["successful"]["max"] <= MAX_TOKENS


@AIPERF
@pytest.mark.parametrize("kind, stream", [("chat", False), ("chat", True), ("completions", True)])
def test_aiperf_measures_a_load_without_an_error(server, tokenizer, tmp_path, kind, stream):
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps(dict(text=prompt)) + "\n" for prompt in PROMPTS)
    )
    run_load(
        [
            program("aiperf"), "profile", "--model", "smollm2:135m", "--url", server.http,
            "--endpoint-type", kind, *["--streaming"] * stream, "--tokenizer", tokenizer,
            "--use-server-token-count", "--input-file", "prompts.jsonl",
            "--custom-dataset-type", "single_turn", "--request-count", str(NUM_REQUESTS),
            "--concurrency", "2", "--extra-inputs", "temperature:0",
            "--extra-inputs", f"max_tokens:{MAX_TOKENS}",
            # Two of the prompts end at once as completions; aiperf counts empty texts as errors.
            "--extra-inputs", "ignore_eos:true", "--ui", "none", "--no-gpu-telemetry",
            "--no-server-metrics", "--workers-max", "1", "--output-artifact-dir", "out",
        ],
        tmp_path,
    )  # fmt: skip
    (report,) = (tmp_path / "out").glob("**/profile_export_aiperf.json")
    report = json.loads(report.read_text())
    assert report["request_count"]["avg"] == NUM_REQUESTS
    assert not (report.get("error_summary") or [])
    assert report["output_sequence_length"]["max"] <= MAX_TOKENS
