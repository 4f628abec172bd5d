"""qwen35 and qwen35moe: random models with gated delta nets, and their layers in float64."""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

import tiny_models

PLAIN_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    **{f"mlp.shared_expert.{part}_proj.weight": f"ffn_{part}_shexp.weight"
       for part in ("gate", "up", "down")},
    **{f"self_attn.{hf}.weight": f"{own}.weight" for hf, own in (
        ("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"),
        ("o_proj", "attn_output"), ("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm"))}}
PREDICTION_NAMES = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm",
                    "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}


ARCHITECTURES = ("qwen35", "qwen35moe")


class DeltaModel(tiny_models.TinyModel):
    """A model whose layers but every `interval`-th have a gated delta net. With `experts` a layer
    has one more of width `shared`; `joined`: gates and ups are one tensor in the file, and the gate
    of that expert is a matrix of one row."""

    def __init__(self, name, kind, interval=4, k_heads=2, v_heads=4, k_dim=16, v_dim=32, mtp=0,
                 shared=0, joined=False, **shape):
        self.interval, self.k_heads, self.v_heads = interval, k_heads, v_heads
        self.k_dim, self.v_dim, self.mtp = k_dim, v_dim, mtp
        self.shared, self.joined = shared, joined
        super().__init__(name, "qwen35moe" if shared else "qwen35", kind, **shape)

    def is_full(self, layer):
        return layer % self.interval == self.interval - 1

    def fill(self):
        norm = lambda name, n: self.vector(name, n, 0.0, 0.2)  # multiplies by 1 + weight
        self.matrix("model.embed_tokens.weight", self.vocab, self.hidden, 4.0)
        norm("model.norm.weight", self.hidden)
        if not self.tied:
            self.matrix("lm_head.weight", self.vocab, self.hidden, 4.0)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            norm(at + "input_layernorm.weight", self.hidden)
            (self.fill_attention if self.is_full(layer) else self.fill_delta)(at, norm)
            self.fill_feed_forward(at, norm)
        for layer in range(self.mtp):
            at = f"mtp.layers.{layer}."
            norm(at + "input_layernorm.weight", self.hidden)
            self.fill_attention(at, norm)
            self.fill_feed_forward(at, norm)
        if self.mtp:
            self.matrix("mtp.fc.weight", self.hidden, 2 * self.hidden, 1.0)
            for part in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
                norm(f"mtp.{part}.weight", self.hidden)

    def fill_attention(self, at, norm):
        self.matrix(at + "self_attn.q_proj.weight", 2 * self.heads * self.dim, self.hidden, 2.0)
        self.matrix(at + "self_attn.k_proj.weight", self.kv_heads * self.dim, self.hidden, 2.0)
        self.matrix(at + "self_attn.v_proj.weight", self.kv_heads * self.dim, self.hidden, 1.0)
        self.matrix(at + "self_attn.o_proj.weight", self.hidden, self.heads * self.dim, 1.0)
        norm(at + "self_attn.q_norm.weight", self.dim)
        norm(at + "self_attn.k_norm.weight", self.dim)

    def fill_feed_forward(self, at, norm):
        super().fill_feed_forward(at, norm)
        if not self.shared:
            return
        at += "mlp.shared_expert"
        self.matrix(at + "_gate.weight", 1, self.hidden, 2.0)
        self.matrix(at + ".gate_proj.weight", self.shared, self.hidden, 1.0)
        self.matrix(at + ".up_proj.weight", self.shared, self.hidden, 1.0)
        self.matrix(at + ".down_proj.weight", self.hidden, self.shared, 1.0)

    def fill_delta(self, at, norm):
        at += "linear_attn."
        values = self.v_heads * self.v_dim
        channels = 2 * self.k_heads * self.k_dim + values
        self.matrix(at + "in_proj_qkv.weight", channels, self.hidden, 1.0)
        self.matrix(at + "in_proj_z.weight", values, self.hidden, 1.0)
        self.matrix(at + "in_proj_b.weight", self.v_heads, self.hidden, 1.0)
        self.matrix(at + "in_proj_a.weight", self.v_heads, self.hidden, 1.0)
        self.vector(at + "conv1d.weight", channels * self.taps, 0.0, 0.7)
        conv = self.weights[at + "conv1d.weight"]
        self.weights[at + "conv1d.weight"] = conv.reshape(channels, 1, self.taps)
        # From a memory of a hundred tokens to one of a few.
        self.vector(at + "A_log", self.v_heads, -1.5, 1.0)
        self.vector(at + "dt_bias", self.v_heads, -1.0, 1.0)
        self.vector(at + "norm.weight", self.v_dim, 1.0, 0.2)
        self.matrix(at + "out_proj.weight", self.hidden, values, 1.0)

    # GGUF -----------------------------------------------------------------------------------------

    def tiled(self, data, axis, each, first=0):
        """Heads of v, `each` wide along an axis from `first` on, from Hugging Face's order (those
        of a head of k beside each other) to GGUF's (head h goes with head h % k_heads of k)."""
        data = np.moveaxis(data, axis, 0)
        heads = data[first:].reshape(self.k_heads, -1, each, *data.shape[1:])
        heads = heads.swapaxes(0, 1).reshape(data[first:].shape)
        return np.ascontiguousarray(np.moveaxis(np.concatenate([data[:first], heads]), 0, axis))

    def gguf_tensors(self):
        keys = 2 * self.k_heads * self.k_dim
        for name, data in self.weights.items():
            if name.endswith("norm.weight") and "linear_attn" not in name or "pre_fc" in name:
                data = data + 1
            if name == "model.embed_tokens.weight":
                yield "token_embd.weight", data
                continue
            if name in ("model.norm.weight", "lm_head.weight"):
                yield {"m": "output_norm.weight", "l": "output.weight"}[name[0]], data
                continue
            if name.startswith("mtp.") and not name.startswith("mtp.layers."):
                own = PREDICTION_NAMES[name.split(".")[1]]
                yield f"blk.{self.layers}.nextn.{own}.weight", data
                continue
            layer, rest = name.split("layers.")[1].split(".", 1)
            layer = int(layer) + (self.layers if name.startswith("mtp.") else 0)
            part = rest.removeprefix("linear_attn.")
            if part == "A_log":
                data = -np.exp(data.astype(np.float64)).astype(np.float32)
            if part == "conv1d.weight":
                data = data.reshape(-1, self.taps)
            if part in ("in_proj_qkv.weight", "conv1d.weight"):
                data = self.tiled(data, 0, self.v_dim, keys)
            if part == "in_proj_z.weight":
                data = self.tiled(data, 0, self.v_dim)
            if part in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight"):
                data = self.tiled(data, 0, 1)
            if part == "out_proj.weight":
                data = self.tiled(data, 1, self.v_dim)
            if part == "mlp.shared_expert_gate.weight" and not self.joined:
                data = data[0]
            if ".experts." not in name:
                yield f"blk.{layer}.{PLAIN_NAMES[rest]}", data
            elif ".experts.0." in name:
                yield from self.gguf_experts(name, layer)

    def stack(self, name, part):
        """One matrix of all experts; `name` is that of a matrix of the first."""
        at = name[:name.index(".experts.")]
        return np.stack([self.weights[f"{at}.experts.{e}.{part}_proj.weight"]
                         for e in range(self.experts)])

    def gguf_experts(self, name, layer):
        part = name.split(".")[-2].removesuffix("_proj")
        if not self.joined or part == "down":
            yield f"blk.{layer}.ffn_{part}_exps.weight", self.stack(name, part)
        elif part == "gate":
            both = [self.stack(name, "gate"), self.stack(name, "up")]
            yield f"blk.{layer}.ffn_gate_up_exps.weight", np.concatenate(both, axis=1)

    def write_gguf(self, path):
        writer = gguf.GGUFWriter(str(path), self.arch)
        writer.add_name(path.stem)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers + self.mtp)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.used)
            writer.add_expert_feed_forward_length(self.ffn)
            writer.add_expert_shared_feed_forward_length(self.shared)
        else:
            writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.dim)
        writer.add_value_length(self.dim)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_rope_dimension_count(self.rope_dims)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(self.taps)
        writer.add_ssm_state_size(self.k_dim)
        writer.add_ssm_group_count(self.k_heads)
        writer.add_ssm_time_step_rank(self.v_heads)
        writer.add_ssm_inner_size(self.v_heads * self.v_dim)
        writer.add_full_attention_interval(self.interval)
        if self.mtp:
            writer.add_nextn_predict_layers(self.mtp)
        tiny_models.add_tokenizer(writer, self.vocab)
        for name, data in self.gguf_tensors():
            if data.ndim == 1 or "ssm_conv1d" in name or "ffn_gate_inp" in name:
                writer.add_tensor(name, data)
            else:
                writer.add_tensor(name, gguf.quants.quantize(data, self.kind), raw_dtype=self.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    # Folder ---------------------------------------------------------------------------------------

    def folder_items(self):
        """The experts of a layer as published folders have them: one tensor, gates above ups."""
        for name, data in self.weights.items():
            if ".experts." not in name:
                yield name, data
            elif ".experts.0.gate_proj." in name:
                at = name[:name.index("0.gate_proj.")]
                both = [self.stack(name, "gate"), self.stack(name, "up")]
                yield at + "gate_up_proj", np.concatenate(both, axis=1)
                yield at + "down_proj", self.stack(name, "down")

    def config(self):
        """As published folders have it, of the part that reads text."""
        kinds = ["full_attention" if self.is_full(i) else "linear_attention"
                 for i in range(self.layers)]
        widths = {"intermediate_size": self.ffn}
        if self.experts:
            widths = {"num_experts": self.experts, "num_experts_per_tok": self.used,
                      "moe_intermediate_size": self.ffn, "router_aux_loss_coef": 0.001,
                      "shared_expert_intermediate_size": self.shared, "output_router_logits": False}
        moe = "_moe" if self.experts else ""
        name = "Qwen3_5MoeForCausalLM" if self.experts else "Qwen3_5ForCausalLM"
        return {"model_type": f"qwen3_5{moe}_text", "architectures": [name],
                "num_hidden_layers": self.layers, "hidden_size": self.hidden,
                **widths, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "head_dim": self.dim,
                "vocab_size": self.vocab, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
                "tie_word_embeddings": self.tied, "bos_token_id": 1, "eos_token_id": 2,
                "hidden_act": "silu", "dtype": "bfloat16", "attention_bias": False,
                "attn_output_gate": True, "full_attention_interval": self.interval,
                "layer_types": kinds, "linear_conv_kernel_dim": self.taps,
                "linear_key_head_dim": self.k_dim, "linear_value_head_dim": self.v_dim,
                "linear_num_key_heads": self.k_heads, "linear_num_value_heads": self.v_heads,
                "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
                "mtp_num_hidden_layers": self.mtp, "mtp_use_dedicated_embeddings": False,
                "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_base,
                                    "mrope_interleaved": True, "mrope_section": [11, 11, 10],
                                    "partial_rotary_factor": self.rope_dims / self.dim}}


