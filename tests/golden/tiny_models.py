"""Random models small enough to keep in the tree: GGUF files written with the PyPI package `gguf`,
and the same weights as Hugging Face folders, written by the definition of safetensors."""

import json
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

# Architectures whose converter permutes the rows of Q and K.
LLAMA_ROWS = ("llama", "smollm3", "granite", "mistral3")
LFM2 = ("lfm2", "lfm2moe")
TEMPERATURE = 0.1
# Other numbers than published models have, and none a power of two.
GRANITE = {"attention_multiplier": 0.21, "embedding_multiplier": 3.7, "residual_multiplier": 0.23,
           "logits_scaling": 1.3}

# lfm2's names of what the others have too.
LFM2_NAMES = {"model.norm": "model.embedding_norm", "input_layernorm": "operator_norm",
              "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "self_attn.out_proj",
              "self_attn.q_norm": "self_attn.q_layernorm",
              "self_attn.k_norm": "self_attn.k_layernorm", "mlp.gate_proj": "feed_forward.w1",
              "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}


def long_factors(pairs):
    """LongRoPE's short and long divisors; not monotonic, so that no two may change places."""
    short = 1 + 0.05 * np.arange(pairs) + 0.02 * (np.arange(pairs) % 3)
    return short.astype(np.float32), (1.5 * short * 1.3 ** np.arange(pairs)).astype(np.float32)


def byte_tokens():
    """The 256 byte symbols of a byte-level BPE, as GPT-2 writes them."""
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    symbols, extra = {}, 0
    for b in range(256):
        symbols[b] = chr(b) if b in kept else chr(256 + extra)
        extra += b not in kept
    return [symbols[b] for b in range(256)]


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}")


def all_tokens():
    return SPECIALS + byte_tokens() + [m.replace(" ", "") for m in MERGES]


def add_tokenizer(writer, vocab=0):
    """With a larger `vocab` the rest are tokens that no text is turned into."""
    tokens = all_tokens()
    tokens += [f"<|pad_{i}|>" for i in range(len(tokens), vocab)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    return tokens


# Where a random block's fp16 scale (and min) lie; types the package cannot quantise to.
RANDOM_BLOCKS = {Q.Q2_K: (80, 82), Q.Q3_K: (108, None), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2),
                 Q.Q6_K: (208, None), Q.IQ4_NL: (0, None), Q.IQ4_XS: (0, None)}
# The middle digit of types with a min.
MIDDLE = {Q.Q2_K: 1.5, Q.Q4_K: 7.5, Q.Q5_K: 15.5}
# The types that llama.cpp takes for rows that are not whole super-blocks.
FALLBACK = {Q.Q2_K: Q.IQ4_NL, Q.Q3_K: Q.IQ4_NL, Q.Q4_K: Q.Q5_0, Q.Q5_K: Q.Q5_1, Q.Q6_K: Q.Q8_0,
            Q.IQ4_XS: Q.IQ4_NL}


