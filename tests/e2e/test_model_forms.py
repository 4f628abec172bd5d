"""One model in every form that --model takes: the same bits from a GGUF file, its parts and a
Hugging Face folder, whether prefill and decode share a process or not."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from baton_server import BIN, Server, complete
from packed_folder import pack_folder, read, write

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# At every commit one of each family of layers and one of each way that blocks are packed.
ARCHITECTURES = [
    "llama_linear",
    "llama_yarn",
    "llama_llama3",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma3",
    "smollm3",
    "granite",
    "lfm2",
    "gemma4",
    "gemma4_dense",
    "gptoss",
    "gptoss_mxfp4",
    "phi3",
    "olmo2",
    "mistral3",
    "lfm2moe",
    "deepseek2",
    "deepseek2_lite",
    "qwen35",
    "qwen35moe",
    "nemotron_h",
    "nemotron_h_plain",
]


WEIGHT_TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k"]
WEIGHT_TYPES += ["q6_k", "mxfp4", "mixed_rope", "qwen3moe_q8_0", "lfm2_q8_0", "gemma4_q8_0"]
WEIGHT_TYPES += ["q3_k", "q2_k", "iq4_nl", "iq4_xs", "qwen3moe_mxfp4", "phi3_short"]
WEIGHT_TYPES += ["nvfp4", "deepseek2_q8_0", "qwen35_q8_0", "qwen35moe_q8_0", "nemotron_h_q8_0"]


def requests():
    text = "hello world, he said: 1 + 2 = "
    return [
        dict(prompt=text, max_tokens=24, temperature=0, ignore_eos=True, logprobs=3),
        dict(prompt=text * 8, max_tokens=12, temperature=0.8, seed=7, ignore_eos=True, logprobs=3),
        dict(prompt_token_ids=list(range(3, 263)), max_tokens=8, temperature=0, ignore_eos=True),
    ]


def answers(model, *args):
    with Server("--kv-memory", "16MiB", *args, model=str(model)) as server:
        return [complete(server, **fields) for fields in requests()]


LONG = {"llama_yarn", "llama_llama3", "qwen2", "qwen3", "granite", "gemma4_dense", "gptoss"}
LONG |= {"olmo2", "mistral3", "deepseek2_lite", "f16", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k"}
LONG |= {"lfm2_q8_0", "gemma4_q8_0", "q3_k", "iq4_nl", "deepseek2_q8_0", "qwen35_q8_0"}
LONG |= {"qwen35moe_q8_0", "nemotron_h_plain", "nemotron_h_q8_0"}


def forms(names):
    return [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in names]


@pytest.mark.parametrize("name", forms(ARCHITECTURES))
def test_a_folder_over_two_processes_gives_the_bits_of_its_file_in_one(name):
    local = answers(GOLDEN / f"tiny_{name}.gguf", "--mode", "aggregated")
    remote = answers(GOLDEN / f"tiny_{name}")
    assert [a.timings.path for a in local] == ["local"] * 3
    assert [a.timings.path for a in remote] == ["disagg"] * 3
    assert all(a.timings.kv_bytes > 0 for a in remote)
    assert [a.bits() for a in remote] == [a.bits() for a in local]
    assert all(len(a.tokens[0]) >= 8 for a in local)


@pytest.mark.parametrize("name", forms(WEIGHT_TYPES))
def test_disaggregated_equals_aggregated_for_each_weight_type(name):
    model = GOLDEN / f"tiny_{name}.gguf"
    local = answers(model, "--mode", "aggregated")
    remote = answers(model)
    assert [a.timings.path for a in remote] == ["disagg"] * 3
    assert [a.bits() for a in remote] == [a.bits() for a in local]


@pytest.mark.parametrize(
    "method, becomes", [("awq", "Q5_0"), ("gptq", "Q5_0"), ("compressed-tensors", "Q4_0")]
)
def test_a_packed_folder_is_served_and_described(tmp_path, method, becomes):
    folder = tmp_path / "packed"
    pack_folder(GOLDEN / "tiny_llama_linear", folder, method)
    inspected = subprocess.run([BIN, "inspect", folder], capture_output=True, text=True, timeout=60)
    assert inspected.returncode == 0, inspected.stderr
    assert f"packed        {method}: " in inspected.stdout
    assert f"as {becomes}" in inspected.stdout
    local = answers(folder, "--mode", "aggregated")
    remote = answers(folder)
    assert [a.timings.path for a in remote] == ["disagg"] * 3
    assert [a.bits() for a in remote] == [a.bits() for a in local]
    written = tmp_path / "written.gguf"
    subprocess.run([BIN, "convert", folder, written, "--type", "bf16"], check=True, timeout=60)
    assert all(len(a.tokens[0]) >= 8 for a in answers(written, "--mode", "aggregated"))
    tensors = read(folder / "model.safetensors")
    scales = "weight_scale" if method == "compressed-tensors" else "scales"
    missing = f"model.layers.1.mlp.up_proj.{scales}"
    tensors.pop(missing)
    write(folder / "model.safetensors", tensors)
    refused = subprocess.run([BIN, "inspect", folder], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "model.layers.1.mlp.up_proj" in refused.stderr and "no scales" in refused.stderr


def test_parts_and_a_converted_folder_are_the_model_too(tmp_path):
    whole = [a.bits() for a in answers(GOLDEN / "tiny_qwen2.gguf", "--mode", "aggregated")]
    split = answers(GOLDEN / "tiny_split-00001-of-00003.gguf")
    assert [a.bits() for a in split] == whole
    written = tmp_path / "written.gguf"
    subprocess.run([BIN, "convert", GOLDEN / "tiny_qwen2", written], check=True, timeout=60)
    assert [a.bits() for a in answers(written)] == whole


def test_a_file_at_the_limit_of_files_is_an_error_that_leaves_nothing(tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    done = subprocess.run(
        [BIN, "convert", GOLDEN / "tiny_qwen2", tmp_path / "written.gguf"],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limited,
    )
    assert done.returncode == 1 and "File too large" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_called_like_its_folder(tmp_path):
    folder = tmp_path / "my-model"
    shutil.copytree(GOLDEN / "tiny_gemma3", folder)
    with Server("--mode", "aggregated", model=str(folder) + os.sep) as server:
        status, _, models = server.get("/v1/models")
        assert status == 200
        assert [row["id"] for row in models["data"]] == ["my-model"]


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "config.json"),
    ],
)
def test_a_broken_folder_is_one_clear_error(tmp_path, spoil, words):
    folder = tmp_path / "broken"
    shutil.copytree(GOLDEN / "tiny_qwen2", folder)
    spoil(folder)
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--model", folder]
    result = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert words in result.stderr.splitlines()[-1]
    inspected = subprocess.run([BIN, "inspect", folder], capture_output=True, text=True, timeout=60)
    assert inspected.returncode == 1
    assert inspected.stderr.count("\n") == 1 and words in inspected.stderr


@pytest.mark.parametrize("template, words", [("{% for %}", "is not broken"), (None, "has a chat")])
def test_a_model_without_a_usable_template_serves_texts_and_says_so(tmp_path, template, words):
    folder = tmp_path / "no-chat"
    shutil.copytree(GOLDEN / "tiny_qwen2", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with Server("--mode", "aggregated", model=str(folder)) as server:
        said = Path(server.dir, "serve.out")
        text = said.read_text()
        assert "warning: chat requests will be refused" in text and words in text
        assert text.index("warning:") < text.index(" is ready:"), "before clients know of it"
        messages = [{"role": "user", "content": "hi"}]
        status, _, answer = server.post("/v1/chat/completions", {"messages": messages})
        assert status == 400 and words in answer["error"]["message"]
        status, _, _ = server.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})
        assert status == 200
        ready = next(line for line in text.splitlines() if " is ready: " in line)
        assert "  no chats  page http" in ready and "chat page" not in ready
        chat = baton("chat", "--url", server.http, input="hi\n")
        assert_no_chats(chat, "chat", words)
    assert_no_chats(baton("run", folder, input="hi\n"), "run", words)


def baton(*args, **options):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=120, **options)


def assert_no_chats(result, command, words):
    """The command has refused before a prompt, by one line that names the ways out."""
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith(f"baton {command}: no chats with ") and words in result.stderr
    assert "/v1/completions" in result.stderr and "`baton run smollm2:135m`" in result.stderr
