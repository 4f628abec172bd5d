"""Random gemma4 models as files and folders, and the logits that transformers gives them.

    python3 tests/golden/make_gemma4_golden.py        (needs torch, transformers 5.24.0 and gguf)

The reference is the class of transformers itself. It computes in float64: where its code says
float32, this script makes it float64. Other architectures have a float64 forward pass in
make_golden.py; the bounds of golden_test.cc are the same.
"""
import copy
import json
import types
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q

import make_golden
from tiny_models import add_tokenizer, all_tokens, write_safetensors, write_tokenizer_files

FOLDER = Path(__file__).resolve().parent
SLIDING, FULL = "sliding_attention", "full_attention"
COMMON = dict(vocab_size=263, hidden_size=32, intermediate_size=64, num_attention_heads=4,
              max_position_embeddings=512, rms_norm_eps=1e-6, pad_token_id=0, bos_token_id=1,
              eos_token_id=2, vocab_size_per_layer_input=263)
# Small forms of E2B (shared KV, wide feed-forward layers, per-layer vectors; one slice of KV for a
# local layer, two for a global one) and of 31B (V is K; two slices for a local layer, one for a
# global one).
SMALL = dict(COMMON, num_hidden_layers=7, num_key_value_heads=1, head_dim=16, global_head_dim=32,
             layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL],
             num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=32,
             sliding_window=33, final_logit_softcapping=9.0)
DENSE = dict(COMMON, num_hidden_layers=4, num_key_value_heads=4, head_dim=16, global_head_dim=32,
             num_global_key_value_heads=1, attention_k_eq_v=True,
             layer_types=[SLIDING, FULL, SLIDING, FULL], hidden_size_per_layer_input=0,
             sliding_window=20, final_logit_softcapping=30.0)
ROPE = {FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}
# Tensors that no layer reads in published files: a layer that shares KV has its own all the same.
UNUSED = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")