def write_delta_nets(folder):
    """Models with gated delta nets as files and as folders; yields the paths of the files."""
    models = [
        # A delta net is the last layer, a layer of prediction stands behind it, and two heads of v
        # share one of k.
        (DeltaModel("qwen35", Q.BF16, layers=5, taps=4, rope_dims=8, rope_base=1e7, mtp=1), 2),
        # Attention is the last layer.
        (DeltaModel("qwen35_q8_0", Q.Q8_0, layers=4, interval=2, hidden=64, heads=2, kv_heads=1,
                    dim=32, k_heads=2, v_heads=2, k_dim=32, v_dim=16, taps=3, rope_dims=32,
                    tied=False), 0),
        # Both of them with experts; the one that serves every row is wider than the others.
        (DeltaModel("qwen35moe", Q.BF16, layers=5, taps=4, rope_dims=8, rope_base=1e7, mtp=1,
                    ffn=16, experts=7, used=3, shared=24), 2),
        (DeltaModel("qwen35moe_q8_0", Q.Q8_0, layers=4, interval=2, hidden=64, heads=2, kv_heads=1,
                    dim=32, k_heads=2, v_heads=2, k_dim=32, v_dim=16, taps=3, rope_dims=32,
                    tied=False, ffn=32, experts=5, used=2, shared=64, joined=True), 0),
    ]
    # Heads of the size that the CUDA kernels take. A net is the last layer, its state is behind
    # another's in one slice, and two heads of v share one of k; attention is the last layer.
    models += [
        (DeltaModel("head64_qwen35", Q.BF16, layers=3, interval=2, hidden=64, heads=2, kv_heads=1,
                    dim=64, k_heads=1, v_heads=2, k_dim=64, v_dim=32, taps=4, rope_dims=16,
                    rope_base=1e7, ffn=32, mtp=1), 0),
        (DeltaModel("head64_qwen35_q4_0", Q.Q4_0, layers=4, interval=2, hidden=64, heads=2,
                    kv_heads=1, dim=64, k_heads=1, v_heads=1, k_dim=128, v_dim=64, taps=3,
                    rope_dims=32, ffn=32, tied=False), 0),
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


def shared_expert(w, h):
    """The expert that serves every row, times a gate."""
    gate, up = h @ w("ffn_gate_shexp.weight").T, h @ w("ffn_up_shexp.weight").T
    weight = sigmoid(h @ w("ffn_gate_inp_shexp.weight").reshape(-1, 1))
    return weight * ((gate * sigmoid(gate) * up) @ w("ffn_down_shexp.weight").T)


def is_delta(weights, layer):
    return f"blk.{layer}.ssm_a" in weights.tensors


def mix_delta(weights, w, h):
    """The recurrent form of the gated delta rule (Yang et al. 2024), a token at a time."""
    k_heads, v_heads = weights.key("ssm.group_count"), weights.key("ssm.time_step_rank")
    k_dim, v_dim = weights.key("ssm.state_size"), weights.key("ssm.inner_size") // v_heads
    eps = float(weights.key("attention.layer_norm_rms_epsilon"))
    x, taps = h @ w("attn_qkv.weight").T, w("ssm_conv1d.weight")
    mixed = np.zeros_like(x)
    for j in range(taps.shape[1]):
        back = taps.shape[1] - 1 - j
        if back < len(x):
            mixed[back:] += taps[:, j] * x[:len(x) - back]
    mixed = mixed * sigmoid(mixed)
    keys = k_heads * k_dim
    q, k = (part.reshape(-1, k_heads, k_dim) for part in (mixed[:, :keys], mixed[:, keys:2 * keys]))
    v = mixed[:, 2 * keys:].reshape(-1, v_heads, v_dim)
    unit = lambda part: part / np.sqrt((part * part).sum(axis=-1, keepdims=True) + 1e-6)
    of_v = np.arange(v_heads) % k_heads
    q, k = unit(q)[:, of_v] / np.sqrt(k_dim), unit(k)[:, of_v]
    beta = sigmoid(h @ w("ssm_beta.weight").T)
    decay = np.exp(w("ssm_a") * np.log1p(np.exp(h @ w("ssm_alpha.weight").T + w("ssm_dt.bias"))))
    state, out = np.zeros((v_heads, k_dim, v_dim)), np.empty_like(v)
    for t in range(len(h)):
        state = state * decay[t][:, None, None]
        read = np.einsum("hkv,hk->hv", state, k[t])
        state = state + k[t][:, :, None] * ((v[t] - read) * beta[t][:, None])[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    z = (h @ w("attn_gate.weight").T).reshape(v.shape)
    out = out / np.sqrt(np.mean(out * out, axis=-1, keepdims=True) + eps) * w("ssm_norm.weight")
    return (out * z * sigmoid(z)).reshape(len(h), -1) @ w("ssm_out.weight").T
