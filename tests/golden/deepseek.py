"""deepseek2: tiny random models as files and as folders, and their layers in float64, computed as
the modules of Hugging Face transformers compute them: with keys and values of each head."""

import json

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

import tiny_models

YARN_FACTOR, ORIGINAL = 4.0, 64
FP8_SCALE = 2.0 ** -8  # bf16 holds every product
# The epsilon of the norms of latents and of queries; the model's is another one.
LATENT_EPS = 1e-6


class TinyDeepseek(tiny_models.TinyModel):
    """`v3`: sigmoid, bias and groups as DeepSeek-V3 has them; else softmax as V2, in the file with
    attn_kv_b, as converters before April 2025 wrote it, where `joined`."""

    def __init__(self, name, kind, v3, q_rank, latent, nope, rope, value, experts, used, groups,
                 groups_used, shared, scale, mscale, heads=4, ffn=32, joined=False):
        self.v3, self.q_rank, self.latent, self.nope, self.rope = v3, q_rank, latent, nope, rope
        self.value, self.groups, self.groups_used, self.shared = value, groups, groups_used, shared
        self.scale, self.mscale, self.joined = scale, mscale, joined
        super().__init__(name, "deepseek2", kind, layers=3, hidden=32, ffn=ffn, heads=heads,
                         tied=False, scaling="yarn", experts=experts, used=used,
                         rope_dims=rope, original=ORIGINAL, dense=1, dense_ffn=2 * ffn)

    def fill(self):
        norm = lambda name, n: self.vector(name, n, 1.0, 0.2)
        self.matrix("model.embed_tokens.weight", self.vocab, self.hidden, 4.0)
        norm("model.norm.weight", self.hidden)
        self.matrix("lm_head.weight", self.vocab, self.hidden, 4.0)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            norm(at + "input_layernorm.weight", self.hidden)
            norm(at + "post_attention_layernorm.weight", self.hidden)
            self.fill_attention(at + "self_attn.", norm)
            if layer < self.dense:
                self.fill_mlp(at + "mlp.", self.dense_ffn)
                continue
            # Far apart, so that a rounding of the input seldom changes who is chosen. Sigmoids of
            # far logits are all 1: there the biases part the experts.
            name, spread = at + "mlp.gate.weight", 2.0 if self.v3 else 8.0
            data = self.rng.standard_normal((self.experts, self.hidden)) * spread
            self.weights[name] = (data / np.sqrt(self.hidden)).astype(np.float32)
            if self.v3:
                bias = np.linspace(-2.0, 2.0, self.experts) + self.rng.uniform(-0.1, 0.1)
                self.weights[at + "mlp.gate.e_score_correction_bias"] = self.rng.permutation(
                    bias).astype(np.float32)
            for e in range(self.experts):
                self.fill_mlp(f"{at}mlp.experts.{e}.", self.ffn)
            self.fill_mlp(at + "mlp.shared_experts.", self.shared * self.ffn)

    def fill_attention(self, at, norm):
        size = self.heads * (self.nope + self.rope)
        if self.q_rank:
            self.matrix(at + "q_a_proj.weight", self.q_rank, self.hidden, 1.0)
            norm(at + "q_a_layernorm.weight", self.q_rank)
            self.matrix(at + "q_b_proj.weight", size, self.q_rank, 2.0)
        else:
            self.matrix(at + "q_proj.weight", size, self.hidden, 2.0)
        self.matrix(at + "kv_a_proj_with_mqa.weight", self.latent + self.rope, self.hidden, 2.0)
        norm(at + "kv_a_layernorm.weight", self.latent)
        name, rows = at + "kv_b_proj.weight", self.heads * (self.nope + self.value)
        self.matrix(name, rows, self.latent, 2.0)
        if self.v3:  # as published folders have it: fp8 with a scale of 128 x 128 elements
            codes = to_e4m3(self.weights[name] / FP8_SCALE)
            self.weights[name] = (e4m3_values()[codes] * FP8_SCALE).astype(np.float32)
        self.matrix(at + "o_proj.weight", self.hidden, self.heads * self.value, 1.0)

    def fill_mlp(self, at, ffn):
        self.matrix(at + "gate_proj.weight", ffn, self.hidden, 1.0)
        self.matrix(at + "up_proj.weight", ffn, self.hidden, 1.0)
        self.matrix(at + "down_proj.weight", self.hidden, ffn, 1.0)

    # GGUF -----------------------------------------------------------------------------------------

    def write_gguf(self, path):
        """Keys and tensors as conversion/deepseek.py of llama.cpp writes them."""
        writer = gguf.GGUFWriter(str(path), self.arch)
        writer.add_name(path.stem)
        writer.add_context_length(512)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers)
        writer.add_feed_forward_length(self.dense_ffn)
        writer.add_head_count(self.heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_kv_lora_rank(self.latent)
        if self.q_rank:
            writer.add_q_lora_rank(self.q_rank)
        if self.joined:
            writer.add_head_count_kv(self.heads)
            writer.add_key_length(self.nope + self.rope)
            writer.add_value_length(self.value)
        else:
            writer.add_head_count_kv(1)
            writer.add_key_length(self.latent + self.rope)
            writer.add_value_length(self.latent)
            writer.add_key_length_mla(self.nope + self.rope)
            writer.add_value_length_mla(self.value)
        writer.add_rope_dimension_count(self.rope)
        writer.add_leading_dense_block_count(self.dense)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.used)
        writer.add_expert_feed_forward_length(self.ffn)
        writer.add_expert_shared_count(self.shared)
        writer.add_expert_weights_scale(self.scale)
        if self.v3:
            writer.add_expert_weights_norm(True)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if self.v3 else
                                      gguf.ExpertGatingFuncType.SOFTMAX)
        if self.groups > 1:
            writer.add_expert_group_count(self.groups)
            writer.add_expert_group_used_count(self.groups_used)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(YARN_FACTOR)
        writer.add_rope_scaling_orig_ctx_len(ORIGINAL)
        writer.add_rope_scaling_yarn_log_mul(0.1 * self.mscale)
        tiny_models.add_tokenizer(writer)
        for name, data in self.gguf_tensors():
            if data.ndim == 1 or "ffn_gate_inp" in name:
                writer.add_tensor(name, data)
            else:
                raw = gguf.quants.quantize(np.ascontiguousarray(data), self.kind)
                writer.add_tensor(name, raw, raw_dtype=self.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def gguf_tensors(self):
        whole = {"model.embed_tokens.weight": "token_embd.weight",
                 "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
        names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
                 "q_proj": "attn_q", "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm",
                 "q_b_proj": "attn_q_b", "kv_a_proj_with_mqa": "attn_kv_a_mqa",
                 "kv_a_layernorm": "attn_kv_a_norm", "o_proj": "attn_output",
                 "gate": "ffn_gate_inp", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
                 "down_proj": "ffn_down"}
        for name, data in self.weights.items():
            if name in whole:
                yield whole[name], data
                continue
            layer, rest = name.split(".", 3)[2:]
            part = rest.split(".")[-2]
            if name.endswith("e_score_correction_bias"):
                yield f"blk.{layer}.exp_probs_b.bias", data
            elif part == "kv_b_proj":
                if self.joined:
                    yield f"blk.{layer}.attn_kv_b.weight", data
                    continue
                heads = data.reshape(self.heads, self.nope + self.value, self.latent)
                yield f"blk.{layer}.attn_k_b.weight", heads[:, :self.nope].swapaxes(1, 2)
                yield f"blk.{layer}.attn_v_b.weight", heads[:, self.nope:]
            elif ".shared_experts." in name:
                yield f"blk.{layer}.{names[part]}_shexp.weight", data
            elif ".experts." not in name:
                yield f"blk.{layer}.{names[part]}.weight", data
            elif ".experts.0." in name:
                stack = [self.weights[name.replace(".experts.0.", f".experts.{e}.")]
                         for e in range(self.experts)]
                yield f"blk.{layer}.{names[part]}_exps.weight", np.stack(stack)

    # Folder ---------------------------------------------------------------------------------------

    def config(self):
        """As published folders have it."""
        out = {"model_type": "deepseek_v3" if self.v3 else "deepseek_v2",
               "architectures": ["DeepseekV3ForCausalLM" if self.v3 else "DeepseekV2ForCausalLM"],
               "num_hidden_layers": self.layers, "hidden_size": self.hidden,
               "intermediate_size": self.dense_ffn, "num_attention_heads": self.heads,
               "num_key_value_heads": self.heads, "vocab_size": self.vocab,
               "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": self.rope_base,
               "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
               "hidden_act": "silu", "torch_dtype": "bfloat16", "attention_bias": False,
               "attention_dropout": 0.0, "kv_lora_rank": self.latent,
               "q_lora_rank": self.q_rank or None, "qk_nope_head_dim": self.nope,
               "qk_rope_head_dim": self.rope, "v_head_dim": self.value,
               "n_routed_experts": self.experts, "n_shared_experts": self.shared,
               "num_experts_per_tok": self.used, "moe_intermediate_size": self.ffn,
               "moe_layer_freq": 1, "first_k_dense_replace": self.dense,
               "norm_topk_prob": self.v3, "routed_scaling_factor": self.scale,
               "scoring_func": "sigmoid" if self.v3 else "softmax", "seq_aux": True,
               "aux_loss_alpha": 0.001, "ep_size": 1, "n_group": self.groups,
               "topk_group": self.groups_used,
               "topk_method": "noaux_tc" if self.v3 else
                              "group_limited_greedy" if self.groups > 1 else "greedy",
               "rope_scaling": {"type": "yarn", "factor": YARN_FACTOR, "beta_fast": 32,
                                "beta_slow": 1, "mscale": self.mscale,
                                "mscale_all_dim": self.mscale,
                                "original_max_position_embeddings": ORIGINAL}}
        if self.v3:
            out["num_nextn_predict_layers"] = 1
            out["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                          "activation_scheme": "dynamic",
                                          "weight_block_size": [128, 128]}
        return out

    def folder_items(self):
        """With a tensor of the layer that predicts further ahead, which is left out."""
        for name, data in self.weights.items():
            if not self.v3 or "kv_b_proj" not in name:
                yield name, data
                continue
            yield name, to_e4m3(data / FP8_SCALE)
            blocks = [(size - 1) // 128 + 1 for size in data.shape]
            yield name + "_scale_inv", np.full(blocks, FP8_SCALE, dtype=np.float32)
        if self.v3:
            yield f"model.layers.{self.layers}.enorm.weight", self.weights["model.norm.weight"]

    def write_folder(self, folder, shards=1):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(), indent=1) + "\n")
        tiny_models.write_tokenizer_files(folder)
        items, index = list(self.folder_items()), {}
        for i in range(shards):
            name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            tiny_models.write_safetensors(
                folder / name, items[i::shards], self.kind,
                is_f32=lambda n: ".gate.weight" in n or n.endswith(("bias", "_inv")),
                bytes_are="F8_E4M3")
            index |= {tensor: name for tensor, _ in items[i::shards]}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index}, indent=0) + "\n")


