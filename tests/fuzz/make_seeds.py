"""Writes the hand-made seeds of tests/fuzz/corpus; inputs that a search found are kept beside them.

Usage: python3 tests/fuzz/make_seeds.py     (needs protoc, and nothing else)
"""

import json
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
GOLDEN = ROOT / "tests/golden"
NEXT = b"\n%%%%\n"  # kNextFile of input_bytes.h


def put(target, name, *parts):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    data = [p if isinstance(p, bytes) else p.encode() for p in parts]
    (folder / name).write_bytes(NEXT.join(data))


# ---- GGUF


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(keys, tensors=(), version=3):
    """A file of string keys and F32 tensors of zeros (name, dims)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for key, (kind, payload) in keys.items():
        out += gguf_text(key) + struct.pack("<I", kind) + payload
    offset, data = 0, b""
    for name, dims in tensors:
        size = 4
        for dim in dims:
            size *= dim
        out += gguf_text(name) + struct.pack("<I", len(dims))
        out += b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", 0, offset)
        padded = (size + 31) // 32 * 32
        data += bytes(padded)
        offset += padded
    return out + bytes(-len(out) % 32) + data if tensors else out


def string(text):
    return 8, gguf_text(text)


def u32(value):
    return 4, struct.pack("<I", value)


def strings(texts):
    return 9, struct.pack("<IQ", 8, len(texts)) + b"".join(gguf_text(t) for t in texts)


def metadata_only(data):
    """The GGUF file `data` with its keys and without its tensors."""
    num_keys = struct.unpack_from("<Q", data, 16)[0]
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def skip(at, kind):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind != 9:
            return at + sizes[kind]
        element, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip(at, element)
        return at

    for _ in range(num_keys):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at = skip(at + 4, struct.unpack_from("<I", data, at)[0])
    return data[:8] + struct.pack("<Q", 0) + data[16:at]


def gguf_seeds():
    tiny = (GOLDEN / "tiny_converted_q4_0.gguf").read_bytes()
    put("gguf", "tiny_llama", tiny)
    put("gguf", "tiny_llama_keys", metadata_only(tiny))
    gemma = metadata_only((GOLDEN / "tiny_gemma3.gguf").read_bytes())
    put("gguf", "tiny_gemma3_keys", gemma)
    put("gguf", "empty_file_of_version_3", gguf({}))
    put("gguf", "empty_file_of_version_2", gguf({}, version=2))
    put("gguf", "two_tensors", gguf({"a": u32(1)}, [("x", [8]), ("y", [4, 2])]))
    put("gguf", "huge_counts", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63))
    nested = 9, struct.pack("<IQ", 9, 2) + struct.pack("<IQ", 4, 0) * 2
    put("gguf", "array_of_arrays", gguf({"a": nested}))
    put("gguf", "other_alignment", gguf({"general.alignment": u32(64)}, [("x", [8])]))
    spm = {
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.tokens": strings(["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a"]),
        "tokenizer.ggml.scores": (9, struct.pack("<IQ6f", 6, 6, 0, 0, 0, -1, -2, -3)),
        "tokenizer.ggml.token_type": (9, struct.pack("<IQ6i", 5, 6, 2, 3, 3, 1, 1, 1)),
    }
    put("gguf", "spm_tokenizer", gguf(spm))
    parts = [
        (GOLDEN / f"tiny_split-0000{i}-of-00003.gguf").read_bytes() for i in (1, 2, 3)
    ]
    put("gguf_split", "tiny_three_parts", *parts)

    def part(no, tensors, **more):
        keys = {
            "split.no": (2, struct.pack("<H", no)),
            "split.count": (2, struct.pack("<H", 3)),
            "split.tensors.count": (5, struct.pack("<i", 3)),
        }
        return gguf({**keys, **more}, tensors)

    small = [part(i, [(f"t{i}", [8])]) for i in range(3)]
    put("gguf_split", "small_three_parts", *small)
    put("gguf_split", "last_part_missing", *small[:2])
    put("gguf_split", "a_part_twice", small[0], small[1], small[1])
    put("gguf_split", "not_split", gguf({"a": u32(1)}, [("x", [8])]))


# ---- Hugging Face folders


def safetensors(tensors, metadata=None, fill=b"\0"):
    """tensors: name -> (dtype, shape[, data]); without data every byte is `fill`."""
    header, offset, data = {}, 0, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, *given) in tensors.items():
        size = {"F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1, "U8": 1, "I8": 1}.get(dtype, 2)
        for dim in shape:
            size *= dim
        data += given[0] if given else fill * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "vocab_size": 32,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


def llama_tensors():
    layer = "model.layers.0."
    square = ("BF16", [32, 32])
    tensors = {"model.embed_tokens.weight": square, "model.norm.weight": ("BF16", [32])}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[layer + name + ".weight"] = ("BF16", [32])
    for name in ("q", "k", "v", "o"):
        tensors[f"{layer}self_attn.{name}_proj.weight"] = square
    for name in ("gate", "up", "down"):
        tensors[f"{layer}mlp.{name}_proj.weight"] = square
    return tensors


def fp8_seeds():
    for method, suffix, scale in (
        ("fbgemm_fp8", "_scale", ("F32", [32, 1])),
        ("compressed-tensors", "_scale", ("BF16", [])),
        ("fp8", "_scale_inv", ("F32", [1, 1])),
    ):
        tensors = {}
        for name, (dtype, shape) in llama_tensors().items():
            is_coded = name.endswith("_proj.weight")
            tensors[name] = ("F8_E4M3", shape) if is_coded else (dtype, shape)
            if is_coded:
                tensors[name + suffix] = scale
        config = {**CONFIG, "quantization_config": {"quant_method": method}}
        data = safetensors(tensors, fill=b"\x3c")  # a scale of 0.0115
        put("model_folder", method, json.dumps(config), "", data)
    put("safetensors", "fp8", data)


def packed_seeds():
    """Projections [32, 32] as packed integers, a group a row."""
    words, scales = ("I32", [4, 32]), ("F16", [1, 32])
    kinds = {"num_bits": 4, "type": "int", "strategy": "channel"}
    forms = {
        "awq": (
            {"bits": 4, "group_size": 32, "version": "gemm"},
            {"qweight": ("I32", [32, 4]), "qzeros": ("I32", [1, 4]), "scales": scales},
        ),
        "gptq": (
            {"bits": 4, "group_size": -1, "dynamic": {"-:.*up_proj": {}}},
            {"qweight": words, "qzeros": ("I32", [1, 4]), "scales": scales,
             "g_idx": ("I32", [32], bytes(128))},
        ),
        "compressed-tensors_packed": (
            {"format": "pack-quantized", "config_groups": {"group_0": {"weights": kinds}}},
            {"weight_packed": ("I32", [32, 4]), "weight_scale": ("BF16", [32, 1]),
             "weight_shape": ("I64", [2], struct.pack("<qq", 32, 32))},
        ),
    }
    for form, (description, parts) in forms.items():
        tensors = {}
        for name, kind in llama_tensors().items():
            if not name.endswith("_proj.weight"):
                tensors[name] = kind
                continue
            module = name[: -len("weight")]
            tensors.update({module + part: of_part for part, of_part in parts.items()})
        method = {"quant_method": form.split("_")[0], **description}
        config = {**CONFIG, "quantization_config": method}
        data = safetensors(tensors, fill=b"\x1c")
        put("model_folder", form, json.dumps(config), "", data)
    put("safetensors", "integers", data)


def folder_seeds():
    tensors = llama_tensors()
    fp8_seeds()
    packed_seeds()
    put("model_folder", "llama", json.dumps(CONFIG), "", safetensors(tensors))
    names = list(tensors)
    first, second = dict(list(tensors.items())[:5]), dict(list(tensors.items())[5:])
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {n: files[0 if n in first else 1] for n in names}}
    put(
        "model_folder",
        "llama_in_two_files",
        json.dumps(CONFIG),
        json.dumps(index),
        safetensors(first),
        safetensors(second),
    )
    for name in ("tiny_llama_yarn", "tiny_llama_llama3", "tiny_gemma3", "tiny_qwen3moe"):
        config = (GOLDEN / name / "config.json").read_bytes()
        put("model_folder", name + "_config", config, "", safetensors(tensors))
    deep = '{"model_type":' + "[" * 2000 + "]" * 2000 + "}"
    put("model_folder", "deep_config", deep, "", safetensors({}))

    put("safetensors", "llama", safetensors(tensors))
    put("safetensors", "metadata", safetensors({"a": ("F32", [2])}, {"format": "pt"}))
    put("safetensors", "no_tensor", safetensors({}))
    put("safetensors", "huge_header", struct.pack("<Q", 2**63) + b"{}")
    gap = safetensors({"a": ("F16", [2, 2]), "b": ("F16", [2])})
    put("safetensors", "overlap", gap.replace(b"[8, 12]", b"[4, 8 ]"))
    put("safetensors", "key_twice", gap.replace(b'"b"', b'"a"'))


# ---- Tokenizers


def tokenizer_seeds():
    golden = json.loads((GOLDEN / "folder_golden.json").read_text())
    for name in ("llama_legacy", "llama_metaspace", "gemma", "qwen2", "smollm", "gpt2", "llama3"):
        entry = golden[name]
        text = json.dumps(entry["tokenizer_json"])
        if len(text) > 16000:
            text = json.dumps(smaller(entry["tokenizer_json"]))
        config = json.dumps(entry["tokenizer_config"])
        put("tokenizer_json", name, text, config, "", "", "Hello <s> you \u00e9")
    tiny = (GOLDEN / "tiny_llama_linear/tokenizer.json").read_bytes()
    config = (GOLDEN / "tiny_llama_linear/tokenizer_config.json").read_bytes()
    eos = '{"eos_token_id": [1, 2, 2]}'
    put("tokenizer_json", "tiny", tiny, config, eos, '{"bos_token_id": 1}', "the cat")
    lines = '{"version": "1.0", "added_tokens": [{"id": 0, "content": "a\\nb"}], "model": {}}'
    put("tokenizer_json", "name_of_two_lines", lines)
    huge = {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}
    put("tokenizer_json", "huge_id", json.dumps({"model": huge}))


def spec_seeds():
    """src/text/tokenizer_spec.cc has the form; numbers below 128 are one byte."""

    def text(value):
        return bytes([len(value)]) + value.encode()

    def tail(nfc=0, newest=b""):
        """Flags up to those of version 3, `newest` of version 4, and the templates."""
        template = text("{{ messages }}") + bytes([0])
        return bytes([1, 1, 0, 0, 0, 0, 0]) + newest + bytes([nfc]) + template

    ids = bytes([1, 1, 1, 2, 0, 0, 1, 0, 0])  # bos, eos, eot, eom, unk, pad
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    body = bytes([len(tokens)]) + b"".join(text(t) for t in tokens)
    scores = bytes([len(tokens)]) + struct.pack("<6f", 0, 0, 0, -1, -2, -3)
    types = bytes([6, 2, 1, 3, 2, 1, 3])
    spm = b"BTOK\3" + text("llama") + text("default") + body + scores + types
    put("tokenizer_spec", "spm", spm + bytes([0]) + ids + tail())
    gpt2 = text("gpt2") + text("gpt-2") + body + bytes([0])
    merges = bytes([1, 4, 5])
    put("tokenizer_spec", "bpe", b"BTOK\3" + gpt2 + bytes([0]) + merges + ids + tail())
    user_defined = bytes([6, 2, 1, 3, 2, 4, 3])
    traits = bytes([0, 0, 6, 0, 3, 11, 1, 4, 1, 8, 1])
    taking = b"BTOK\4" + gpt2 + user_defined + merges + ids + tail(1, traits)
    put("tokenizer_spec", "token_traits", taking)
    put("tokenizer_spec", "many_tokens", b"BTOK\3" + text("gpt2") + text("") + b"\xff\xff\x3f")
    put("tokenizer_spec", "other_version", b"BTOK\5")


def smaller(tokenizer):
    """Only the first tokens, and the merges among them."""
    model = dict(tokenizer["model"])
    by_id = sorted(model["vocab"].items(), key=lambda item: item[1])
    keep = {token for token, _ in by_id[:300]}
    model["vocab"] = {token: i for i, (token, _) in enumerate(by_id[:300])}
    merges = []
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        if left in keep and right in keep and left + right in keep:
            merges.append(merge)
    model["merges"] = merges
    added = []
    for i, entry in enumerate(tokenizer.get("added_tokens", [])):
        in_vocab = model["vocab"].get(entry["content"])
        added.append({**entry, "id": in_vocab if in_vocab is not None else 300 + len(added)})
    return {**tokenizer, "model": model, "added_tokens": added}


# ---- Messages between workers


def proto(message, text, file="worker"):
    return subprocess.run(
        ["protoc", f"--encode=baton.v1.{message}", f"-I{ROOT / 'proto'}", f"baton/v1/{file}.proto"],
        input=text.encode(),
        capture_output=True,
        check=True,
    ).stdout


HELLO = """worker { worker_id: "decode-0" incarnation: 7 } role: WORKER_ROLE_DECODE model: "toy"
fingerprint { wire_min: 1 wire_max: 1 layout_id: 3 weights_id: "w" numerics_id: "n" }
grpc_address: "127.0.0.1:1" kv_address: "127.0.0.1:2" max_context: 512 block_size: 16
num_blocks: 100 max_running: 8 vocab_size: 300 transports: TRANSPORT_KIND_SHM
transports: TRANSPORT_KIND_TCP"""
SPEC = """spec { uid { hi: 1 lo: 2 } attempt: 1 tokens: 1 tokens: 2 num_prompt_tokens: 2 n: 1
deadline_ms: 1000 tenant: "default" sampling { temperature: 1 top_p: 1 repetition_penalty: 1
max_tokens: 5 seed: 9 logit_bias { key: 5 value: 1.5 } stop_token_ids: 6 } }"""
KEY = "key { uid { hi: 1 lo: 2 } attempt: 2 transfer_id: 5 }"


def worker_seeds():
    def message(kind, name, encoded):
        put("worker_messages", name, bytes([kind]) + encoded)

    message(0, "hello", proto("WorkerHello", HELLO))
    many = HELLO + " transports: TRANSPORT_KIND_TCP" * 50
    message(0, "hello_of_many_transports", proto("WorkerHello", many))
    load = """ready: true running: 3 backlog_tokens: 77 blocks { total: 10 free: 5 bound: 5 }
    prefill_tokens_per_s: 500 step_us: 900 sequence_number: 4
    links { to: "decode-0" transport: TRANSPORT_KIND_SHM bytes_per_s: 1000 up: true }"""
    message(1, "load", proto("WorkerLoad", load))
    message(1, "load_nan", proto("WorkerLoad", "prefill_tokens_per_s: nan"))
    prefix = 'first_sequence: 9 links: "0123456789abcdef0123456789abcdef" removed: "\\002"'
    message(2, "prefix", proto("PrefixEvents", prefix))
    step = """events { uid { hi: 1 lo: 2 } attempt: 1 index: 3 token: 4 logprob: -0.5
    top_logprobs { token: 4 logprob: -0.5 } finish: WORKER_FINISH_STOP }"""
    message(3, "step", proto("StepEvents", step))
    status = """uid { hi: 1 lo: 2 } attempt: 1 state: REQUEST_STATE_VERIFIED code: 13
    message: "why" kv_bytes: 999 transport: TRANSPORT_KIND_TCP transfer_seconds: 0.5"""
    message(4, "status", proto("RequestStatus", status))
    failed = """uid { hi: 1 lo: 2 } attempt: 1 state: REQUEST_STATE_FAILED code: 13
    message: "why" failed_part: FAILED_PART_COMPUTATION"""
    message(4, "status_failed_part", proto("RequestStatus", failed))
    unknown = proto("RequestStatus", "state: REQUEST_STATE_FAILED") + bytes([12 << 3, 99])
    message(4, "status_unknown_part", unknown)
    message(4, "status_infinite", proto("RequestStatus", "transfer_seconds: inf kv_bytes: 1"))
    prefill = f"start_prefill {{ {SPEC} decode {{ worker_id: 'd' incarnation: 7 }} }}"
    message(5, "start_prefill", proto("RouterMessage", prefill))
    decode = f"start_decode {{ {SPEC} local: true }}"
    message(5, "start_decode_local", proto("RouterMessage", decode))
    embed = f"start_embedding {{ {SPEC} }}"
    message(5, "start_embedding", proto("RouterMessage", embed))
    message(5, "cancel", proto("RouterMessage", "cancel { uid { hi: 1 lo: 2 } attempt: 1 }"))
    handoff = {
        "grant": f"grant {{ {KEY} decode_incarnation: 9 generations: 7 generations: 8 "
        "layout_id: 11 expected_bytes: 256 ttl_ms: 10000 held_blocks: 1 }",
        "seal": f"seal {{ {KEY} first_tokens {{ choice: 0 token: 42 logprob: -1 }} "
        'next_output_index: 1 hash_chain: "0123456789abcdef" num_slices: 6 num_tokens: 40 }',
        "applied": f"applied {{ {KEY} }}",
        "nack": f"nack {{ {KEY} ordinals: 1 layers: 0 }}",
        "revoke": f'revoke {{ {KEY} reason: "full" from_decode: true }}',
        "revoke_failed_part": f"revoke {{ {KEY} failed_part: FAILED_PART_HAND_OFF }}",
        "revoke_with_lines": f'revoke {{ {KEY} reason: "a\\nb" }}',
        "renew": f"renew {{ {KEY} }}",
    }
    for name, text in handoff.items():
        message(6, name, proto("HandoffMessage", text, "handoff"))
    message(7, "placement", bytes(range(64)))


# ---- Data connections


def frame(kind, payload=b"", epoch=16, **fields):
    order = ("transfer", "attempt", "ordinal", "layer", "generation", "source")
    values = [fields.get(name, 0) for name in order]
    header = struct.pack("<IHBBQQIIIII", 0x564B5442, 1, kind, 0, epoch, *values)
    return header + struct.pack("<IQQ", len(payload), 0, 0) + payload


def frame_seeds():
    """The first byte holds the flags of ModeOf, the second the longest piece."""
    hello = struct.pack("<IIQQQQQIB", 1, 1, 7, 9, 0, 0, 0, 0, 0).ljust(56, b"\0")
    hello += bytes(32) + bytes([4]) + b"peer"
    hello = hello.ljust(160, b"\0")
    slices = b""
    for ordinal in range(2):
        for layer in range(2):
            place = {"transfer": 1, "attempt": 1, "ordinal": ordinal, "layer": layer}
            slices += frame(6, b"\1" * 256, generation=7 + ordinal, **place)
    control = frame(5, b"hello")
    close = frame(8, struct.pack("<I", 7))
    references = b"".join(
        frame(7, transfer=1, attempt=1, layer=layer, generation=7, source=3) for layer in range(2)
    )
    put("kv_frames", "stranger_says_hello", bytes([6, 3]) + frame(1, hello, 0))
    put("kv_frames", "stranger_sends_slices", bytes([6, 6]) + slices)
    put("kv_frames", "unmended_bytes", bytes([0, 5]) + hello + slices)
    put("kv_frames", "slices", bytes([7, 9]) + slices + control + close)
    put("kv_frames", "slices_given_up", bytes([39, 5]) + slices + control)
    put("kv_frames", "slices_of_bad_checksum", bytes([3, 13]) + slices)
    put("kv_frames", "dialled_slices", bytes([15, 7]) + slices + control)
    put("kv_frames", "dialled_stranger", bytes([14, 7]) + frame(2, hello + bytes(32), 16))
    put("kv_frames", "references", bytes([23, 8]) + references + control)
    wild = frame(7, transfer=1, attempt=1, generation=7, source=2**32 - 1)
    put("kv_frames", "reference_beyond", bytes([23, 8]) + wild + control)
    put("kv_frames", "long_control", bytes([7, 13]) + frame(5, b"x" * 2000) * 2)
    put("kv_frames", "promised_bytes", bytes([7, 4]) + frame(5)[:44] + b"\0\0\x40\0" + bytes(16))


# ---- Requests, answers, texts


def http_seeds():
    get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    post = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    chunks = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks += b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"
    put("http", "get", get)
    put("http", "pipeline", get + post + chunks + get)
    put("http", "chunks", chunks)
    put("http", "old_and_closing", b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n")
    both = post.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    put("http", "both_lengths", both)
    put("http", "length_twice", post.replace(b"Content", b"Content-Length: 5\r\nContent"))
    put("http", "expect", post.replace(b"Content", b"Expect: 100-continue\r\nContent"))
    put("http", "absolute", b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n")
    put("http", "folded", b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n")
    put("http", "bare_line_feed", b"GET / HTTP/1.1\nHost: a\n\n")
    put("http", "head", b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + get)
    put("http", "long_field", b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 3000 + b"\r\n\r\n")
    put("http", "long_chunk_extension", chunks.replace(b"a=b", b"a=" + b"b" * 3000))
    put("http", "body_too_large", post.replace(b": 5", b": 5000") + b"x" * 5000)


def openai_seeds():
    chat = {
        "model": "toy",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi <eos>"}]},
        ],
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 7,
        "n": 2,
        "stop": ["a", "b"],
        "stop_token_ids": [1],
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1, "6": -100},
        "logprobs": True,
        "top_logprobs": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "structured_outputs": {"choice": ["a", "b"]},
        "tools": [],
        "tool_choice": "none",
        "min_tokens": 1,
        "timeout_ms": 1000,
        "unknown": {"x": 1},
    }
    put("openai_json", "chat", b"\0" + json.dumps(chat).encode())
    small = '{"messages":[{"role":"user","content":"x"}]%s}'
    put("openai_json", "chat_small", "\0" + small % "")
    put("openai_json", "tiny_penalty", "\0" + small % ',"repetition_penalty":1e-60')
    put("openai_json", "bias_twice", "\0" + small % ',"logit_bias":{"5":1,"05":2}')
    schema = '{"type":"json_schema","json_schema":{"schema":{"type":"object"},"strict":true}}'
    put("openai_json", "schema", "\0" + small % (',"response_format":' + schema))
    put("openai_json", "two_forms", "\0" + small % ',"guided_regex":"a+","guided_json":"{}"')
    put("openai_json", "key_twice", "\0" + small % ',"n":1,"n":2')
    put("openai_json", "huge_number", "\0" + small % ',"max_tokens":1e300,"seed":1e19')
    completion = {"prompt": "hello", "max_tokens": 3, "echo": True, "best_of": 2, "logprobs": None}
    put("openai_json", "completion", b"\1" + json.dumps(completion).encode())
    put("openai_json", "completion_tokens", b'\1{"prompt":[1,2,3],"logprobs":2}')
    put("openai_json", "completion_alone", b'\1{"prompt":[[1,2]],"max_tokens":0,"echo":true}')
    put("openai_json", "deep", b"\1" + b'{"a":' + b"[" * 40 + b"]" * 40 + b"}")
    put("openai_json", "messages", b'\2[{"role":"user","content":"<user>\\u0000"}]')
    put("openai_json", "tokens", b"\3[1,2,256,195,169,5.0]")


def messages_seeds():
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1, None]}}
    text = {"type": "text", "text": "r"}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text]}
    whole = {
        "model": "toy",
        "max_tokens": 2000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: v=1; cch=2;\nbe brief"},
            {"type": "text", "text": "<eos>", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
            {"role": "assistant", "content": "It"},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        "output_config": {"effort": "low"},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["a", "b"],
        "temperature": 0.5,
        "top_k": 4,
        "stream": True,
        "unknown": {"x": 1},
    }
    put("messages_json", "whole", json.dumps(whole))
    small = '{"max_tokens":5,"messages":[{"role":"user","content":%s}]}'
    put("messages_json", "small", small % '"hi"')
    put("messages_json", "image", small % '[{"type":"image","source":{}}]')
    put("messages_json", "result_alone", small % json.dumps([result]))
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    put("messages_json", "form", json.dumps({**whole, "tools": [], "output_config": form}))
    forced = {**whole, "tool_choice": {"type": "tool", "name": "f"}}
    put("messages_json", "forced", json.dumps(forced))


def template_seeds():
    chatml = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    put("chat_template", "chatml", chatml, "system:be brief", "user:hi", "assistant:<think>")
    calls = "{{ messages[0]['content'].strip().split('a')[-1] | upper }}{{ strftime_now('%Y') }}"
    put("chat_template", "python_calls", calls, "user: banana ")
    put("chat_template", "raises", "{{ raise_exception('no') }}", "user:x")
    put("chat_template", "endless", "{% for i in range(100000000) %}{{ i }}{% endfor %}")
    put("chat_template", "recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "user:x")
    put("chat_template", "long_text", "{{ 'x' * 100000000 }}", "user:x")
    put("chat_template", "broken", "{% for m in %}{{ m")
    put("chat_template", "guards", "{{ messages[0].content }}", "user:\ufdd0<eos>\ufdd1")


def text_seeds():
    tokens = b"\xe2\x96\x81abc".ljust(12, b"\0") * 4
    put("detokenizer", "byte_tokens", b"\1\0\1\x10" + tokens)
    put("detokenizer", "spm_tokens", b"\1\1\0\x10" + tokens)
    put("detokenizer", "outside", b"\1\0\0\4\xff\xff\xff\xff\xff\xff\x01\0")
    put("detokenizer", "stops", b"\0\3\0\2\1ab\2bca" + b"ababcabca" * 3)
    put("detokenizer", "thoughts", b"\0\2\0\0 <think> a </think>\n b </think>")
    put("detokenizer", "open_thoughts", b"\0\2\1\0<think>a<think></think >b")
    put("detokenizer", "broken_utf8", b"\0\1\0\0\xf0\x9f\x98\xed\xa0\x80\xc0\xaf\xe4\xb8a\xff")


def tool_seeds():
    """The style (tool_style.h's number), the largest piece less one, whether calls are limited."""

    def put_answer(name, style, text, head=b"\3\0"):
        put("tool_parser", name, bytes([style]) + head + text.encode())

    call = '{"name": "f", "arguments": {"city": "Z\u00fc\\"", "o": {"a": [1, {}]}}}'
    tagged = f"I look.\n<tool_call>\n{call}\n</tool_call>\n"
    put_answer("plain", 0, tagged)
    put_answer("hermes", 1, tagged * 2 + "<tool_call>no</tool_call> <tool_")
    put_answer("hermes_limited", 1, tagged * 3 + "end", b"\0\1\0")
    put_answer(
        "hermes_text_arguments",
        1,
        r'<tool_call>{"arguments":"{\"a\": \"\u00fc\ud83d\ude00\ud83d\"}","name":"g"}</tool_call>',
    )
    put_answer("hermes_null", 1, '<tool_call>{"name":"f","arguments":null}</tool_call>')
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n"
        for key, value in [
            ("city", 'A "b"\nc \u65e5</param'),
            ("n", "5"),
            ("o", '{"a": [1]}'),
            ("any", "hello"),
            ("flag", "True"),
            ("maybe", "None"),
            ("new", "<b>"),
        ]
    )
    xml = f"Ok\n<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"
    put_answer("qwen3_coder", 2, xml + "\n<function=g></function>\n<function=f")
    put_answer("qwen3_coder_json", 2, tagged)
    put_answer("llama3", 3, call.replace("arguments", "parameters") + "; " + call)
    put_answer("llama3_tag", 3, "<|python_tag|>" + call)
    put_answer("llama3_text", 3, '{"age": 3} \u00e9 <|pyth')
    values = 'city:<escape>Pa"r{\u00e9<escape>,n:3.5,o:{a:[1,<escape>x<escape>,{k:true}],w:t u}'
    gemma = "call:f{" + values + "}"
    put_answer(
        "gemma",
        4,
        f"<start_function_call>{gemma}<end_function_call><start_function_call>call:g{{}}"
        "<end_function_call>",
    )
    put_answer("gemma4", 4, 't<|tool_call>call:f{city:<|"|>P<|"|>,l:[]}<tool_call|> end')
    put_answer("mistral_list", 5, f'hi[TOOL_CALLS][{call}, {{"name": "g"}}]')
    put_answer(
        "mistral_args", 5, '[TOOL_CALLS]f[CALL_ID]abc123456[ARGS]{"n": 1}[TOOL_CALLS]g{"b":"}"}'
    )
    put_answer(
        "harmony",
        6,
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"n":1}<|call|>',
    )
    put_answer("harmony_final", 6, "<|channel|>final<|message|>\u00e9 <b><|return|>")
    put_answer("generic", 7, f' [{call}, {{"name": "g", "arguments": {{}}}}]')
    put_answer("generic_text", 7, "[1, 2] {")


