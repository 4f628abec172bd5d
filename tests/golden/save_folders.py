"""Saves tiny models of each architecture with the transformers release that is on the path.

    python3 tests/golden/save_folders.py FOLDER [NAME ...]     (scripts/save_table.py calls it)

FOLDER/NAME is what save_pretrained writes. FOLDER/expected.json has for each NAME the
log-probabilities of every token after PROMPT, computed by that release in float32 with one thread.
"""
import json
import os
import sys

import tokenizers
import torch
import transformers

VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
PROMPT = [(i * 37 + 5) % 258 for i in range(40)]
SHAPE = dict(vocab_size=258, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
             num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
             rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1)
EXPERTS = dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
GEMMA = dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=16, sliding_window_pattern=2,
             pad_token_id=0)
# The width of its feed-forward layers in the file is 32.
LFM2 = dict(num_hidden_layers=4, full_attn_idxs=[2], intermediate_size=40, block_multiple_of=16,
            rms_norm_eps=None, norm_eps=1e-5)
# Local heads of 16, global ones of 32; the last three layers share KV.
GEMMA4 = dict(head_dim=16, global_head_dim=32, num_hidden_layers=7, sliding_window=16,
              layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["full_attention"],
              num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=16,
              vocab_size_per_layer_input=258, final_logit_softcapping=8.0, pad_token_id=0)
# V is K; global layers have fewer heads.
GEMMA4_DENSE = dict(head_dim=16, global_head_dim=32, num_hidden_layers=4, sliding_window=16,
                    layer_types=["sliding_attention", "full_attention"] * 2,
                    num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1,
                    attention_k_eq_v=True, hidden_size_per_layer_input=0, pad_token_id=0,
                    vocab_size_per_layer_input=258, final_logit_softcapping=30.0)
LFM2_MOE = dict(num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2,
                num_dense_layers=1, num_experts=8, num_experts_per_tok=3,
                moe_intermediate_size=16, rms_norm_eps=None, norm_eps=1e-5, pad_token_id=0)
# Three heads of v share one of k, and the last layer is no attention.
QWEN35 = dict(num_hidden_layers=5, head_dim=16, linear_key_head_dim=16, linear_value_head_dim=16,
              linear_num_key_heads=2, linear_num_value_heads=6)
QWEN35_MOE = dict(QWEN35, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                  shared_expert_intermediate_size=24, intermediate_size=None)
# The step is cut nowhere: transformers cuts it at time_step_min in prompts.
NEMOTRON = dict(head_dim=16, layers_block_type=["linear_attention", "mlp", "full_attention",
                                                "linear_attention", "mlp"],
                num_hidden_layers=None, rms_norm_eps=None, layer_norm_epsilon=1e-5,
                mamba_num_heads=6, mamba_head_dim=16, n_groups=2, ssm_state_size=16,
                time_step_min=1e-9, chunk_size=16, pad_token_id=0)
GPT_OSS = dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# PROMPT is longer than the original context, so that the long factors and every temperature count.
LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(6)],
        "long_factor": [1.5 + 0.7 * i for i in range(6)]}
PHI3 = dict(partial_rotary_factor=0.75, original_max_position_embeddings=16,
            pad_token_id=0)
MINISTRAL = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16,
             "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
             "llama_4_scaling_beta": 0.37}
GRANITE = dict(attention_multiplier=0.21, embedding_multiplier=3.7, residual_multiplier=0.23,
               logits_scaling=1.3)
DEEPSEEK = dict(num_key_value_heads=2, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
                v_head_dim=12, moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=2,
                num_experts_per_tok=3, first_k_dense_replace=1, num_hidden_layers=3,
                pad_token_id=0)
# Not the numbers of each other, as published models have them: cos and sin grow too.
UNEQUAL_YARN = {**YARN, "mscale": 0.9, "mscale_all_dim": 0.6, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}

