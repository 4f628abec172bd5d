#!/usr/bin/env python3
"""Reference logits that our own code had no part in.

Reads a GGUF file with the PyPI package `gguf`, dequantises it, and computes the llama forward pass
in float64 with numpy. Writes, per row, the argmax, the margin to the second, the largest logit, the
norm and the logits of a few fixed ids (README.md has the format).

  pip install gguf numpy tokenizers
  make_golden.py tiny          writes tiny_*.gguf and tiny_*.golden into this folder
  make_golden.py demo MODEL    writes smollm2.golden into this folder
"""

import pathlib
import struct
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

HERE = pathlib.Path(__file__).resolve().parent
MAGIC = b"BATONGLD"


class Weights:
    """Tensors of one GGUF file as float64, dequantised one at a time."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        arch = self.field("general.architecture")
        assert arch == "llama", arch

    def field(self, key, default=None):
        f = self.reader.get_field(key)
        return default if f is None else f.contents()

    def get(self, name):
        t = self.tensors[name]
        data = gguf.quants.dequantize(t.data, t.tensor_type)
        shape = tuple(reversed([int(d) for d in t.shape]))
        return np.asarray(data, dtype=np.float64).reshape(shape)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x, freqs):
    """x [rows, heads, dim]; pairs (2i, 2i+1) turn by position * freqs[i]."""
    angle = np.arange(x.shape[0])[:, None, None] * freqs[None, None, :]
    rotating = 2 * len(freqs)
    even, odd = x[..., 0:rotating:2], x[..., 1:rotating:2]
    out = x.copy()
    out[..., 0:rotating:2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1:rotating:2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def attention(q, k, v):
    """q [rows, heads, dim], k and v [rows, kv_heads, dim]; causal."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    mask = np.triu(np.ones((rows, rows), dtype=bool), 1)
    out = np.empty_like(q)
    for h in range(heads):
        scores = q[:, h] @ k[:, h // group].T / np.sqrt(dim)
        scores[mask] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        p = np.exp(scores)
        out[:, h] = (p / p.sum(axis=-1, keepdims=True)) @ v[:, h // group]
    return out.reshape(rows, heads * dim)


def hidden_states(weights, sequences):
    """Final normed hidden states of every sequence, layer by layer to hold one layer in memory."""
    heads = weights.field("llama.attention.head_count")
    kv_heads = weights.field("llama.attention.head_count_kv", heads)
    hidden = weights.field("llama.embedding_length")
    dim = weights.field("llama.attention.key_length", hidden // heads)
    rope_dims = weights.field("llama.rope.dimension_count", dim)
    base = float(weights.field("llama.rope.freq_base", 10000.0))
    eps = float(weights.field("llama.attention.layer_norm_rms_epsilon"))
    freqs = base ** (-np.arange(0, rope_dims, 2, dtype=np.float64) / rope_dims)
    if "rope_freqs.weight" in weights.tensors:
        freqs = freqs / weights.get("rope_freqs.weight")
    embedding = weights.get("token_embd.weight")
    xs = [embedding[np.array(tokens)] for tokens in sequences]
    for layer in range(weights.field("llama.block_count")):
        w = lambda name: weights.get(f"blk.{layer}.{name}.weight")
        wq, wk, wv, wo = w("attn_q"), w("attn_k"), w("attn_v"), w("attn_output")
        gate, up, down = w("ffn_gate"), w("ffn_up"), w("ffn_down")
        attn_norm, ffn_norm = w("attn_norm"), w("ffn_norm")
        for i, x in enumerate(xs):
            h = rms_norm(x, attn_norm, eps)
            q = rope((h @ wq.T).reshape(-1, heads, dim), freqs)
            k = rope((h @ wk.T).reshape(-1, kv_heads, dim), freqs)
            v = (h @ wv.T).reshape(-1, kv_heads, dim)
            x = x + attention(q, k, v) @ wo.T
            h = rms_norm(x, ffn_norm, eps)
            g = h @ gate.T
            xs[i] = x + (g / (1 + np.exp(-g)) * (h @ up.T)) @ down.T
    norm = weights.get("output_norm.weight")
    return [rms_norm(x, norm, eps) for x in xs]


def logits_of(weights, states):
    name = "output.weight" if "output.weight" in weights.tensors else "token_embd.weight"
    return states @ weights.get(name).T


def write_golden(path, weights, prompts, rows_of, text_tokens, num_ids):
    """prompts: lists of ids; rows_of(i, n): rows of prompt i of n tokens to keep."""
    sequences = prompts + ([text_tokens] if text_tokens else [])
    states = hidden_states(weights, sequences)
    vocab = int(weights.tensors["token_embd.weight"].shape[1])
    rng = np.random.default_rng(7)
    ids = np.sort(rng.choice(vocab, size=num_ids, replace=False)).astype(np.int32)
    out = bytearray(MAGIC + struct.pack("<III", vocab, num_ids, len(prompts)) + ids.tobytes())
    margins = []
    for i, tokens in enumerate(prompts):
        rows = rows_of(i, len(tokens))
        logits = logits_of(weights, states[i][rows])
        out += struct.pack("<II", len(tokens), len(rows))
        out += np.array(tokens, dtype=np.int32).tobytes()
        for row, l in zip(rows, logits):
            first, second = np.argsort(-l, kind="stable")[:2]
            margins.append(l[first] - l[second])
            out += struct.pack("<Iifff", row, int(first), l[first] - l[second], l[first],
                               np.sqrt(np.mean(l * l)))
            out += l[ids].astype(np.float32).tobytes()
    nll = 0.0
    if text_tokens:
        targets = np.array(text_tokens[1:])
        for begin in range(0, len(targets), 128):  # logits of 128 rows at a time
            l = logits_of(weights, states[-1][begin:begin + 128][:len(targets) - begin])
            l = l - l.max(axis=-1, keepdims=True)
            t = targets[begin:begin + 128]
            nll -= np.sum(l[np.arange(len(t)), t] - np.log(np.exp(l).sum(axis=-1)))
        nll /= len(targets)
        print(f"{path.name}: perplexity {np.exp(nll):.6f} over {len(targets)} tokens")
    out += struct.pack("<Id", len(text_tokens), nll)
    out += np.array(text_tokens, dtype=np.int32).tobytes()
    path.write_bytes(out)
    print(f"{path.name}: {len(out)} bytes, {len(margins)} rows, "
          f"median margin {np.median(margins):.3f}")


def byte_tokens():
    """The 256 byte symbols of a byte-level BPE, as GPT-2 writes them."""
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    symbols, extra = {}, 0
    for b in range(256):
        symbols[b] = chr(b) if b in kept else chr(256 + extra)
        extra += b not in kept
    return [symbols[b] for b in range(256)]


def write_tiny(path, shape, type_of, rope_factors=False, untied=False):
    """A random llama with a byte-level tokenizer. type_of(name) is the type of each matrix."""
    rng = np.random.default_rng(sum(path.name.encode()))
    hidden, ffn, heads, kv_heads, dim = shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(path.stem)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merged = ["he", "ll", "hell", "hello"]
    tokens = specials + byte_tokens() + merged
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(specials) + [1] * (len(tokens) - len(specials)))
    writer.add_token_merges(["h e", "l l", "he ll", "hell o"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% endif %}")

    def matrix(name, n, k, scale):
        data = (rng.standard_normal((n, k)) * scale / np.sqrt(k)).astype(np.float32)
        kind = type_of(name)
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    def vector(name, n):
        writer.add_tensor(name, (1 + 0.2 * rng.standard_normal(n)).astype(np.float32))

    matrix("token_embd.weight", len(tokens), hidden, 4.0)
    vector("output_norm.weight", hidden)
    if untied:
        matrix("output.weight", len(tokens), hidden, 4.0)
    if rope_factors:
        factors = np.geomspace(1.0, 8.0, dim // 2).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    for layer in range(2):
        blk = f"blk.{layer}."
        vector(blk + "attn_norm.weight", hidden)
        matrix(blk + "attn_q.weight", heads * dim, hidden, 2.0)
        matrix(blk + "attn_k.weight", kv_heads * dim, hidden, 2.0)
        matrix(blk + "attn_v.weight", kv_heads * dim, hidden, 1.0)
        matrix(blk + "attn_output.weight", hidden, heads * dim, 1.0)
        vector(blk + "ffn_norm.weight", hidden)
        matrix(blk + "ffn_gate.weight", ffn, hidden, 1.0)
        matrix(blk + "ffn_up.weight", ffn, hidden, 1.0)
        matrix(blk + "ffn_down.weight", hidden, ffn, 1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny():
    small = (32, 64, 2, 1, 16)
    large = (64, 96, 4, 2, 16)
    # Q and K share a type, V has another; gate and up differ: nothing may be joined wrongly.
    mixed = {"attn_q": Q.Q4_0, "attn_k": Q.Q4_0, "attn_v": Q.Q8_0, "attn_output": Q.Q4_1,
             "ffn_gate": Q.F16, "ffn_up": Q.Q4_0, "ffn_down": Q.Q8_0, "token_embd": Q.F16,
             "output": Q.Q8_0}
    mixed_type = lambda name: mixed[name.split(".")[-2]]
    models = {
        "f32": (small, lambda _: Q.F32, {}),
        "f16": (small, lambda _: Q.F16, {}),
        "bf16": (small, lambda _: Q.BF16, {}),
        "q4_0": (large, lambda _: Q.Q4_0, {}),
        "q4_1": (large, lambda _: Q.Q4_1, {}),
        "q8_0": (large, lambda _: Q.Q8_0, {}),
        "mixed_rope": (large, mixed_type, {"rope_factors": True, "untied": True}),
    }
    rng = np.random.default_rng(1)
    for name, (shape, type_of, options) in models.items():
        path = HERE / f"tiny_{name}.gguf"
        write_tiny(path, shape, type_of, **options)
        prompts = [rng.integers(0, 263, size=n).tolist() for n in (1, 24, 300)]
        keep = lambda i, n: list(range(n)) if n < 100 else [63, 64, 255, 256, 257, n - 1]
        write_golden(path.with_suffix(".golden"), Weights(path), prompts, keep, [], 24)


def tokenizer_of(weights):
    """An independent byte-level BPE over the file's vocabulary (no special tokens in the text)."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    tokens = weights.field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in weights.field("tokenizer.ggml.merges")]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return lambda text: tok.encode(text).ids


def demo(model):
    weights = Weights(model)
    encode = tokenizer_of(weights)
    chat = lambda user: ([1] + encode("user\n" + user) + [2] + encode("\n") + [1] +
                         encode("assistant\n"))
    prompts = [
        encode("The capital of France is"),
        chat("Why is the sky blue?"),
        chat("Write a haiku about the sea."),
        encode("def fibonacci(n):\n    if n < 2:\n        return n\n"
               "    return fibonacci(n - 1) + fibonacci("),
        encode("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,"),
        encode("Once upon a time, in a small village at the edge of a dark forest, there lived a "
               "young girl named Clara. Every morning she would walk to the old well to fetch "
               "water, and every morning the same black bird would sit on its stone rim and watch "
               "her."),
    ]
    text = encode((HERE / "perplexity.txt").read_text())
    write_golden(HERE / "smollm2.golden", weights, prompts, lambda i, n: list(range(n)), text, 48)


if __name__ == "__main__":
    if sys.argv[1:] == ["tiny"]:
        tiny()
    elif len(sys.argv) == 3 and sys.argv[1] == "demo":
        demo(sys.argv[2])
    else:
        sys.exit(__doc__)
