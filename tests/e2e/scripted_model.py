"""A model that says what a test wants: a GGUF file whose weights are a table of followers.

Token t is embedded as the unit vector t and every layer adds zero, so the logits are one row of
the table: the follower of t gets nearly all probability. A text is a chain of tokens, none of them
twice.
"""

import array
import struct

UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
F32 = 0
ALIGNMENT = 32
HIDDEN = 128  # at least as large as the vocabulary
HEAD_DIM = 32
FFN = 64

# The words of an assistant that thinks first; the tags are not one token each.
THOUGHT = ["<think>", "\n", "Let", " me", " see", ".\n", "</", "think", ">\n\n"]
ANSWER = ["The", " sky", " is", " blue", "!!"]
ASSISTANT, PLAIN, USER, EOS = "<|assistant|>", "<|direct|>", "<|user|>", "<|end|>"

# Qwen3's habits: earlier thoughts are not shown again, and a prompt may open the thoughts. A last
# message "plain" makes an answer that does not think. (A word that is part of a control token's
# name would not do: such messages reach the template with a guard character.)
THINKING_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if messages[-1].content == 'plain' %}<|direct|>"
    "{% elif messages[-1].content == 'open' %}<|assistant|><think>\n"
    "{% else %}<|assistant|>{% endif %}"
)


def _letters(text):
    """A token's text in the letters of byte-level vocabularies."""
    return text.replace(" ", "\u0120").replace("\n", "\u010a")


def _string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind, value):
    if kind == STRING:
        return _string(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)


def _entry(key, kind, value, of=None):
    head = _string(key) + struct.pack("<I", kind)
    if kind != ARRAY:
        return head + _value(kind, value)
    return head + struct.pack("<IQ", of, len(value)) + b"".join(_value(of, v) for v in value)


def _vocabulary():
    texts = [chr(c) for c in range(32, 127)] + THOUGHT + ANSWER
    kinds = [USER_DEFINED if t == "<think>" else NORMAL for t in texts]
    controls = [ASSISTANT, PLAIN, USER, EOS]
    return texts + controls, kinds + [CONTROL] * len(controls)


def _tensors(texts):
    """(name, rows, columns or None for a vector, values)"""
    ids = {text: i for i, text in enumerate(texts)}
    chain = [ASSISTANT, *THOUGHT, *ANSWER, EOS]
    follower = dict(zip(chain, chain[1:]))
    follower[PLAIN] = ANSWER[0]
    embedding = array.array("f", bytes(4 * len(texts) * HIDDEN))
    output = array.array("f", bytes(4 * len(texts) * HIDDEN))
    for text, i in ids.items():
        embedding[i * HIDDEN + i] = 1.0
        output[ids[follower.get(text, EOS)] * HIDDEN + i] = 4.0
    zeros = lambda rows, columns: (rows, columns, array.array("f", bytes(4 * rows * columns)))
    ones = (HIDDEN, None, array.array("f", [1.0] * HIDDEN))
    return {
        "token_embd.weight": (len(texts), HIDDEN, embedding),
        "output.weight": (len(texts), HIDDEN, output),
        "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        "blk.0.attn_q.weight": zeros(HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": zeros(HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": zeros(HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": zeros(HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": zeros(FFN, HIDDEN),
        "blk.0.ffn_up.weight": zeros(FFN, HIDDEN),
        "blk.0.ffn_down.weight": zeros(HIDDEN, FFN),
    }


# (layers, heads that are K and V heads too, their dimension) of a model that computes little and
# whose KV is large, 8 KiB a token: hand-offs take a link's time and no processor's.
WIDE = (4, 4, 128)


def _wide_tensors(texts):
    layers, heads, dim = WIDE
    tensors = {k: v for k, v in _tensors(texts).items() if not k.startswith("blk")}
    ones = tensors["output_norm.weight"]
    size = heads * dim * HIDDEN
    weights = array.array("f", (((i * 7919) % 2003) / 20030 - 0.05 for i in range(size)))
    zeros = lambda rows, columns: (rows, columns, array.array("f", bytes(4 * rows * columns)))
    for layer in range(layers):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": ones,
            f"blk.{layer}.ffn_norm.weight": ones,
            f"blk.{layer}.attn_q.weight": (heads * dim, HIDDEN, weights),
            f"blk.{layer}.attn_k.weight": (heads * dim, HIDDEN, weights),
            f"blk.{layer}.attn_v.weight": (heads * dim, HIDDEN, weights),
            f"blk.{layer}.attn_output.weight": zeros(HIDDEN, heads * dim),
            f"blk.{layer}.ffn_gate.weight": zeros(FFN, HIDDEN),
            f"blk.{layer}.ffn_up.weight": zeros(FFN, HIDDEN),
            f"blk.{layer}.ffn_down.weight": zeros(HIDDEN, FFN),
        }
    return tensors


def write_wide(path):
    """Writes the model with the large KV, one token a letter; returns the path as text."""
    return _write(path, "wide", *WIDE[:2], WIDE[2], context=4096, tensors_of=_wide_tensors)


def write_thinker(path, pooling=None):
    """Writes the model; returns the path as text. `pooling`: llama.cpp's number, None = unsaid."""
    return _write(path, "thinker", 1, 1, HEAD_DIM, heads=HIDDEN // HEAD_DIM, pooling=pooling)


def _write(
    path, name, layers, kv_heads, dim, heads=None, context=512, tensors_of=_tensors, pooling=None
):
    texts, kinds = _vocabulary()
    entries = [
        _entry("general.architecture", STRING, "llama"),
        _entry("general.name", STRING, name),
        _entry("llama.vocab_size", UINT32, len(texts)),
        _entry("llama.context_length", UINT32, context),
        _entry("llama.embedding_length", UINT32, HIDDEN),
        _entry("llama.block_count", UINT32, layers),
        _entry("llama.feed_forward_length", UINT32, FFN),
        _entry("llama.attention.head_count", UINT32, heads or kv_heads),
        _entry("llama.attention.head_count_kv", UINT32, kv_heads),
        _entry("llama.attention.key_length", UINT32, dim),
        _entry("llama.attention.value_length", UINT32, dim),
        _entry("llama.rope.dimension_count", UINT32, dim),
        _entry("llama.rope.freq_base", FLOAT32, 10000.0),
        _entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        _entry("tokenizer.ggml.model", STRING, "gpt2"),
        _entry("tokenizer.ggml.pre", STRING, "gpt-2"),
        _entry("tokenizer.ggml.tokens", ARRAY, [_letters(t) for t in texts], of=STRING),
        _entry("tokenizer.ggml.token_type", ARRAY, kinds, of=INT32),
        _entry("tokenizer.ggml.merges", ARRAY, [], of=STRING),
        _entry("tokenizer.ggml.eos_token_id", UINT32, texts.index(EOS)),
        _entry("tokenizer.ggml.add_bos_token", BOOL, False),
        _entry("tokenizer.chat_template", STRING, THINKING_TEMPLATE),
    ]
    if pooling is not None:
        entries.append(_entry("llama.pooling_type", UINT32, pooling))
    tensors = tensors_of(texts)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries)
    data = bytearray()
    for name, (rows, columns, values) in tensors.items():
        shape = (rows,) if columns is None else (columns, rows)  # fastest first
        header += _string(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", F32, len(data))
        data += values.tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    header += bytes(-len(header) % ALIGNMENT)
    path.write_bytes(header + data)
    return str(path)
