#!/usr/bin/env python3
"""Reference logits that our own code had no part in.

Reads a GGUF file with the PyPI package `gguf`, dequantises it, and computes the forward pass of
its architecture in float64 with numpy. Writes, per row, the argmax, the margin to the second, the
largest logit, the norm and the logits of a few fixed ids (README.md has the format).

  pip install gguf numpy tokenizers sentencepiece protobuf
  make_golden.py tiny          writes tiny_*.gguf and tiny_*.golden into this folder
  make_golden.py demo MODEL    writes smollm2.golden or gemma3.golden into this folder
"""

import math
import pathlib
import struct
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

import deepseek
import delta_models
import mamba_models
import tiny_models

HERE = pathlib.Path(__file__).resolve().parent
MAGIC = b"BATONGLD"
ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "smollm3", "granite", "lfm2",
                 "gpt-oss", "phi3", "olmo2", "mistral3", "deepseek2", "lfm2moe",
                 mamba_models.ARCH, *delta_models.ARCHITECTURES)


class Weights:
    """Tensors of one GGUF file as float64, dequantised one at a time."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.arch = self.field("general.architecture")
        assert self.arch in ARCHITECTURES, self.arch

    def field(self, key, default=None):
        f = self.reader.get_field(key)
        return default if f is None else f.contents()

    def key(self, name, default=None):
        return self.field(f"{self.arch}.{name}", default)

    def get(self, name):
        t = self.tensors[name]
        data = gguf.quants.dequantize(t.data, t.tensor_type)
        scale = self.tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is not None:
            data = data * scale.data[0]
        shape = tuple(reversed([int(d) for d in t.shape]))
        return np.asarray(data, dtype=np.float64).reshape(shape)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x, freqs, amplitude, interleaved):
    """x [rows, heads, dim]; pairs (2i, 2i+1), or (i, i + dim/2), turn by position * freqs[i]."""
    angle = np.arange(x.shape[0])[:, None, None] * freqs[None, None, :]
    rotating = 2 * len(freqs)
    if interleaved:
        first, second = slice(0, rotating, 2), slice(1, rotating, 2)
    else:
        first, second = slice(0, len(freqs)), slice(len(freqs), rotating)
    cos, sin = amplitude * np.cos(angle), amplitude * np.sin(angle)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attention(q, k, v, scale, window, sinks=None):
    """q [rows, heads, dim], k and v [rows, kv_heads, dim]; causal; the last `window` keys. A sink
    is one logit more in the softmax of each head, without a value."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    distance = np.arange(rows)[:, None] - np.arange(rows)[None, :]
    mask = (distance < 0) | (distance >= (window or rows))
    out = np.empty_like(q)
    for h in range(heads):
        scores = q[:, h] @ k[:, h // group].T * scale
        scores[mask] = -np.inf
        if sinks is not None:
            scores = np.hstack([scores, np.full((rows, 1), sinks[h])])
        scores -= scores.max(axis=-1, keepdims=True)
        p = np.exp(scores)
        if sinks is not None:
            out[:, h] = (p[:, :-1] / p.sum(axis=-1, keepdims=True)) @ v[:, h // group]
            continue
        out[:, h] = (p / p.sum(axis=-1, keepdims=True)) @ v[:, h // group]
    return out.reshape(rows, heads * dim)


def yarn(freqs, dims, base, factor, context, truncate=True):
    """YaRN's frequencies and amplitude (arXiv 2309.00071, and its authors' code)."""
    def pair_of(turns):
        return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = pair_of(32), pair_of(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    return freqs / factor * ramp + freqs * (1 - ramp), 1 + 0.1 * math.log(factor)


class Shape:
    """The numbers of a model and the rotations of its layers."""

    def __init__(self, w):
        self.arch, self.weights = w.arch, w
        self.layers = w.key("block_count") - w.key("nextn_predict_layers", 0)
        self.heads = w.key("attention.head_count")
        self.kv_heads = w.key("attention.head_count_kv", self.heads)
        self.convs = ()
        if isinstance(self.kv_heads, list):
            self.convs = [i for i, heads in enumerate(self.kv_heads) if heads == 0]
            self.kv_heads = max(self.kv_heads)
        self.hidden = w.key("embedding_length")
        self.dim = w.key("attention.key_length", self.hidden // self.heads)
        self.eps = float(w.key("attention.layer_norm_rms_epsilon"))
        self.interleaved = w.arch in tiny_models.LLAMA_ROWS
        self.embedding_scale = math.sqrt(self.hidden) if w.arch == "gemma3" else 1.0
        self.attention_scale, self.branch_scale, self.logit_scale = self.dim ** -0.5, 1.0, 1.0
        if w.arch == "granite":
            self.embedding_scale = float(w.key("embedding_scale"))
            self.attention_scale = float(w.key("attention.scale"))
            self.branch_scale = float(w.key("residual_scale"))
            self.logit_scale = 1 / float(w.key("logit_scale"))
        dims = w.key("rope.dimension_count", self.dim)
        base = float(w.key("rope.freq_base", 10000.0))
        powers = -np.arange(0, dims, 2, dtype=np.float64) / dims
        self.freqs, self.amplitude = base ** powers, 1.0
        if "rope_freqs.weight" in w.tensors:
            self.freqs = self.freqs / w.get("rope_freqs.weight")
        scaling = w.key("rope.scaling.type", "none")
        factor = float(w.key("rope.scaling.factor", 1.0))
        if scaling == "linear":
            self.freqs = self.freqs / factor
        if scaling == "yarn":
            context = w.key("rope.scaling.original_context_length")
            self.freqs, self.amplitude = yarn(self.freqs, dims, base, factor, context,
                                              truncate=w.arch != "gpt-oss")
            multiplier = float(w.key("rope.scaling.yarn_log_multiplier", 0.0))
            self.amplitude /= 1 + 0.1 * multiplier * math.log(factor)
            self.original = context
        self.temperature = float(w.key("attention.temperature_scale", 0.0))
        if "rope_factors_long.weight" in w.tensors:
            is_long = w.key("context_length") > w.key("rope.scaling.original_context_length")
            self.freqs = self.freqs / w.get(f"rope_factors_{'long' if is_long else 'short'}.weight")
            self.amplitude = float(w.key("rope.scaling.attn_factor"))
        self.uniform_window = w.key("attention.sliding_window") if w.arch == "phi3" else 0
        if w.arch == "gemma3":
            self.window = w.key("attention.sliding_window")
            self.local_freqs = float(w.key("rope.freq_base_swa", 10000.0)) ** powers
        if w.arch == "gpt-oss":
            self.window = w.key("attention.sliding_window")

    def is_local(self, layer):
        if self.arch == "gpt-oss":
            return layer % 2 == 0
        return self.arch == "gemma3" and layer % 6 != 5

    def turns(self, layer):
        return self.arch != "smollm3" or layer % 4 != 3


def convolve(w, h):
    """LFM2's operator: c times a causal convolution over the last tokens of b * x."""
    b, c, x = np.split(h @ w("shortconv.in_proj.weight").T, 3, axis=-1)
    bx, taps = b * x, w("shortconv.conv.weight")
    out = np.zeros_like(bx)
    for j in range(taps.shape[1]):
        back = taps.shape[1] - 1 - j
        if back < len(bx):
            out[back:] += taps[:, j] * bx[:len(bx) - back]
    return (c * out) @ w("shortconv.out_proj.weight").T


def attend(shape, weights, w, layer, x):
    if shape.arch == "deepseek2":
        return deepseek.attend(shape, weights, w, layer, x)
    h = x if shape.arch == "olmo2" else rms_norm(x, w("attn_norm.weight"), shape.eps)
    if layer in shape.convs:
        return convolve(w, h)
    if delta_models.is_delta(shape.weights, layer):
        return delta_models.mix_delta(shape.weights, w, h)
    gate = 1.0

    def project(name, heads):
        if shape.arch == "phi3":  # rows of q, k, v one below the other
            first = {"q": 0, "k": shape.heads, "v": shape.heads + shape.kv_heads}[name] * shape.dim
            out = h @ w("attn_qkv.weight")[first:first + heads * shape.dim].T
        elif shape.arch in delta_models.ARCHITECTURES and name == "q":  # a head's q, then its gate
            rows = w("attn_q.weight").reshape(heads, 2, shape.dim, -1)
            out = h @ rows[:, 0].reshape(heads * shape.dim, -1).T
        else:
            out = h @ w(f"attn_{name}.weight").T
        if shape.arch == "olmo2" and name != "v":  # over the whole width
            out = rms_norm(out, w(f"attn_{name}_norm.weight"), shape.eps)
        if shape.arch in ("qwen2", "gpt-oss"):
            out = out + w(f"attn_{name}.bias")
        return out.reshape(-1, heads, shape.dim)

    q, k, v = project("q", shape.heads), project("k", shape.kv_heads), project("v", shape.kv_heads)
    if shape.arch in delta_models.ARCHITECTURES:
        rows = w("attn_q.weight").reshape(shape.heads, 2, shape.dim, -1)
        gate = delta_models.sigmoid(h @ rows[:, 1].reshape(shape.heads * shape.dim, -1).T)
    if shape.arch in ("qwen3", "qwen3moe", "gemma3", "lfm2", "lfm2moe",
                      *delta_models.ARCHITECTURES):
        q = rms_norm(q, w("attn_q_norm.weight"), shape.eps)
        k = rms_norm(k, w("attn_k_norm.weight"), shape.eps)
    local = shape.is_local(layer)
    turn = (shape.freqs, shape.amplitude)
    if local and shape.arch == "gemma3":
        turn = (shape.local_freqs, 1.0)
    if shape.turns(layer):
        q, k = rope(q, *turn, shape.interleaved), rope(k, *turn, shape.interleaved)
    if shape.temperature:
        steps = np.arange(len(q)) // shape.original
        q = q * (1 + shape.temperature * np.log(1 + steps))[:, None, None]
    window = shape.window if local else shape.uniform_window or None
    sinks = w("attn_sinks.weight") if shape.arch == "gpt-oss" else None
    out = gate * attention(q, k, v, shape.attention_scale, window, sinks)
    out = out @ w("attn_output.weight").T
    if shape.arch == "gpt-oss":
        out = out + w("attn_output.bias")
    if shape.arch in ("gemma3", "olmo2"):
        out = rms_norm(out, w("post_attention_norm.weight"), shape.eps)
    return out


def silu(g):
    return g / (1 + np.exp(-g))


def gelu_tanh(g):
    return 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g ** 3)))


def mix_experts(w, h, used, joined=False):
    logits = h @ w("ffn_gate_inp.weight").T
    down = w("ffn_down_exps.weight")
    gate, up = (np.split(w("ffn_gate_up_exps.weight"), 2, axis=1) if joined else
                (w("ffn_gate_exps.weight"), w("ffn_up_exps.weight")))
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    out = np.zeros_like(h)
    for row in range(len(h)):
        chosen = np.argsort(-p[row], kind="stable")[:used]
        share = p[row, chosen] / p[row, chosen].sum()
        for e, weight in zip(chosen, share):
            hidden = silu(h[row] @ gate[e].T) * (h[row] @ up[e].T)
            out[row] += weight * (hidden @ down[e].T)
    return out


def mix_gpt_oss(w, h, used):
    """As GptOssMLP of transformers: softmax over the chosen logits, biases, the clamped SwiGLU."""
    logits = h @ w("ffn_gate_inp.weight").T + w("ffn_gate_inp.bias")
    out = np.zeros_like(h)
    for row in range(len(h)):
        chosen = np.argsort(-logits[row], kind="stable")[:used]
        share = np.exp(logits[row, chosen] - logits[row, chosen].max())
        for e, weight in zip(chosen, share / share.sum()):
            gate, up = (w(f"ffn_{n}_exps.weight")[e] @ h[row] + w(f"ffn_{n}_exps.bias")[e]
                        for n in ("gate", "up"))
            gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
            hidden = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            down = w("ffn_down_exps.weight")[e] @ hidden + w("ffn_down_exps.bias")[e]
            out[row] += weight * down
    return out


def feed_forward(shape, weights, w, layer, x):
    if shape.arch in ("deepseek2", "lfm2moe"):
        return deepseek.feed_forward(shape, weights, w, layer, x)
    if shape.arch == "gpt-oss":
        h = rms_norm(x, w("post_attention_norm.weight"), shape.eps)
        return mix_gpt_oss(w, h, weights.key("expert_used_count"))
    is_delta = shape.arch in delta_models.ARCHITECTURES
    norm = "post_attention_norm.weight" if is_delta else "ffn_norm.weight"
    h = x if shape.arch == "olmo2" else rms_norm(x, w(norm), shape.eps)
    if shape.arch == "qwen3moe":
        return mix_experts(w, h, weights.key("expert_used_count"))
    if shape.arch == "qwen35moe":
        joined = f"blk.{layer}.ffn_gate_up_exps.weight" in weights.tensors
        routed = mix_experts(w, h, weights.key("expert_used_count"), joined)
        return routed + delta_models.shared_expert(w, h)
    activate = gelu_tanh if shape.arch == "gemma3" else silu
    if shape.arch == "phi3":  # gate above up
        up = w("ffn_up.weight")
        gate, up = up[:len(up) // 2], up[len(up) // 2:]
    else:
        gate, up = w("ffn_gate.weight"), w("ffn_up.weight")
    gated = activate(h @ gate.T) * (h @ up.T)
    out = gated @ w("ffn_down.weight").T
    if shape.arch in ("gemma3", "olmo2"):
        out = rms_norm(out, w("post_ffw_norm.weight"), shape.eps)
    return out


def hidden_states(weights, sequences):
    """Final normed hidden states of every sequence, layer by layer to hold one layer in memory."""
    shape = Shape(weights)
    embedding = weights.get("token_embd.weight")
    xs = [embedding[np.array(tokens)] * shape.embedding_scale for tokens in sequences]
    for layer in range(shape.layers):
        cache = {}

        def w(name):
            if name not in cache:
                cache[name] = weights.get(f"blk.{layer}.{name}")
            return cache[name]

        for i, x in enumerate(xs):
            if shape.arch == mamba_models.ARCH:
                h = rms_norm(x, w("attn_norm.weight"), shape.eps)
                xs[i] = x + mamba_models.mix(shape, weights, w, layer, h, attention)
                continue
            x = x + shape.branch_scale * attend(shape, weights, w, layer, x)
            xs[i] = x + shape.branch_scale * feed_forward(shape, weights, w, layer, x)
    last = "token_embd_norm" if shape.arch in tiny_models.LFM2 else "output_norm"
    norm = weights.get(f"{last}.weight")
    return [rms_norm(x, norm, shape.eps) * shape.logit_scale for x in xs]


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


def tiny():
    rng = np.random.default_rng(1)
    for path in tiny_models.write_weight_types(HERE):
        prompts = [rng.integers(0, 263, size=n).tolist() for n in (1, 24, 300)]
        keep = lambda i, n: list(range(n)) if n < 100 else [63, 64, 255, 256, 257, n - 1]
        write_golden(path.with_suffix(".golden"), Weights(path), prompts, keep, [], 24)
    for seed, write in ((2, tiny_models.write_architectures), (3, tiny_models.write_convolutions),
                        (4, deepseek.write_models), (4, delta_models.write_delta_nets),
                        (5, mamba_models.write_models)):
        rng = np.random.default_rng(seed)
        for path in write(HERE):
            prompts = [rng.integers(0, 263, size=n).tolist() for n in (1, 40, 300)]
            edges = [31, 32, 63, 64, 65, 255, 256, 257]
            keep = lambda i, n: list(range(n)) if n < 100 else edges + [n - 1]
            write_golden(path.with_suffix(".golden"), Weights(path), prompts, keep, [], 24)


def tokenizer_of(weights):
    """An independent tokenizer over the file's vocabulary (no special tokens in the text)."""
    if weights.field("tokenizer.ggml.model") == "llama":
        return sentencepiece_of(weights)
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    tokens = weights.field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in weights.field("tokenizer.ggml.merges")]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return lambda text: tok.encode(text).ids


def sentencepiece_of(weights):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as model_pb2
    model = model_pb2.ModelProto()
    model.trainer_spec.model_type = model_pb2.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    for name in ("bos", "eos", "unk", "pad"):
        key = {"unk": "unknown", "pad": "padding"}.get(name, name)
        setattr(model.trainer_spec, name + "_id", weights.field(f"tokenizer.ggml.{key}_token_id"))
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = weights.field("tokenizer.ggml.add_space_prefix", True)
    model.normalizer_spec.remove_extra_whitespaces = False
    rows = zip(*(weights.field(f"tokenizer.ggml.{k}") for k in ("tokens", "scores", "token_type")))
    for text, score, kind in rows:
        model.pieces.add(piece=text, score=score, type=kind)
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()).encode


def bos_of(weights):
    """The token ids that stand before each text."""
    add = weights.field("tokenizer.ggml.add_bos_token", weights.arch == "gemma3")
    return [weights.field("tokenizer.ggml.bos_token_id")] if add else []


def chat_of(weights, encode):
    """A user's message in the model's chat format, its control tokens by number."""
    if weights.arch == "gemma3":  # <start_of_turn>, <end_of_turn>
        return lambda user: ([105] + encode("user\n" + user) + [106] + encode("\n") + [105] +
                             encode("model\n"))
    return lambda user: ([1] + encode("user\n" + user) + [2] + encode("\n") + [1] +
                         encode("assistant\n"))


def demo(model):
    weights = Weights(model)
    encode = tokenizer_of(weights)
    chat = chat_of(weights, encode)
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
    bos = bos_of(weights)
    text = bos + encode((HERE / "perplexity.txt").read_text())
    path = HERE / ("gemma3.golden" if weights.arch == "gemma3" else "smollm2.golden")
    write_golden(path, weights, [bos + p for p in prompts], lambda i, n: list(range(n)), text, 48)


if __name__ == "__main__":
    if sys.argv[1:] == ["tiny"]:
        tiny()
    elif len(sys.argv) == 3 and sys.argv[1] == "demo":
        demo(sys.argv[2])
    else:
        sys.exit(__doc__)
