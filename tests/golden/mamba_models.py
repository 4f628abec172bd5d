"""nemotron_h: random models whose layers are of Mamba-2, of attention, or feed-forward layers
alone, and these layers in float64."""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

import tiny_models

ARCH = "nemotron_h"
NAMES = {"norm.weight": "attn_norm.weight", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d",
         "mixer.dt_bias": "ssm_dt.bias", "mixer.conv1d.bias": "ssm_conv1d.bias",
         **{f"mixer.{hf}.weight": f"{own}.weight" for hf, own in (
             ("in_proj", "ssm_in"), ("conv1d", "ssm_conv1d"), ("norm", "ssm_norm"),
             ("out_proj", "ssm_out"), ("q_proj", "attn_q"), ("k_proj", "attn_k"),
             ("v_proj", "attn_v"), ("o_proj", "attn_output"), ("up_proj", "ffn_up"),
             ("down_proj", "ffn_down"))}}
WHOLE_NAMES = {"backbone.embeddings.weight": "token_embd.weight",
               "backbone.norm_f.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


class MambaModel(tiny_models.TinyModel):
    """A model with a layer for each letter of `pattern`: M of Mamba-2, * of attention, - a
    feed-forward layer. `old`: its folder has the keys of 2025, else those of transformers 5."""

    def __init__(self, name, kind, pattern, groups, m_heads, m_dim, state, conv_bias=True, old=True,
                 **shape):
        self.pattern, self.groups, self.m_heads, self.m_dim = pattern, groups, m_heads, m_dim
        self.state, self.conv_bias, self.old = state, conv_bias, old
        super().__init__(name, ARCH, kind, layers=len(pattern), tied=False, **shape)

    @property
    def inner(self):
        return self.m_heads * self.m_dim

    @property
    def channels(self):
        return self.inner + 2 * self.groups * self.state

    def fill(self):
        norm = lambda name, n: self.vector(name, n, 1.0, 0.2)
        self.matrix("backbone.embeddings.weight", self.vocab, self.hidden, 4.0)
        norm("backbone.norm_f.weight", self.hidden)
        self.matrix("lm_head.weight", self.vocab, self.hidden, 4.0)
        for layer, letter in enumerate(self.pattern):
            at = f"backbone.layers.{layer}."
            norm(at + "norm.weight", self.hidden)
            at += "mixer."
            if letter == "M":
                self.fill_mamba(at, norm)
            elif letter == "*":
                self.matrix(at + "q_proj.weight", self.heads * self.dim, self.hidden, 2.0)
                self.matrix(at + "k_proj.weight", self.kv_heads * self.dim, self.hidden, 2.0)
                self.matrix(at + "v_proj.weight", self.kv_heads * self.dim, self.hidden, 1.0)
                self.matrix(at + "o_proj.weight", self.hidden, self.heads * self.dim, 1.0)
            else:
                self.matrix(at + "up_proj.weight", self.ffn, self.hidden, 1.0)
                self.matrix(at + "down_proj.weight", self.hidden, self.ffn, 1.0)

    def fill_mamba(self, at, norm):
        rows = self.inner + self.channels + self.m_heads
        self.matrix(at + "in_proj.weight", rows, self.hidden, 1.0)
        self.vector(at + "conv1d.weight", self.channels * self.taps, 0.0, 0.7)
        conv = self.weights[at + "conv1d.weight"]
        self.weights[at + "conv1d.weight"] = conv.reshape(self.channels, 1, self.taps)
        if self.conv_bias:
            self.vector(at + "conv1d.bias", self.channels, 0.0, 0.3)
        # From a memory of a hundred tokens to one of a few.
        self.vector(at + "A_log", self.m_heads, -1.5, 1.0)
        self.vector(at + "dt_bias", self.m_heads, -1.0, 1.0)
        self.vector(at + "D", self.m_heads, 1.0, 0.3)
        norm(at + "norm.weight", self.inner)
        self.matrix(at + "out_proj.weight", self.hidden, self.inner, 1.0)

    def gguf_tensors(self):
        for name, data in self.weights.items():
            if name in WHOLE_NAMES:
                yield WHOLE_NAMES[name], data
                continue
            _, _, layer, rest = name.split(".", 3)
            if rest == "mixer.A_log":
                data = -np.exp(data.astype(np.float64)).astype(np.float32)
            if rest in ("mixer.A_log", "mixer.D"):
                data = data.reshape(-1, 1)
            if rest == "mixer.conv1d.weight":
                data = data.reshape(-1, self.taps)
            if rest == "mixer.norm.weight":
                data = data.reshape(self.groups, -1)
            yield f"blk.{layer}.{NAMES[rest]}", data

    def write_gguf(self, path):
        """Keys and forms as llama.cpp's converter writes them."""
        writer = gguf.GGUFWriter(str(path), self.arch)
        writer.add_name(path.stem)
        writer.add_context_length(512)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers)
        writer.add_feed_forward_length([self.ffn if c == "-" else 0 for c in self.pattern])
        writer.add_head_count(self.heads)
        writer.add_head_count_kv([self.kv_heads if c == "*" else 0 for c in self.pattern])
        writer.add_key_length(self.dim)
        writer.add_value_length(self.dim)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_dimension_count(self.dim)
        writer.add_rope_scaling_finetuned(False)
        writer.add_ssm_conv_kernel(self.taps)
        writer.add_ssm_state_size(self.state)
        writer.add_ssm_group_count(self.groups)
        writer.add_ssm_time_step_rank(self.m_heads)
        writer.add_ssm_inner_size(self.inner)
        tiny_models.add_tokenizer(writer)
        for name, data in self.gguf_tensors():
            plain = ("ssm_a", "ssm_d", "ssm_conv1d", "ssm_norm")
            if data.ndim == 1 or any(part in name for part in plain):
                writer.add_tensor(name, data)
            else:
                writer.add_tensor(name, gguf.quants.quantize(data, self.kind), raw_dtype=self.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def config(self):
        out = {"model_type": ARCH, "architectures": ["NemotronHForCausalLM"],
               "hidden_size": self.hidden, "intermediate_size": self.ffn,
               "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
               "vocab_size": self.vocab, "max_position_embeddings": 512,
               "layer_norm_epsilon": 1e-6, "tie_word_embeddings": False, "bos_token_id": 1,
               "eos_token_id": 2, "mlp_hidden_act": "relu2", "mlp_bias": False,
               "attention_bias": False, "attention_dropout": 0.0, "mamba_num_heads": self.m_heads,
               "mamba_head_dim": self.m_dim, "mamba_hidden_act": "silu", "mamba_proj_bias": False,
               "ssm_state_size": self.state, "n_groups": self.groups, "conv_kernel": self.taps,
               "use_conv_bias": self.conv_bias, "use_bias": False, "expand": 2, "chunk_size": 128,
               "time_step_limit": [0.0, float("inf")], "time_step_min": 0.001,
               "time_step_max": 0.1, "time_step_floor": 0.0001, "residual_in_fp32": False,
               "rescale_prenorm_residual": True, "num_logits_to_keep": 1, "sliding_window": None,
               "hidden_dropout": 0.0, "use_mamba_kernels": True, "initializer_range": 0.02}
        if self.old:
            return out | {"hybrid_override_pattern": self.pattern, "torch_dtype": "bfloat16",
                          "num_hidden_layers": self.layers, "attention_head_dim": self.dim,
                          "rms_norm_eps": 1e-6, "time_step_rank": 256}
        kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
        return out | {"layers_block_type": [kinds[c] for c in self.pattern], "dtype": "bfloat16",
                      "head_dim": self.dim}


def write_models(folder):
    """The models as files and the first two as folders; yields the paths of the files."""
    models = [
        # Layers of Mamba-2 before, between and after those of attention; a feed-forward layer last.
        (MambaModel("nemotron_h", Q.BF16, "M-M*-M*M-", groups=2, m_heads=4, m_dim=32, state=16,
                    taps=4), 2),
        # One group, no bias of the convolution, heads of five vectors; Mamba-2 last.
        (MambaModel("nemotron_h_plain", Q.BF16, "*-MM", groups=1, m_heads=2, m_dim=80, state=32,
                    conv_bias=False, old=False, taps=2), 1),
        # Attention last.
        (MambaModel("nemotron_h_q8_0", Q.Q8_0, "M*-M*", groups=3, m_heads=3, m_dim=64, state=32,
                    taps=4, hidden=64, heads=4, kv_heads=2), 0),
    ]
    for model, shards in models:
        path = folder / f"tiny_{model.name}.gguf"
        model.write_gguf(path)
        if shards:
            model.write_folder(folder / f"tiny_{model.name}", shards)
        yield path


# The layers ---------------------------------------------------------------------------------------

def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mix_mamba(weights, w, h):
    """The recurrent form of Mamba-2 (Dao and Gu 2024), a token at a time; gate, then norm."""
    groups, heads = weights.key("ssm.group_count"), weights.key("ssm.time_step_rank")
    state_size, inner = weights.key("ssm.state_size"), weights.key("ssm.inner_size")
    keys, taps = groups * state_size, w("ssm_conv1d.weight")
    eps = float(weights.key("attention.layer_norm_rms_epsilon"))
    z, x, dt = np.split(h @ w("ssm_in.weight").T, [inner, 2 * inner + 2 * keys], axis=-1)
    mixed = np.zeros_like(x)
    for j in range(taps.shape[1]):
        back = taps.shape[1] - 1 - j
        if back < len(x):
            mixed[back:] += taps[:, j] * x[:len(x) - back]
    if w("ssm_conv1d.bias") is not None:
        mixed = mixed + w("ssm_conv1d.bias")
    mixed = mixed * sigmoid(mixed)
    x = mixed[:, :inner].reshape(len(h), heads, -1)
    of_head = np.arange(heads) // (heads // groups)
    b = mixed[:, inner:inner + keys].reshape(len(h), groups, -1)[:, of_head]
    c = mixed[:, inner + keys:].reshape(len(h), groups, -1)[:, of_head]
    step = np.log1p(np.exp(dt + w("ssm_dt.bias")))
    decay = np.exp(step * w("ssm_a")[:, 0])
    state, y = np.zeros((heads, x.shape[-1], state_size)), np.empty_like(x)
    for t in range(len(h)):
        added = (step[t][:, None] * x[t])[:, :, None] * b[t][:, None, :]
        state = decay[t][:, None, None] * state + added
        y[t] = np.einsum("hps,hs->hp", state, c[t])
    y = (y + w("ssm_d") * x).reshape(len(h), inner)
    y = (y * z * sigmoid(z)).reshape(len(h), groups, -1)
    y = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + eps) * w("ssm_norm.weight")
    return y.reshape(len(h), inner) @ w("ssm_out.weight").T


def mix(shape, weights, w, layer, h, attention):
    """The one mixer of a layer, of a normed row."""
    has = lambda part: f"blk.{layer}.{part}" in weights.tensors
    if has("ssm_a"):
        optional = lambda name: w(name) if has(name) else None
        return mix_mamba(weights, optional, h)
    if has("ffn_up.weight"):
        return np.maximum(h @ w("ffn_up.weight").T, 0) ** 2 @ w("ffn_down.weight").T
    q, k, v = ((h @ w(f"attn_{part}.weight").T).reshape(len(h), -1, shape.dim) for part in "qkv")
    return attention(q, k, v, shape.attention_scale, None) @ w("attn_output.weight").T