def random_blocks(rng, n, k, kind, std):
    """Random bits of such a type whose elements have this standard deviation."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, size=(n * k // elements, size), dtype=np.uint8)
    at_scale, at_min = RANDOM_BLOCKS[kind]
    spread = rng.uniform(0.5, 1.5, size=len(raw)) * rng.choice([-1, 1], size=len(raw))
    put = lambda at, x: raw.__setitem__((slice(None), slice(at, at + 2)),
                                        x.astype(np.float16).view(np.uint8).reshape(-1, 2))
    for unit in (1.0, None):
        unit = unit or std / dequantized.std()
        put(at_scale, spread * unit)
        if at_min is not None:
            # The middle digit times an equal factor is what the min should take off.
            put(at_min, spread * unit * MIDDLE[kind])
        dequantized = gguf.quants.dequantize(raw, kind)
    return raw.reshape(n, -1)


NVFP4_SCALE = 2.0**-5  # of a tensor; a power of two, so that bf16 holds the weights exactly


def nvfp4_blocks(rng, n, k, std):
    """Random bits of NVFP4 whose elements, times NVFP4_SCALE, have this standard deviation."""
    raw = rng.integers(0, 256, size=(n, k // 64, 36), dtype=np.uint8)
    unit = std / NVFP4_SCALE / 3.04  # random e2m1 numbers have 2.93, the factors 1.04
    scales = (unit * rng.uniform(0.5, 1.5, size=(n, k // 64, 4))).astype(np.float32)
    raw[:, :, :4] = gguf.quants.NVFP4.fp32_to_ue4m3(scales)
    return raw.reshape(n, -1)


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
    tokens = add_tokenizer(writer)
    def matrix(name, n, k, scale):
        data = (rng.standard_normal((n, k)) * scale / np.sqrt(k)).astype(np.float32)
        kind = type_of(name)
        if k % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = FALLBACK[kind]
        if kind == Q.NVFP4:
            # As llama.cpp's converter writes it; the scale of activations is not used.
            writer.add_tensor(name, nvfp4_blocks(rng, n, k, scale / np.sqrt(k)), raw_dtype=kind)
            module = name.removesuffix(".weight")
            writer.add_tensor(module + ".scale", np.array([NVFP4_SCALE], dtype=np.float32))
            writer.add_tensor(module + ".input_scale", np.array([3], dtype=np.float32))
            return
        raw = (random_blocks(rng, n, k, kind, scale / np.sqrt(k)) if kind in RANDOM_BLOCKS else
               gguf.quants.quantize(data, kind))
        writer.add_tensor(name, raw, raw_dtype=kind)

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


def write_weight_types(folder):
    """A llama for each weight type; yields the paths."""
    small = (32, 64, 2, 1, 16)
    large = (64, 96, 4, 2, 16)
    super_blocks = (256, 64, 4, 2, 16)  # ffn_down and attn_output take the fallback type
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
        "q5_0": (large, lambda _: Q.Q5_0, {}),
        "q5_1": (large, lambda _: Q.Q5_1, {}),
        "q4_k": (super_blocks, lambda _: Q.Q4_K, {}),
        "q5_k": (super_blocks, lambda _: Q.Q5_K, {}),
        "q6_k": (super_blocks, lambda _: Q.Q6_K, {}),
        "mxfp4": (large, lambda _: Q.MXFP4, {}),
        "iq4_nl": (large, lambda _: Q.IQ4_NL, {}),
        "iq4_xs": (super_blocks, lambda _: Q.IQ4_XS, {}),
        "q3_k": (super_blocks, lambda _: Q.Q3_K, {}),
        "q2_k": (super_blocks, lambda _: Q.Q2_K, {}),
        "nvfp4": ((64, 128, 4, 2, 16), lambda _: Q.NVFP4, {}),
    }
    for name, (shape, type_of, options) in models.items():
        path = folder / f"tiny_{name}.gguf"
        write_tiny(path, shape, type_of, **options)
        yield path


class TinyModel:
    """The numbers of one tiny model of any architecture, and its random weights under their Hugging
    Face names, as float32 values that the stored type holds exactly."""

    def __init__(self, name, arch, kind, layers=2, hidden=32, ffn=64, heads=2, kv_heads=1, dim=16,
                 vocab=263, tied=True, scaling=None, experts=0, used=0, window=0, rope_base=None,
                 convs=(), taps=3, rope_dims=None, original=0, dense=0, dense_ffn=0, context=512):
        self.name, self.arch, self.kind = name, arch, kind
        self.layers, self.hidden, self.ffn = layers, hidden, ffn
        self.heads, self.kv_heads, self.dim, self.vocab = heads, kv_heads, dim, vocab
        self.tied, self.scaling = tied, scaling
        self.experts, self.used, self.window = experts, used, window
        self.convs, self.taps, self.context = convs, taps, context
        self.dense, self.dense_ffn = dense, dense_ffn or ffn
        self.rope_base = rope_base or (1e6 if arch == "gemma3" else 10000.0)
        self.rope_dims, self.original = rope_dims or dim, original
        self.rng = np.random.default_rng(sum(name.encode()))
        self.weights = {}
        self.fill()

    def kind_of(self, name):
        """gpt-oss has only its experts in MXFP4."""
        is_other = self.arch == "gpt-oss" and self.kind == Q.MXFP4 and "exp" not in name
        return Q.BF16 if is_other else self.kind

    def stored(self, data, kind):
        return gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind).reshape(data.shape)

    def matrix(self, name, n, k, scale):
        data = self.rng.standard_normal((n, k)) * scale / np.sqrt(k)
        self.weights[name] = self.stored(data.astype(np.float32), self.kind_of(name))

    def vector(self, name, n, mean, spread):
        data = (mean + spread * self.rng.standard_normal(n)).astype(np.float32)
        kind = Q.BF16 if self.arch == "gpt-oss" else self.kind
        self.weights[name] = self.stored(data, kind) if kind in (Q.F16, Q.BF16) else data

    def fill(self):
        # A gemma norm multiplies by 1 + weight.
        norm = lambda name, n: self.vector(name, n, 0.0 if self.arch == "gemma3" else 1.0, 0.2)
        self.matrix("model.embed_tokens.weight", self.vocab, self.hidden, 4.0)
        norm("model.norm.weight", self.hidden)
        if not self.tied:
            self.matrix("lm_head.weight", self.vocab, self.hidden, 4.0)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            if self.arch != "olmo2":
                norm(at + "input_layernorm.weight", self.hidden)
            if layer in self.convs:
                self.matrix(at + "conv.in_proj.weight", 3 * self.hidden, self.hidden, 1.0)
                name = at + "conv.conv.weight"
                self.vector(name, self.hidden * self.taps, 0.0, 1.0)  # as exact as a vector
                self.weights[name] = self.weights[name].reshape(self.hidden, 1, self.taps)
                self.matrix(at + "conv.out_proj.weight", self.hidden, self.hidden, 1.0)
                self.fill_feed_forward(at, norm)
                continue
            for part, heads, scale in (("q", self.heads, 2.0), ("k", self.kv_heads, 2.0),
                                       ("v", self.kv_heads, 1.0)):
                name, rows = f"{at}self_attn.{part}_proj", heads * self.dim
                if self.arch == "phi3":
                    continue
                self.matrix(f"{name}.weight", rows, self.hidden, scale)
                if self.arch in ("qwen2", "gpt-oss"):
                    self.vector(f"{name}.bias", rows, 0.0, 0.5)
            if self.arch == "phi3":
                rows = (self.heads + 2 * self.kv_heads) * self.dim
                self.matrix(at + "self_attn.qkv_proj.weight", rows, self.hidden, 2.0)
                self.matrix(at + "mlp.gate_up_proj.weight", 2 * self.ffn, self.hidden, 1.0)
            self.matrix(at + "self_attn.o_proj.weight", self.hidden, self.heads * self.dim, 1.0)
            if self.arch in ("qwen3", "qwen3moe", "gemma3", *LFM2):
                norm(at + "self_attn.q_norm.weight", self.dim)
                norm(at + "self_attn.k_norm.weight", self.dim)
            if self.arch == "olmo2":
                norm(at + "self_attn.q_norm.weight", self.heads * self.dim)
                norm(at + "self_attn.k_norm.weight", self.kv_heads * self.dim)
                norm(at + "post_feedforward_layernorm.weight", self.hidden)
            self.fill_feed_forward(at, norm)

    def fill_feed_forward(self, at, norm):
        norm(at + "post_attention_layernorm.weight", self.hidden)
        if self.arch == "gemma3":
            norm(at + "pre_feedforward_layernorm.weight", self.hidden)
            norm(at + "post_feedforward_layernorm.weight", self.hidden)
        experts, ffn = self.experts, self.ffn
        if self.arch == "lfm2moe" and int(at.split(".")[2]) < self.dense:
            experts, ffn = 0, self.dense_ffn
        if experts and self.arch == "lfm2moe":
            # Sigmoids of far logits are all 1: the biases part the experts.
            self.matrix(at + "mlp.gate.weight", self.experts, self.hidden, 2.0)
            bias = self.rng.permutation(np.linspace(-2.0, 2.0, self.experts))
            self.weights[at + "mlp.expert_bias"] = self.stored(bias.astype(np.float32), Q.BF16)
        elif experts:
            # Far apart, so that a rounding of the input seldom changes who is chosen.
            self.matrix(at + "mlp.gate.weight", self.experts, self.hidden, 8.0)
        for e in range(max(1, experts)):
            mlp = at + (f"mlp.experts.{e}." if experts else "mlp.")
            if self.arch != "phi3":
                self.matrix(mlp + "gate_proj.weight", ffn, self.hidden, 1.0)
                self.matrix(mlp + "up_proj.weight", ffn, self.hidden, 1.0)
            self.matrix(mlp + "down_proj.weight", self.hidden, ffn, 1.0)
        if self.arch == "gpt-oss":
            self.fill_gpt_oss(at)

    def fill_gpt_oss(self, at):
        """Sinks of a few logits, and biases; some gates and ups are beyond the limit of 7."""
        self.vector(at + "self_attn.sinks", self.heads, 1.0, 2.0)
        self.vector(at + "self_attn.o_proj.bias", self.hidden, 0.0, 0.5)
        self.vector(at + "mlp.gate.bias", self.experts, 0.0, 1.0)
        for e in range(self.experts):
            mlp = f"{at}mlp.experts.{e}."
            self.vector(mlp + "gate_proj.bias", self.ffn, 0.0, 3.0)
            self.vector(mlp + "up_proj.bias", self.ffn, 0.0, 3.0)
            self.vector(mlp + "down_proj.bias", self.hidden, 0.0, 0.5)

    # GGUF -----------------------------------------------------------------------------------------

    def write_gguf(self, path, tensors_per_part=0):
        writer = gguf.GGUFWriter(str(path), self.arch, split_max_tensors=tensors_per_part)
        writer.add_name(path.stem)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers)
        writer.add_feed_forward_length(self.dense_ffn)
        writer.add_head_count(self.heads)
        if self.arch in LFM2:
            writer.add_head_count_kv(
                [0 if i in self.convs else self.kv_heads for i in range(self.layers)])
            writer.add_shortconv_l_cache(self.taps)
        else:
            writer.add_head_count_kv(self.kv_heads)
        if self.arch == "phi3":  # whose converter writes no key length
            writer.add_rope_dimension_count(self.rope_dims)
            writer.add_sliding_window(self.window)
            writer.add_rope_scaling_orig_ctx_len(self.original or 512)
        elif self.arch not in LFM2:
            writer.add_key_length(self.dim)
            writer.add_value_length(self.dim)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(self.rope_base)
        if self.arch == "granite":
            writer.add_attention_scale(GRANITE["attention_multiplier"])
            writer.add_embedding_scale(GRANITE["embedding_multiplier"])
            writer.add_residual_scale(GRANITE["residual_multiplier"])
            writer.add_logit_scale(GRANITE["logits_scaling"])
        if self.window and self.arch != "phi3":
            writer.add_sliding_window(self.window)
        if self.scaling == "longrope":
            writer.add_rope_scaling_attn_factors(self.long_amplitude())
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.used)
            writer.add_expert_feed_forward_length(self.ffn)
        if self.arch == "lfm2moe":
            writer.add_leading_dense_block_count(self.dense)
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        if self.scaling in ("linear", "yarn"):
            writer.add_rope_scaling_type(gguf.RopeScalingType(self.scaling))
            writer.add_rope_scaling_factor(4.0)
        if self.scaling == "yarn":
            writer.add_rope_scaling_orig_ctx_len(self.original or 128)
        if self.arch == "mistral3":
            writer.add_rope_scaling_yarn_log_mul(1.0)
            writer.add_attn_temperature_scale(TEMPERATURE)
        add_tokenizer(writer, self.vocab)
        if self.scaling == "llama3":
            writer.add_tensor("rope_freqs.weight", self.llama3_factors())
        if self.scaling == "longrope":
            short, long = long_factors(self.rope_dims // 2)
            writer.add_tensor("rope_factors_long.weight", long)
            writer.add_tensor("rope_factors_short.weight", short)
        for name, data in self.gguf_tensors():
            if (data.ndim == 1 or "ffn_gate_inp" in name or "shortconv.conv" in name
                    or name.endswith(".bias")):
                writer.add_tensor(name, data)
            else:
                kind = self.kind_of(name)
                writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def long_amplitude(self):
        grown = 512 / self.original
        return 1.0 if grown <= 1 else float(np.sqrt(1 + np.log(grown) / np.log(self.original)))

    def llama3_factors(self):
        """As llama.cpp's converter computes them, in double instead of fp32."""
        factor, low, high, context = 4.0, 1.0, 4.0, 128
        out = []
        for i in range(0, self.dim, 2):
            length = 2 * np.pi * 10000.0 ** (i / self.dim)
            if length < context / high:
                out.append(1.0)
            elif length > context / low:
                out.append(factor)
            else:
                smooth = (context / length - low) / (high - low)
                out.append(1 / ((1 - smooth) / factor + smooth))
        return np.array(out, dtype=np.float32)

    def gguf_tensors(self):
        names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
                 "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                 "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
                 "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
                 "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
                 "post_attention_layernorm": "ffn_norm", "conv.in_proj": "shortconv.in_proj",
                 "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
                 "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
        if self.arch in ("gemma3", "olmo2"):
            names |= {"post_attention_layernorm": "post_attention_norm",
                      "pre_feedforward_layernorm": "ffn_norm",
                      "post_feedforward_layernorm": "post_ffw_norm"}
        if self.arch == "gpt-oss":
            names["post_attention_layernorm"] = "post_attention_norm"
        whole = {"model.embed_tokens.weight": "token_embd.weight",
                 "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
        if self.arch in LFM2:
            whole["model.norm.weight"] = "token_embd_norm.weight"
        for name, data in self.weights.items():
            if name.endswith("conv.conv.weight"):
                data = data.reshape(self.hidden, self.taps)
            if self.arch == "gemma3" and name.endswith("norm.weight"):
                data = data + 1
            if name in whole:
                yield whole[name], data
                continue
            _, _, layer, rest = name.split(".", 3)
            part, kind = rest.rsplit(".", 1)
            if kind == "expert_bias":
                yield f"blk.{layer}.exp_probs_b.bias", data
                continue
            if kind == "sinks":
                yield f"blk.{layer}.attn_sinks.weight", data
                continue
            if ".experts." in name:
                if ".experts.0." not in name:
                    continue
                part = "mlp." + part.split(".")[-1]
                data = np.stack([self.weights[name.replace(".experts.0.", f".experts.{e}.")]
                                 for e in range(self.experts)])
                yield f"blk.{layer}.{names[part]}_exps.{kind}", data
                continue
            if self.arch in LLAMA_ROWS and part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = data.shape[0] // self.dim  # (head, half, pair) to (head, pair, half)
                data = data.reshape(heads, 2, self.dim // 2, -1).swapaxes(1, 2).reshape(data.shape)
            yield f"blk.{layer}.{names[part]}.{kind}", data

    # Folder ---------------------------------------------------------------------------------------

    def config(self):
        types = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
                 "gemma3": "gemma3_text", "smollm3": "smollm3", "granite": "granite",
                 "lfm2": "lfm2", "gpt-oss": "gpt_oss", "phi3": "phi3", "olmo2": "olmo2",
                 "mistral3": "ministral3", "lfm2moe": "lfm2_moe"}
        out = {"model_type": types[self.arch], "num_hidden_layers": self.layers,
               "hidden_size": self.hidden, "intermediate_size": self.ffn,
               "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
               "head_dim": self.dim, "vocab_size": self.vocab, "max_position_embeddings": 512,
               "rms_norm_eps": 1e-6, "rope_theta": self.rope_base,
               "tie_word_embeddings": self.tied, "bos_token_id": 1, "eos_token_id": 2,
               "hidden_act": "silu", "torch_dtype": "bfloat16"}
        if self.arch == "gemma3":
            out |= {"sliding_window": self.window, "sliding_window_pattern": 6,
                    "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": self.dim,
                    "hidden_activation": "gelu_pytorch_tanh"}
        if self.arch == "smollm3":
            out |= {"no_rope_layers": [int(i % 4 != 3) for i in range(self.layers)],
                    "no_rope_layer_interval": 4, "use_sliding_window": False,
                    "sliding_window": None, "layer_types": ["full_attention"] * self.layers}
        if self.arch == "granite":
            out |= GRANITE
        if self.arch == "lfm2":
            for key in ("rms_norm_eps", "head_dim", "hidden_act", "tie_word_embeddings"):
                del out[key]
            # Two thirds of 1.5 times the width, and less than one multiple.
            out |= {"norm_eps": 1e-6, "conv_L_cache": self.taps, "conv_bias": False,
                    "intermediate_size": 8 * self.ffn, "block_ff_dim": self.ffn * 3 // 2 - 7,
                    "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
                    "block_multiple_of": 16, "block_use_swiglu": True, "block_norm_eps": 1e-6,
                    "block_dim": self.hidden, "conv_dim": self.hidden, "conv_dim_out": self.hidden,
                    "num_heads": self.heads, "use_pos_enc": True, "tie_embedding": self.tied,
                    "conv_use_xavier_init": True, "block_mlp_init_scale": 1.0,
                    "full_attn_idxs": [i for i in range(self.layers) if i not in self.convs]}
        if self.arch == "lfm2moe":
            for key in ("rms_norm_eps", "head_dim", "hidden_act"):
                del out[key]
            kinds = ("full_attention", "conv")
            out |= {"norm_eps": 1e-6, "conv_L_cache": self.taps, "conv_bias": False,
                    "intermediate_size": self.dense_ffn, "num_dense_layers": self.dense,
                    "layer_types": [kinds[i in self.convs] for i in range(self.layers)],
                    "num_experts": self.experts, "num_experts_per_tok": self.used,
                    "moe_intermediate_size": self.ffn, "norm_topk_prob": True,
                    "use_expert_bias": True, "routed_scaling_factor": 1.0}
        if self.arch == "phi3":
            del out["head_dim"]
            out |= {"partial_rotary_factor": self.rope_dims / self.dim, "resid_pdrop": 0.0,
                    "original_max_position_embeddings": self.original or 512,
                    "sliding_window": self.window or None, "lm_head_bias": False}
        if self.arch == "gpt-oss":
            kinds = ("sliding_attention", "full_attention")
            out |= {"sliding_window": self.window, "attention_bias": True, "swiglu_limit": 7.0,
                    "layer_types": [kinds[i % 2] for i in range(self.layers)],
                    "num_local_experts": self.experts, "num_experts_per_tok": self.used,
                    "experts_per_token": self.used, "initial_context_length": 128,
                    "router_aux_loss_coef": 0.9, "output_router_logits": False}
            if self.kind == Q.MXFP4:
                out["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                    "lm_head"]}
        elif self.experts and self.arch != "lfm2moe":
            out |= {"num_experts": self.experts, "num_experts_per_tok": self.used,
                    "moe_intermediate_size": self.ffn, "norm_topk_prob": True,
                    "decoder_sparse_step": 1, "mlp_only_layers": []}
        if self.arch == "mistral3":
            out["rope_parameters"] = {
                "rope_type": "yarn", "rope_theta": out.pop("rope_theta"), "factor": 4.0,
                "original_max_position_embeddings": self.original, "beta_fast": 32.0,
                "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": TEMPERATURE, "max_position_embeddings": 512}
        elif self.scaling == "llama3":
            out["rope_scaling"] = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
        elif self.scaling == "yarn":
            out["rope_scaling"] = {"type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 128}
            if self.arch == "gpt-oss":
                out["rope_scaling"] |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        elif self.scaling == "longrope":
            short, long = long_factors(self.rope_dims // 2)
            out["rope_scaling"] = {"type": "longrope", "short_factor": [float(x) for x in short],
                                   "long_factor": [float(x) for x in long]}
        elif self.scaling:
            out["rope_scaling"] = {"rope_type": self.scaling, "factor": 4.0}
        return out

    def folder_name(self, name):
        for other, own in LFM2_NAMES.items():
            if self.arch in LFM2 and f"{other}." in name:
                return name.replace(f"{other}.", f"{own}.")
        if self.arch == "lfm2moe":
            for other, own in (("gate_proj.", "w1."), ("up_proj.", "w3."), ("down_proj.", "w2."),
                               (".mlp.", ".feed_forward.")):
                name = name.replace(other, own)
        return name

    def write_folder(self, folder, shards=1):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(), indent=1) + "\n")
        write_tokenizer_files(folder)
        items = [(self.folder_name(name), data) for name, data in self.folder_items()]
        if shards == 1:
            write_safetensors(folder / "model.safetensors", items, self.kind)
            return
        index = {}
        for i in range(shards):
            name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = items[i::shards]
            write_safetensors(folder / name, part, self.kind)
            index |= {tensor: name for tensor, _ in part}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index}, indent=0) + "\n")

    def folder_items(self):
        return self.gpt_oss_items() if self.arch == "gpt-oss" else self.weights.items()

    def gpt_oss_items(self):
        """Under the names of gpt_oss: one tensor for all experts, gate and up interleaved; in MXFP4
        as blocks and scales [experts, rows, ...], else transposed."""
        for name, data in self.weights.items():
            if ".experts." not in name:
                yield name.replace(".mlp.gate.", ".mlp.router."), data
            elif ".experts.0." in name and ".up_proj." not in name:
                at = name[:name.index(".experts.") + len(".experts.")]
                part, kind = name.rsplit(".", 2)[1:]
                stack = lambda p: np.stack([self.weights[f"{at}{e}.{p}.{kind}"]
                                            for e in range(self.experts)])
                fused = stack(part)
                if part == "gate_proj":
                    fused = np.stack([fused, stack("up_proj")], axis=2)
                    fused = fused.reshape(self.experts, 2 * self.ffn, *fused.shape[3:])
                    part = "gate_up_proj"
                if kind == "bias":
                    yield f"{at}{part}_bias", fused
                elif self.kind == Q.MXFP4:
                    yield from mxfp4_items(f"{at}{part}", fused)
                else:
                    yield f"{at}{part}", np.ascontiguousarray(fused.swapaxes(1, 2))