# Name, class without "Config" or "ForCausalLM", first release, shape, rope scaling.
MODELS = [
    ("llama", "Llama", (4, 40), {}, None),
    ("llama_tied", "Llama", (4, 40), {"tie_word_embeddings": True}, None),
    ("llama_biases", "Llama", (4, 40), {"attention_bias": True, "mlp_bias": True}, None),
    ("llama_dynamic", "Llama", (4, 43), {}, {"rope_type": "dynamic", "factor": 2.0}),
    ("llama_llama3", "Llama", (4, 43), {"head_dim": 8}, LLAMA3),
    ("mistral", "Mistral", (4, 40), {"sliding_window": None}, None),
    ("mistral_window", "Mistral", (4, 40), {"sliding_window": 16}, None),
    ("mistral_wide", "Mistral", (4, 40), {"sliding_window": 256}, None),
    ("qwen2", "Qwen2", (4, 40), {}, None),
    # Releases before 4.53 cut the view of all layers here.
    ("qwen2_no_slide", "Qwen2", (4, 53),
     {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}, None),
    ("qwen2_yarn", "Qwen2", (4, 45), {}, YARN),
    ("qwen3", "Qwen3", (4, 51), {"head_dim": 16}, None),
    ("qwen3_biases", "Qwen3", (4, 51), {"head_dim": 16, "attention_bias": True}, None),
    ("qwen3_moe", "Qwen3Moe", (4, 51), {**EXPERTS, "norm_topk_prob": True}, None),
    ("qwen3_moe_plain", "Qwen3Moe", (4, 51), {**EXPERTS, "norm_topk_prob": False}, None),
    ("qwen3_moe_joined", "Qwen3Moe", (5, 0), {**EXPERTS, "norm_topk_prob": True}, None),
    ("gemma3_text", "Gemma3", (4, 50), GEMMA, {"rope_type": "linear", "factor": 8.0}),
    ("gemma3_text_biases", "Gemma3", (4, 50), {**GEMMA, "attention_bias": True}, None),
    ("gemma3", "Gemma3", (4, 50), GEMMA, None),
    ("gemma3_joined", "Gemma3", (5, 0), GEMMA, None),
    ("lfm2", "Lfm2", (4, 54), LFM2, None),
    ("gemma4", "Gemma4", (5, 5), GEMMA4, None),
    ("gemma4_dense", "Gemma4", (5, 5), GEMMA4_DENSE, None),
    ("gpt_oss", "GptOss", (5, 0), GPT_OSS, {**YARN, "truncate": False}),
    ("gpt_oss_plain", "GptOss", (5, 0), {**GPT_OSS, "attention_bias": False}, YARN),
    ("smollm3", "SmolLM3", (4, 53), {"num_hidden_layers": 5, "pad_token_id": 0}, None),
    ("granite", "Granite", (4, 45), GRANITE, None),
    ("granite_biases", "Granite", (4, 45),
     {**GRANITE, "attention_bias": True, "mlp_bias": True}, None),
    ("phi3_long", "Phi3", (4, 49), PHI3, LONG),
    ("phi3_short", "Phi3", (4, 49), {**PHI3, "original_max_position_embeddings": 256,
                                     "sliding_window": 16}, LONG),
    ("olmo2", "Olmo2", (4, 47), {"pad_token_id": 0}, None),
    ("ministral3", "Ministral3", (5, 0), {"head_dim": 16, "pad_token_id": 0}, MINISTRAL),
    ("mistral3", "Ministral3", (5, 0), {"head_dim": 16, "pad_token_id": 0}, MINISTRAL),
    ("lfm2_moe", "Lfm2Moe", (5, 0), LFM2_MOE, None),
    ("lfm2_moe_plain", "Lfm2Moe", (5, 0), {**LFM2_MOE, "use_expert_bias": False}, None),
    ("deepseek_v2", "DeepseekV2", (5, 0), {**DEEPSEEK, "q_lora_rank": None}, None),
    ("deepseek_v2_groups", "DeepseekV2", (5, 0),
     {**DEEPSEEK, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 4,
      "topk_group": 2, "routed_scaling_factor": 1.7}, UNEQUAL_YARN),
    ("deepseek_v3", "DeepseekV3", (5, 0),
     {**DEEPSEEK, "q_lora_rank": 24, "n_group": 4, "topk_group": 2},
     {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    ("deepseek_v3_joined", "DeepseekV3", (5, 0),
     {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
      "first_k_dense_replace": 0, "routed_scaling_factor": 0.8}, None),
    ("qwen3_5_text", "Qwen3_5", (5, 24), QWEN35, None),
    ("qwen3_5", "Qwen3_5", (5, 24), QWEN35, None),
    ("qwen3_5_moe_text", "Qwen3_5Moe", (5, 24), QWEN35_MOE, None),
    ("qwen3_5_moe", "Qwen3_5Moe", (5, 24), QWEN35_MOE, None),
    ("qwen3_5_moe_joined", "Qwen3_5Moe", (5, 24), QWEN35_MOE, None),
    ("nemotron_h", "NemotronH", (5, 24), NEMOTRON, None),
    ("nemotron_h_biases", "NemotronH", (5, 24), {**NEMOTRON, "mlp_bias": True}, None),
    ("nemotron_h_joined", "NemotronH", (5, 24), NEMOTRON, None),
]
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
              image_size=28, patch_size=14)


def rope_arguments(gemma, scaling):
    """The rope keys as this release names them."""
    theta = 1e6 if gemma else 10000.0
    if VERSION < (5, 0):
        old = {} if scaling is None else {"rope_scaling": dict(scaling)}
        return {**old, "rope_theta": theta}
    whole = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    if not gemma:
        return {"rope_parameters": whole}
    local = {"rope_theta": 10000.0, "rope_type": "default"}
    return {"rope_parameters": {"full_attention": whole, "sliding_attention": local}}


def make(name, kind, shape, scaling):
    """A model with random weights that spread its logits."""
    torch.manual_seed(len(name) * 1000 + sum(name.encode()))
    arguments = {**SHAPE, **shape, **rope_arguments(kind == "Gemma3", scaling)}
    if kind == "Gemma4":
        del arguments["rope_parameters"]  # those of the class are proportional
    if kind == "NemotronH":
        del arguments["rope_parameters"]  # nothing turns
    for key in ("rms_norm_eps", "intermediate_size", "num_hidden_layers"):
        if arguments[key] is None:  # this class has another name for it
            del arguments[key]
    if kind == "Gemma3":
        config = transformers.Gemma3TextConfig(**arguments)
        model_class = transformers.Gemma3ForCausalLM
        if name in ("gemma3", "gemma3_joined"):
            config = transformers.Gemma3Config(
                text_config=config.to_dict(), vision_config=VISION, mm_tokens_per_image=4,
                boi_token_index=254, eoi_token_index=255, image_token_index=256)
            model_class = transformers.Gemma3ForConditionalGeneration
    elif kind == "Gemma4":
        config = transformers.Gemma4TextConfig(**arguments)
        model_class = transformers.Gemma4ForCausalLM
        if name == "gemma4":
            config = transformers.Gemma4Config(
                text_config=config.to_dict(), vision_config={
                    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
                    "patch_size": 4, "position_embedding_size": 8}, image_token_id=256)
            model_class = transformers.Gemma4ForConditionalGeneration
    else:
        config = getattr(transformers, kind + "Config")(**arguments)
        model_class = getattr(transformers, kind + "ForCausalLM")
    if kind in ("Qwen3_5", "Qwen3_5Moe"):
        config = getattr(transformers, kind + "TextConfig")(**arguments)
    if name in ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_joined"):
        vision = dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2,
                      out_hidden_size=32, patch_size=14, num_position_embeddings=16)
        config = getattr(transformers, kind + "Config")(
            text_config=config.to_dict(), vision_config=vision)
        model_class = getattr(transformers, kind + "ForConditionalGeneration")
    if name == "mistral3":
        config = transformers.Mistral3Config(
            text_config=config.to_dict(), vision_config={**VISION, "head_dim": 8},
            image_token_index=256, tie_word_embeddings=False)
        model_class = transformers.Mistral3ForConditionalGeneration
    model = model_class(config)
    with torch.no_grad():
        for part, weight in model.named_parameters():
            spread = 0.05 if "norm" in part else 0.3
            weight.copy_(torch.randn_like(weight) * spread + (1.0 if "norm" in part else 0.0))
            is_plain = "norm" not in part or "linear_attn.norm" in part or "visual" in part
            if not is_plain and kind in ("Gemma3", "Qwen3_5", "Qwen3_5Moe"):
                weight -= 1.0
        for part, bias in model.named_buffers():
            if part.endswith(("e_score_correction_bias", "expert_bias")):
                bias.copy_(torch.randn_like(bias) * 0.3)
    return model.to(torch.bfloat16)


def make_tokenizer():
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(sorted(letters))}}
    whole = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token="<s>", eos_token="</s>")


def log_probabilities(model_class, folder):
    # Read again: a model that was rounded to bf16 has rotary frequencies in bf16.
    model = model_class.from_pretrained(folder, torch_dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT])).logits
    return torch.log_softmax(logits[0, -1].double(), -1).tolist()


def main():
    out = sys.argv[1]
    torch.set_num_threads(1)
    expected = {}
    for name, kind, first, shape, scaling in MODELS:
        if VERSION < first or (sys.argv[2:] and name not in sys.argv[2:]):
            continue
        model = make(name, kind, shape, scaling)
        folder = os.path.join(out, name)
        # "joined": tensors under the names that release 5 has in memory.
        form = {"save_original_format": False} if name.endswith("_joined") else {}
        model.save_pretrained(folder, safe_serialization=True, **form)
        make_tokenizer().save_pretrained(folder)
        expected[name] = [
            round(value, 5) for value in log_probabilities(type(model), folder)]
    with open(os.path.join(out, "expected.json"), "w") as file:
        json.dump({"transformers": transformers.__version__, "prompt": PROMPT,
                   "logprobs": expected}, file)


main()