class Model:
    """The shape and the weights under their Hugging Face names, as the stored type holds them."""

    def __init__(self, name, shape, kind):
        self.name, self.shape, self.kind = name, shape, kind
        self.rng = np.random.default_rng(sum(name.encode()))
        self.config = transformers.Gemma4TextConfig(
            **copy.deepcopy(shape), rope_parameters=copy.deepcopy(ROPE))
        self.weights = {}
        modules = transformers.Gemma4ForCausalLM(self.config)
        for part, value in modules.state_dict().items():
            if part != "lm_head.weight":
                self.fill(part, tuple(value.shape))
        for layer in self.shared():
            at = f"model.layers.{layer}."
            own = next(i for i, kind in enumerate(shape["layer_types"])
                       if kind == shape["layer_types"][layer])
            for part in UNUSED:
                source = self.weights[f"model.layers.{own}.{part}.weight"]
                self.fill(at + part + ".weight", source.shape)

    def shared(self):
        layers = self.shape["num_hidden_layers"]
        return range(layers - self.shape.get("num_kv_shared_layers", 0), layers)

    def fill(self, name, shape):
        noise = self.rng.standard_normal(shape)
        if name.endswith("layer_scalar"):
            data = 1 + 0.2 * noise
        elif ".q_norm." in name or ".k_norm." in name:  # scores of about 1, as with a scale
            data = (1 + 0.2 * noise) * shape[0] ** -0.25
        elif "norm." in name:
            data = 1 + 0.2 * noise
        else:
            wide = "embed_tokens" in name
            data = noise * (4.0 if wide else 1.0) / np.sqrt(COMMON["hidden_size"])
        data = data.astype(np.float32)
        # Vectors stay F32 in GGUF and have the folder's type there.
        kind = self.kind if data.ndim > 1 or self.kind != Q.Q8_0 else Q.F32
        self.weights[name] = self.stored(data, kind)

    @staticmethod
    def stored(data, kind):
        if kind == Q.F32:
            return data
        return gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind).reshape(data.shape)

    # File -----------------------------------------------------------------------------------------

    def gguf_name(self, name):
        whole = {"model.embed_tokens.weight": "token_embd.weight",
                 "model.norm.weight": "output_norm.weight",
                 "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
                 "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
                 "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight"}
        parts = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
                 "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                 "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
                 "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
                 "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
                 "post_attention_layernorm": "post_attention_norm",
                 "pre_feedforward_layernorm": "ffn_norm",
                 "post_feedforward_layernorm": "post_ffw_norm", "layer_scalar":
                 "layer_output_scale", "per_layer_input_gate": "inp_gate",
                 "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
        if name in whole:
            return whole[name]
        _, _, layer, part = name.split(".", 3)
        return f"blk.{layer}.{parts[part.removesuffix('.weight')]}.weight"

    def write_gguf(self):
        """The keys that llama.cpp's converter writes of such a model."""
        shape, path = self.shape, FOLDER / f"tiny_{self.name}.gguf"
        layers, shared = shape["num_hidden_layers"], len(self.shared())
        local = [kind == SLIDING for kind in shape["layer_types"]]
        writer = gguf.GGUFWriter(str(path), "gemma4")
        writer.add_name(path.stem)
        writer.add_context_length(shape["max_position_embeddings"])
        writer.add_embedding_length(shape["hidden_size"])
        writer.add_block_count(layers)
        writer.add_head_count(shape["num_attention_heads"])
        writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
        writer.add_rope_freq_base(1e6)
        writer.add_rope_freq_base_swa(10000.0)
        writer.add_sliding_window(shape["sliding_window"])
        writer.add_sliding_window_pattern(local)
        writer.add_final_logit_softcapping(shape["final_logit_softcapping"])
        writer.add_shared_kv_layers(shared)
        writer.add_embedding_length_per_layer_input(shape["hidden_size_per_layer_input"])
        writer.add_key_length(shape["global_head_dim"])
        writer.add_value_length(shape["global_head_dim"])
        writer.add_key_length_swa(shape["head_dim"])
        writer.add_value_length_swa(shape["head_dim"])
        writer.add_rope_dimension_count(shape["global_head_dim"])
        writer.add_rope_dimension_count_swa(shape["head_dim"])
        ffn, kv_heads = shape["intermediate_size"], shape["num_key_value_heads"]
        if shape.get("use_double_wide_mlp"):
            writer.add_feed_forward_length(
                [ffn if i < layers - shared else 2 * ffn for i in range(layers)])
        else:
            writer.add_feed_forward_length(ffn)
        if "num_global_key_value_heads" in shape:
            writer.add_head_count_kv(
                [kv_heads if i else shape["num_global_key_value_heads"] for i in local])
        else:
            writer.add_head_count_kv(kv_heads)
        add_tokenizer(writer)
        pairs = shape["global_head_dim"] // 2
        factors = [1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4)
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
        for name, data in self.weights.items():
            if data.ndim == 1:
                writer.add_tensor(self.gguf_name(name), data)
            else:
                writer.add_tensor(self.gguf_name(name), gguf.quants.quantize(data, self.kind),
                                  raw_dtype=self.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    # Folder ---------------------------------------------------------------------------------------

    def write_folder(self, has_images):
        """With images: the form of transformers 5.24, in which text is a part; else the published
        form, with the heads of global layers under names of their own."""
        folder = FOLDER / f"tiny_{self.name}"
        folder.mkdir(exist_ok=True)
        write_tokenizer_files(folder)
        if not has_images:
            config = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
                      "rope_parameters": ROPE, "hidden_activation": "gelu_pytorch_tanh",
                      "tie_word_embeddings": True, "attention_bias": False,
                      "enable_moe_block": False, "num_experts": None, "attention_k_eq_v": False,
                      "num_global_key_value_heads": None, "use_bidirectional_attention": None,
                      "dtype": "bfloat16", **self.shape}
            items = list(self.weights.items())
        else:
            text = json.loads(self.config.to_json_string(use_diff=False))
            config = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
                      "text_config": text, "vision_config": {"model_type": "gemma4_vision"},
                      "audio_config": None, "image_token_id": 258, "tie_word_embeddings": True}
            items = [(name.replace("model.", "model.language_model.", 1), data)
                     for name, data in self.weights.items()]
            image = np.zeros((4, 4), dtype=np.float32)
            items.append(("model.embed_vision.embedding_projection.weight", image))
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        write_safetensors(folder / "model.safetensors", items, self.kind)

    # Logits ---------------------------------------------------------------------------------------

    def logits(self, prompts, dtype):
        model = transformers.Gemma4ForCausalLM(self.config)
        model.config._attn_implementation = "eager"
        unused = [f"model.layers.{i}.{part}.weight" for i in self.shared() for part in UNUSED]
        state = {name: torch.tensor(data, dtype=dtype) for name, data in self.weights.items()
                 if name not in unused}
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model = model.to(dtype)
        model.load_state_dict(state)
        with torch.no_grad():
            return [model.eval()(input_ids=torch.tensor([p]), use_cache=False).logits[0].numpy()
                    for p in prompts]


def compute_in_float64():
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)


def rows_of(_, count):
    return sorted({0, count // 2, count - 1, *range(0, count, 7)})


def main():
    torch.set_num_threads(1)
    models = [Model("gemma4", SMALL, Q.BF16), Model("gemma4_q8_0", SMALL, Q.Q8_0),
              Model("gemma4_dense", DENSE, Q.F16)]
    models[0].write_folder(has_images=False)
    models[2].write_folder(has_images=True)
    vocab = len(all_tokens())
    prompts = [[int(t) for t in np.random.default_rng(n).integers(0, vocab, n)]
               for n in (1, 24, 300)]
    plain = {model.name: model.logits(prompts, torch.float32) for model in models}
    compute_in_float64()
    for model in models:
        model.write_gguf()
        exact = model.logits(prompts, torch.float64)
        worst = max(np.abs(a - b).max() for a, b in zip(exact, plain[model.name]))
        print(f"{model.name}: float32 differs by {worst:.1e}")
        make_golden.hidden_states = lambda weights, sequences: exact
        make_golden.logits_of = lambda weights, states: states
        table = types.SimpleNamespace(shape=(COMMON["hidden_size"], vocab))
        weights = types.SimpleNamespace(tensors={"token_embd.weight": table})
        make_golden.write_golden(FOLDER / f"tiny_{model.name}.golden", weights, prompts, rows_of,
                                 [], 60)


main()