def mxfp4_items(name, data):
    """The blocks and scales of published gpt_oss folders: 16 bytes of two digits, the even element
    below. The digits are those that GGUF has in another order."""
    raw = gguf.quants.quantize(data, Q.MXFP4).reshape(*data.shape[:-1], -1, 17)
    digits = np.concatenate([raw[..., 1:] & 15, raw[..., 1:] >> 4], axis=-1)
    yield name + "_blocks", digits[..., 0::2] | digits[..., 1::2] << 4
    yield name + "_scales", np.ascontiguousarray(raw[..., 0])


def write_safetensors(path, items, kind, is_f32=lambda name: False, bytes_are="U8"):
    """u64 header length, JSON header, data (the format's README)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    kind = Q.BF16 if kind == Q.MXFP4 else kind  # of all but the experts
    dtypes = {Q.F32: "F32", Q.F16: "F16", Q.BF16: "BF16"}
    for name, values in items:
        is_raw = values.dtype == np.uint8
        as_kind = Q.F32 if is_f32(name) else kind
        raw = values.tobytes() if is_raw else gguf.quants.quantize(values, as_kind).tobytes()
        header[name] = {"dtype": bytes_are if is_raw else dtypes[as_kind],
                        "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_tokenizer_files(folder):
    vocab = {t: i for i, t in enumerate(all_tokens())}
    special = lambda i, t: {"id": i, "content": t, "single_word": False, "lstrip": False,
                            "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special(i, t) for i, t in enumerate(SPECIALS)], "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": MERGES},
    }, ensure_ascii=False) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False,
        "chat_template": TEMPLATE}, indent=1) + "\n")


def write_architectures(folder):
    """A model for each architecture as a file and as a folder; yields the paths of the files."""
    models = [
        (TinyModel("llama_linear", "llama", Q.F16, scaling="linear", tied=False, heads=4,
                   kv_heads=2), 1),
        (TinyModel("llama_yarn", "llama", Q.F32, scaling="yarn"), 1),
        (TinyModel("llama_llama3", "llama", Q.BF16, scaling="llama3"), 3),
        (TinyModel("qwen2", "qwen2", Q.BF16, heads=4, kv_heads=2, dim=8), 1),
        (TinyModel("qwen3", "qwen3", Q.F16, dim=24, tied=False), 1),
        (TinyModel("qwen3moe", "qwen3moe", Q.BF16, ffn=32, experts=8, used=3), 2),
        (TinyModel("qwen3moe_q8_0", "qwen3moe", Q.Q8_0, ffn=32, experts=5, used=2), 0),
        (TinyModel("gemma3", "gemma3", Q.BF16, layers=7, window=33), 1),
        # Heads of the sizes that the CUDA kernels take.
        (TinyModel("head64_llama", "llama", Q.Q4_0, hidden=64, ffn=96, heads=3, dim=64), 0),
        (TinyModel("head64_qwen2", "qwen2", Q.BF16, hidden=40, heads=4, kv_heads=2, dim=64), 0),
        (TinyModel("head128_qwen3", "qwen3", Q.Q8_0, dim=128, tied=False), 0),
        (TinyModel("head64_gemma3", "gemma3", Q.Q4_0, layers=7, dim=64, window=33), 0),
        (TinyModel("head64_qwen3moe", "qwen3moe", Q.Q8_0, ffn=32, dim=64, experts=7, used=3), 0),
        # Models with such heads that have as many KV heads as ranks.
        (TinyModel("ranks8_llama", "llama", Q.Q4_0, hidden=64, ffn=256, heads=16, kv_heads=8,
                   dim=64, tied=False), 0),
        (TinyModel("ranks2_gemma3", "gemma3", Q.Q4_0, layers=7, heads=4, kv_heads=2, dim=64,
                   window=33), 0),
        (TinyModel("ranks2_qwen3moe", "qwen3moe", Q.Q8_0, ffn=32, heads=4, kv_heads=2, dim=64,
                   experts=7, used=3), 0),
        (TinyModel("smollm3", "smollm3", Q.BF16, layers=5, heads=4, kv_heads=2, dim=8,
                   rope_base=5e6), 1),
        (TinyModel("granite", "granite", Q.F16, heads=4, kv_heads=2), 1),
        (TinyModel("head64_smollm3", "smollm3", Q.Q4_0, layers=5, dim=64, rope_base=5e6), 0),
        (TinyModel("qwen3moe_mxfp4", "qwen3moe", Q.MXFP4, ffn=32, experts=5, used=2), 0),
        (TinyModel("gptoss", "gpt-oss", Q.BF16, layers=4, ffn=32, heads=8, kv_heads=2, dim=8,
                   tied=False, scaling="yarn", experts=6, used=4, window=33,
                   rope_base=150000.0), 2),
        (TinyModel("gptoss_mxfp4", "gpt-oss", Q.MXFP4, ffn=32, dim=64, tied=False,
                   scaling="yarn", experts=5, used=2, window=20, rope_base=150000.0), 1),
        # Served for its 512 tokens, so with the long factors; of 16 elements 12 rotate.
        (TinyModel("phi3", "phi3", Q.BF16, heads=4, kv_heads=2, hidden=64, rope_dims=12,
                   scaling="longrope", original=128), 1),
        # The short factors, and a window in all layers.
        (TinyModel("phi3_short", "phi3", Q.Q8_0, heads=4, hidden=64, rope_dims=8, window=33,
                   scaling="longrope", original=512, tied=False), 0),
        # Neither.
        (TinyModel("phi3_plain", "phi3", Q.F16, tied=False), 1),
        (TinyModel("olmo2", "olmo2", Q.BF16, heads=4, kv_heads=2, dim=24, tied=False), 1),
        (TinyModel("olmo2_q8_0", "olmo2", Q.Q8_0, tied=False), 0),
        # Prompts of 300 tokens have five temperatures.
        (TinyModel("mistral3", "mistral3", Q.BF16, heads=4, kv_heads=2, scaling="yarn",
                   original=64), 1),
        (TinyModel("mistral3_q4_0", "mistral3", Q.Q4_0, scaling="yarn", original=64,
                   tied=False), 0),
    ]
    for model, shards in models:
        path = folder / f"tiny_{model.name}.gguf"
        model.write_gguf(path)
        if model.name == "qwen2":
            model.write_gguf(folder / "tiny_split.gguf", tensors_per_part=10)
        if model.name == "llama_yarn":
            for kind in (Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1):
                model.kind = kind
                model.write_gguf(folder / f"tiny_converted_{kind.name.lower()}.gguf")
            model.kind = Q.F32
        if shards:
            model.write_folder(folder / f"tiny_{model.name}", shards)
        yield path


def write_convolutions(folder):
    """Models with short convolutions as files and as folders; yields the paths of the files."""
    models = [
        # A convolution takes 3 slices of KV and leaves 8 elements of them; it is the last layer.
        (TinyModel("lfm2", "lfm2", Q.BF16, layers=6, hidden=40, heads=5, kv_heads=1, dim=8,
                   rope_base=1e6, convs=(0, 1, 3, 5)), 2),
        # A convolution takes one slice, whole; attention is the last layer.
        (TinyModel("lfm2_q8_0", "lfm2", Q.Q8_0, layers=4, hidden=64, heads=2, kv_heads=1, dim=32,
                   rope_base=1e6, convs=(0, 2), taps=5), 0),
        # The second convolution and both layers of attention have experts.
        (TinyModel("lfm2moe", "lfm2moe", Q.BF16, layers=4, heads=4, kv_heads=2, dim=8, ffn=16,
                   rope_base=1e6, convs=(0, 2), experts=6, used=2, dense=1, dense_ffn=48), 2),
        # Heads of the size that the CUDA kernels take. A convolution takes half of a slice and
        # attention is the last layer; one and a half, and a convolution is the last layer.
        (TinyModel("head64_lfm2", "lfm2", Q.BF16, layers=3, hidden=64, heads=1, dim=64, ffn=32,
                   rope_base=1e6, convs=(0, 1), taps=4), 0),
        (TinyModel("head64_lfm2_q4_0", "lfm2", Q.Q4_0, layers=3, hidden=192, heads=3, dim=64,
                   ffn=32, rope_base=1e6, convs=(0, 2)), 0),
        (TinyModel("head64_lfm2moe", "lfm2moe", Q.Q4_0, layers=3, hidden=128, heads=2, dim=64,
                   ffn=32, rope_base=1e6, convs=(0, 2), experts=6, used=2, dense=1,
                   dense_ffn=96), 0),
    ]
    for model, shards in models:
        path = folder / f"tiny_{model.name}.gguf"
        model.write_gguf(path)
        if shards:
            model.write_folder(folder / f"tiny_{model.name}", shards)
        yield path