def stream_seeds():
    event = 'data: {"choices":[{"delta":{"content":"a\\u00e9"}}]}\n\n'
    usage = 'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    put("stream", "events", "\5" + event + usage + "data: [DONE]\n\n")
    put("stream", "behind_the_end", "\5" + event + "data: [DONE]\n\n<html>\n")
    put("stream", "error_event", '\3data: {"error":{"message":"no"}}\r\n\r\n: x\r\rdata\r\n\n')
    put("stream", "no_field", "\2{}\n")
    reply = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    put("stream", "chunked_reply", "\7" + reply + "\r\n5\r\nhello\r\n0\r\n\r\nrest")
    short = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 x\r\nContent-Length: 2\r\n\r\nab"
    put("stream", "length_reply", "\7" + short)
    put("stream", "deep_event", "\7data: " + '{"choices":' * 60 + "1" + "}" * 60 + "\n\n")


def trace_seeds():
    row = '{"timestamp": %d, "input_length": %d, "output_length": 7, "hash_ids": [%s]}\n'
    put("trace", "mooncake", row % (0, 513, "0, 46") + row % (0, 5, "0") + row % (3000, 9, "1"))
    put("trace", "deep_value", '{"timestamp": ' + "[" * 1500 + "]" * 1500 + "}\n")
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9799600,4808,10\n"
    put("trace", "azure", azure + "2023-11-17 00:00:01.04,110,27")
    put("trace", "azure_year_0", azure.replace("2023", "0000"))


