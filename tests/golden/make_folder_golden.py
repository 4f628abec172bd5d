#!/usr/bin/env python3
"""Writes spm_golden.json and folder_golden.json: small vocabularies, and what the programs they
come from make of hard strings.

spm_golden.json: vocabularies trained by PyPI `sentencepiece`, as the tokenizer.ggml.* keys of a
GGUF file, and the ids that `sentencepiece` itself gives. "ties" has the same pieces with scores
rounded so that many are equal; "unused" has some pieces marked unused, which are joined and taken
apart again.

folder_golden.json: Hugging Face folders (tokenizer.json, tokenizer_config.json) of each supported
shape, and the ids that PyPI `tokenizers` gives with special tokens off. Given the real
tokenizer.json of gemma 3, its ids are stored too (not the file: 33 MB).

Of ids and texts a hash per string is stored. The strings are those of tokenizer_golden.json and
EXTRA below. Training is deterministic: the results are the same bytes.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install sentencepiece tokenizers protobuf
    /tmp/golden/bin/python tests/golden/make_folder_golden.py [GEMMA3_TOKENIZER.json]
"""

import io
import json
import math
import pathlib
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
USER_TOKENS = (
    ["\n" * n for n in range(1, 6)]
    + [SPACE * n for n in range(2, 9)]
    + ["\t", "\t\t", "<table>", "</table>", "<tab"]
)
EXTRA = [
    "one space",
    " leading",
    "  two leading",
    "trailing ",
    "a" + " " * 3 + "b" + " " * 9 + "c" + " " * 40,
    "\n" * 7 + "a\n\n b \n",
    f"literal {SPACE} lower {SPACE}{SPACE}{SPACE}line",
    f"{SPACE}",
    f"x{SPACE}{SPACE}",
    "<table> cell </table>\t\t\tend <tab <tabl",
    "<0x41><0x0A> <s></s><unk> <|im_start|>user <bos>",
    "\U0001f600\U0001f9d1\u200d\U0001f4bb \u4e2d\u6587 \u0e44\u0e17\u0e22 \u00e9 e\u0301 \ufffd",
    "\x00\x01\x7f",
    "the the the thethethe",
    "aaaaaaaaaaaaaaaaaaaaaaa",
    "lll" * 30,
    "<think>a</think>\n<tool_call>",
    "x<think> y",
]


def fnv1a(values):
    digest = 0x811C9DC5
    for value in values:
        for byte in value.to_bytes(4, "little"):
            digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return digest


def text_hash(text):
    return fnv1a(list(text.encode()))


def strings():
    golden = json.loads((HERE / "tokenizer_golden.json").read_text())
    return [case["text"] for case in golden["cases"]] + EXTRA


def corpus(texts):
    prose = (HERE / "perplexity.txt").read_text()
    lines = (prose + "\n" + "\n".join(texts)).splitlines()
    return [line for line in lines if line.strip() and "\0" not in line]


def train_spm(lines, dummy_prefix, user_tokens):
    # Most other scripts are left to the byte tokens.
    lines = [line for i, line in enumerate(lines) if max(map(ord, line)) < 0x500 or i % 9 == 0]
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=writer,
        model_type="bpe",
        vocab_size=1000,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=dummy_prefix,
        user_defined_symbols=user_tokens,
        num_threads=1,
        minloglevel=2,
    )
    model = model_pb2.ModelProto()
    model.ParseFromString(writer.getvalue())
    return model


def spm_entry(model, texts):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    ids = [processor.encode(text) for text in texts]
    pieces = model.pieces
    return {
        "tokens": [piece.piece for piece in pieces],
        "scores": [piece.score for piece in pieces],
        "token_types": [piece.type for piece in pieces],
        "add_space_prefix": model.normalizer_spec.add_dummy_prefix,
        "ids": [fnv1a(row) for row in ids],
        "first_ids": ids[1],
        "decoded": [text_hash(processor.decode(row)) for row in ids],
    }


def with_ties(model):
    changed = model_pb2.ModelProto()
    changed.CopyFrom(model)
    for piece in changed.pieces:
        piece.score = float(math.floor(piece.score / 40))
    return changed


def with_unused(model):
    changed = model_pb2.ModelProto()
    changed.CopyFrom(model)
    longer = [p for p in changed.pieces if p.type == NORMAL and len(p.piece) > 2]
    for piece in longer[::3]:
        piece.type = UNUSED
    return changed