def e4m3_values():
    """The values of the 256 codes of F8_E4M3; the two NaN as infinity."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    size = np.where(exponent == 0, mantissa / 8 * 2.0 ** -6, normal)
    size[code & 127 == 127] = np.inf
    return np.where(code > 127, -size, size)


def to_e4m3(data):
    """The codes of the nearest values."""
    values = e4m3_values()
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    at = np.clip(np.searchsorted(values[order], data), 1, len(order) - 1)
    left, right = values[order][at - 1], values[order][at]
    return order[np.where(data - left <= right - data, at - 1, at)].astype(np.uint8)


def write_models(folder):
    """Yields the paths of the files."""
    models = [
        # V3: queries by way of 24 elements; a latent that fills no whole vectors.
        (TinyDeepseek("deepseek2", Q.BF16, v3=True, q_rank=24, latent=40, nope=16, rope=8, value=12,
                      experts=8, used=3, groups=4, groups_used=2, shared=1, scale=2.5,
                      mscale=1.0, ffn=16), 2),
        # V2-Lite.
        (TinyDeepseek("deepseek2_lite", Q.F16, v3=False, q_rank=0, latent=32, nope=16, rope=16,
                      value=16, experts=6, used=2, groups=1, groups_used=1, shared=2, scale=1.0,
                      mscale=0.707, ffn=16), 2),
        # V2: groups by their best expert; kv_b joined and in blocks.
        (TinyDeepseek("deepseek2_q8_0", Q.Q8_0, v3=False, q_rank=32, latent=64, nope=32, rope=16,
                      value=32, experts=8, used=3, groups=4, groups_used=2, shared=1, scale=1.5,
                      mscale=0.707, joined=True), 0),
        (TinyDeepseek("deepseek2_split_q8_0", Q.Q8_0, v3=True, q_rank=0, latent=64, nope=32,
                      rope=16, value=32, experts=8, used=3, groups=2, groups_used=1, shared=1,
                      scale=1.5, mscale=1.0), 0),
    ]
    for model, shards in models:
        path = folder / f"tiny_{model.name}.gguf"
        model.write_gguf(path)
        if shards:
            model.write_folder(folder / f"tiny_{model.name}", shards)
        yield path


# Reference ----------------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(g):
    return g / (1 + np.exp(-g))


def turn(x, freqs):
    """x [rows, heads, dims]: pairs (2i, 2i + 1) turn by position * freqs[i]."""
    angle = np.arange(len(x))[:, None, None] * freqs[None, None, :]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
    out[..., 1::2] = x[..., 1::2] * np.cos(angle) + x[..., 0::2] * np.sin(angle)
    return out


def kv_b_of(weights, layer, heads, nope, value):
    """[heads, nope + value, latent], from either form."""
    name = f"blk.{layer}.attn_kv_b.weight"
    if name in weights.tensors:
        return weights.get(name).reshape(heads, nope + value, -1)
    k_b = weights.get(f"blk.{layer}.attn_k_b.weight").swapaxes(1, 2)
    return np.concatenate([k_b, weights.get(f"blk.{layer}.attn_v_b.weight")], axis=1)


def attend(shape, weights, w, layer, x):
    """DeepseekV3Attention; `shape.freqs` are those of YaRN for the elements that turn."""
    heads, latent = shape.heads, weights.key("attention.kv_lora_rank")
    rope = weights.key("rope.dimension_count")
    size = weights.key("attention.key_length_mla", weights.key("attention.key_length"))
    value = weights.key("attention.value_length_mla", weights.key("attention.value_length"))
    nope = size - rope
    h = rms_norm(x, w("attn_norm.weight"), shape.eps)
    if weights.key("attention.q_lora_rank"):
        low = rms_norm(h @ w("attn_q_a.weight").T, w("attn_q_a_norm.weight"), LATENT_EPS)
        q = low @ w("attn_q_b.weight").T
    else:
        q = h @ w("attn_q.weight").T
    q = q.reshape(-1, heads, size)
    rows = h @ w("attn_kv_a_mqa.weight").T
    k_rope = turn(rows[:, None, latent:], shape.freqs)[:, 0]
    q_rope = turn(q[..., nope:], shape.freqs)
    low = rms_norm(rows[:, :latent], w("attn_kv_a_norm.weight"), LATENT_EPS)
    mscale = 10 * float(weights.key("rope.scaling.yarn_log_multiplier"))
    scale = size ** -0.5 * (1 + 0.1 * mscale * np.log(YARN_FACTOR)) ** 2
    mask = np.arange(len(x))[:, None] < np.arange(len(x))[None, :]
    out = np.empty((len(x), heads, value))
    for head, matrix in enumerate(kv_b_of(weights, layer, heads, nope, value)):
        kv = low @ matrix.T
        scores = (q[:, head, :nope] @ kv[:, :nope].T + q_rope[:, head] @ k_rope.T) * scale
        scores[mask] = -np.inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = (p / p.sum(axis=-1, keepdims=True)) @ kv[:, nope:]
    return out.reshape(len(x), -1) @ w("attn_output.weight").T


def choose(weights, logits, bias):
    """Experts and weights of one row: DeepseekV2TopkRouter, or DeepseekV3TopkRouter with a bias."""
    groups = weights.key("expert_group_count", 1)
    used_groups = weights.key("expert_group_used_count", 1)
    if bias is None:
        scores = np.exp(logits - logits.max())
        scores = choice = scores / scores.sum()
        of_group = choice.reshape(groups, -1).max(axis=-1)
    else:
        scores = 1 / (1 + np.exp(-logits))
        choice = scores + bias
        of_group = np.sort(choice.reshape(groups, -1), axis=-1)[:, -2:].sum(axis=-1)
    kept = np.argsort(-of_group, kind="stable")[:used_groups]
    mask = np.isin(np.arange(len(logits)) // (len(logits) // groups), kept)
    chosen = np.argsort(-np.where(mask, choice, -np.inf), kind="stable")
    chosen = chosen[:weights.key("expert_used_count")]
    share = scores[chosen]
    is_lfm2 = weights.arch == "lfm2moe"  # whose files do not say it
    if weights.key("expert_weights_norm", is_lfm2):
        share = share / (share.sum() + (1e-6 if is_lfm2 else 0))
    return chosen, share * float(weights.key("expert_weights_scale", 1.0))


def feed_forward(shape, weights, w, layer, x):
    h = rms_norm(x, w("ffn_norm.weight"), shape.eps)

    def mlp(rows, suffix, pick=lambda m: m):
        gate, up, down = (pick(w(f"ffn_{n}{suffix}.weight")) for n in ("gate", "up", "down"))
        return (silu(rows @ gate.T) * (rows @ up.T)) @ down.T

    if layer < weights.key("leading_dense_block_count"):
        return mlp(h, "")
    out = mlp(h, "_shexp") if weights.key("expert_shared_count") else np.zeros_like(h)
    logits = h @ w("ffn_gate_inp.weight").T
    is_sigmoid = weights.key("expert_gating_func") == gguf.ExpertGatingFuncType.SIGMOID
    bias = w("exp_probs_b.bias") if is_sigmoid else None
    for row in range(len(h)):
        for e, weight in zip(*choose(weights, logits[row], bias)):
            out[row] += weight * mlp(h[row], "_exps", lambda m, e=e: m[e])
    return out