def handoff_seeds():
    """If prefill strands; then HandoffPlay::Step: 4 and 5 deliver what was sent, 8 computes."""

    def put_play(name, steps):
        put("handoff", name, b"\0" + steps)
        put("handoff", name + "_strands", b"\1" + steps)

    good = bytes([4, 0]) + bytes([8]) * 7 + bytes([10, 6]) + bytes([5, 0, 5, 1, 4, 1, 13, 0, 13, 1])
    put_play("good_way", good)
    again = bytes([14, 0, 1, 2, 200, 0, 0, 3, 0, 201])  # Retarget, grant of the new decode worker
    put_play("retarget", bytes([4, 0, 8, 8, 6]) + again + bytes([8]) * 5 + bytes([13, 1, 0]))
    # A Retarget to the same decode worker, whose next grant bears the name of the send that is
    # still closing.
    taken = bytes([14, 0, 1, 0, 0, 0, 0, 195, 0, 0, 0, 1, 0, 0, 0, 0])
    rest = bytes([8] * 6 + [13, 1, 0] * 2)
    put_play("name_of_a_closing_send", bytes([4, 0, 8, 8]) + taken + rest)
    put_play("grant_after_prompt", bytes([8]) * 7 + bytes([4, 0, 5, 0, 10, 3, 10, 3, 13, 0]))
    put_play("cancel_both", bytes([4, 0, 8, 8, 12, 1, 12, 0, 13, 1, 13, 0]))
    put_play("peer_down", bytes([4, 0, 8, 8, 8, 6, 7, 13, 1]))
    put_play("time_passes", bytes([4, 0, 8, 11, 255, 255, 11, 255, 255, 5, 0, 4, 1]))
    put_play("drawn_messages", bytes(range(256)) * 3)
    put_play("parked_grants", bytes([14, 3, 1, 1, 0, 200, 1, 1, 1, 1, 1, 7, 2]) * 80)
    put_play("bad_slices", bytes([4, 0] + [8] * 7 + [15, 0, 0] * 10 + [4, 1, 4, 2] * 10))


def main():
    gguf_seeds()
    folder_seeds()
    tokenizer_seeds()
    spec_seeds()
    worker_seeds()
    frame_seeds()
    http_seeds()
    openai_seeds()
    messages_seeds()
    template_seeds()
    text_seeds()
    tool_seeds()
    stream_seeds()
    trace_seeds()
    handoff_seeds()


if __name__ == "__main__":
    main()