def merges_of(model):
    """Every pair that makes a piece, best piece first (the order that converters write)."""
    ids = {piece.piece: i for i, piece in enumerate(model.pieces) if piece.type in (1, 4)}
    rows = []
    for text, at in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                rows.append((-model.pieces[at].score, at, ids[left], ids[right], (left, right)))
    return [row[-1] for row in sorted(rows)]


def spm_tokenizer(model, normalizer, pre_tokenizer, strip):
    vocab = {piece.piece: i for i, piece in enumerate(model.pieces)}
    bpe = models.BPE(vocab, merges_of(model), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    special = [
        AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")
    ]
    tokenizer.add_special_tokens(special)
    user = [piece.piece for piece in model.pieces if piece.type == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in user])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAIL}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"


def byte_tokenizer(lines, pre_tokenizer, special, user, vocab_size=700):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in user])
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated", False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )


def gpt2_after_digits():
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(False, use_regex=True),
        ]
    )


def folders(lines, llama, gemma):
    replace = normalizers.Replace(" ", SPACE)
    legacy = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    cut_nothing = pre_tokenizers.Split(" ", "merged_with_previous", False)
    llama_config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    yield "llama_legacy", spm_tokenizer(llama, legacy, None, True), llama_config
    yield "llama_metaspace", spm_tokenizer(llama, None, metaspace, True), llama_config
    yield "gemma", spm_tokenizer(gemma, replace, cut_nothing, False), llama_config

    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    chat_config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    qwen2 = byte_tokenizer(
        lines, split_then_bytes(QWEN2), chat, ["<think>", "</think>", "<tool_call>"]
    )
    qwen2.normalizer = normalizers.NFC()
    qwen2.post_processor = processors.ByteLevel(False, trim_offsets=False)
    yield "qwen2", qwen2, dict(chat_config, add_bos_token=False)
    yield "smollm", byte_tokenizer(lines, gpt2_after_digits(), chat, []), chat_config
    gpt2 = byte_tokenizer(lines, pre_tokenizers.ByteLevel(False, use_regex=True), chat[:1], [])
    yield "gpt2", gpt2, {"eos_token": "<|endoftext|>"}

    begin = "<|begin_of_text|>"
    llama3 = byte_tokenizer(lines, split_then_bytes(LLAMA3), [begin, "<|eot_id|>"], [])
    data = json.loads(llama3.to_str())
    data["model"]["ignore_merges"] = True
    llama3 = Tokenizer.from_str(json.dumps(data))
    bos = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, llama3.token_to_id(begin))]
    )
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    yield "llama3", llama3, {"bos_token": begin, "eos_token": "<|eot_id|>"}


def folder_entry(tokenizer, config, texts, keep_file=True):
    tokenizer.encode_special_tokens = True
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    entry = {
        "ids": [fnv1a(row) for row in ids],
        "decoded": [text_hash(tokenizer.decode(row, skip_special_tokens=False)) for row in ids],
        "with_special": tokenizer.encode("Hello you", add_special_tokens=True).ids,
    }
    if keep_file:
        entry["tokenizer_json"] = json.loads(tokenizer.to_str())
        entry["tokenizer_config"] = config
    return entry


def old_merges(entry):
    """The form before tokenizers 0.20: one string per merge."""
    model = entry["tokenizer_json"]["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]


def main():
    texts = strings()
    lines = corpus(texts)
    llama = train_spm(lines, True, [])
    gemma = train_spm(lines, False, USER_TOKENS)
    spm = {
        "extra": EXTRA,
        "vocabularies": {
            "llama": spm_entry(llama, texts),
            "gemma": spm_entry(gemma, texts),
            "ties": spm_entry(with_ties(llama), texts),
            "unused": spm_entry(with_unused(llama), texts),
        },
    }
    entries = {name: folder_entry(t, c, texts) for name, t, c in folders(lines, llama, gemma)}
    old_merges(entries["smollm"])
    if len(sys.argv) > 1:
        real = Tokenizer.from_file(sys.argv[1])
        entries["gemma3_real"] = folder_entry(real, {}, texts, keep_file=False)
    else:
        old = json.loads((HERE / "folder_golden.json").read_text())
        entries["gemma3_real"] = old["gemma3_real"]
    for name, result in (("spm_golden.json", spm), ("folder_golden.json", entries)):
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
        (HERE / name).write_text(text + "\n")
        print(name, len(text.encode()), "bytes,", len(texts), "strings")


if __name__ == "__main__":
    main()
