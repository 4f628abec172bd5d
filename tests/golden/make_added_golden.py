#!/usr/bin/env python3
"""Writes added_golden.json: what PyPI `tokenizers` and `transformers` make of added tokens.

Each case is a Hugging Face folder: a file of folder_golden.json with other parts (`changes`), in
the form of one published family. Stored are the hash of its ids for each text, with special tokens
found in the text and without, and of the texts that come back. `transformers` cases load the folder
as AutoTokenizer does, because tokenizer_config.json changes tokens too.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install tokenizers transformers
    /tmp/golden/bin/python tests/golden/make_added_golden.py [--texts N --seed S --out FILE]
"""

import argparse
import copy
import json
import pathlib
import random
import tempfile

from make_folder_golden import HERE, fnv1a, text_hash
from tokenizers import Tokenizer
from transformers import AutoTokenizer

SPACE = "\u2581"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
CL100K = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = rf"{CASED}|{UPPER}|\p{{N}}|{SLASH_TAIL}"
O200K = rf"{CASED}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?|\p{{N}}{{1,3}}|{SLASH_TAIL}"

PARTS = (
    ["Hello", "hello", " you", " the", "cat", "cats", "_", "7", ".", ">", "x", "X", "DIY", "'s"]
    + [" ", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\v", "\x85"]
    + ["\u00a0", "\u2003", "\u3000"]
    + ["e\u0301", "\u0301", "\u0338", "\u00e9", "\u4e2d\u6587", "\u212b", "\U0001f600", "\u200d"]
    + [SPACE, SPACE * 2, "<0x41>", "\u0e44\u0e17", "123456"]
)
# A case may have these as added tokens; in others they are look-alikes.
TOKENS = [
    "<unk>", "<s>", "</s>", "<|user|>", "<|end|>", "<|im_sep|>", "<think>", "</think>", "[INST]",
    "<tool>", "cat", "   ", "\t\t", "<\u1eaf>", "<a\u0306\u0301>", f"a{SPACE}b", "<\u212b>",
]  # fmt: skip


def token(content, special=True, **flags):
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": content, **base, "special": special, **flags}


def user(content, **flags):
    return token(content, special=False, **flags)


def splits(pattern, behavior="Isolated", invert=False):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {"type": "Sequence", "pretokenizers": [split, dict(level, use_regex=False)]}


def around(before, after):
    parts = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before:
        parts.insert(0, {"SpecialToken": {"id": before, "type_id": 0}})
    if after:
        parts.append({"SpecialToken": {"id": after, "type_id": 0}})
    pair = parts + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": {}}


NFC = {"type": "NFC"}
FLAGS = [dict(lstrip=True), dict(rstrip=True), dict(lstrip=True, rstrip=True), {}]
SPECIALS = ["<|user|>", "<|end|>", "<|im_sep|>", "[INST]"]
STRIPPING = [token(text, **flags) for text, flags in zip(SPECIALS, FLAGS)]
THINKING = [user("<think>"), user("</think>", rstrip=True), user("<tool>", lstrip=True)]
NORMALIZED = [
    user("<think>", normalized=True),
    user("</think>", normalized=True, rstrip=True),
    user("<tool>", normalized=True, lstrip=True),
    user("<\u1eaf>", normalized=True),
    user("<\u212b>"),
    user("   ", normalized=True),
    user("\t\t", normalized=True),
]
WORDS = [user("cat", single_word=True), user("DIY", single_word=True, lstrip=True, rstrip=True)]


def metaspace(scheme):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


def cases():
    """Name, file of folder_golden.json, parts that differ, tokens that are added."""
    yield "plain", "gpt2", {}, STRIPPING + THINKING + WORDS
    # </s> is a token of Phi-3 that users may write, and takes the blanks after it.
    phi3 = [token("<unk>"), token("<s>"), user("</s>", rstrip=True)]
    phi3 += [token(text, rstrip=True) for text in SPECIALS] + [token("<|endoftext|>")]
    yield "phi3", "llama_legacy", {"added_tokens": [], "post_processor": around("", "")}, phi3
    phi4 = [token(text, lstrip=True, rstrip=True) for text in SPECIALS]
    yield "phi4", "smollm", {"pre_tokenizer": splits(CL100K, "Removed", True)}, phi4 + THINKING
    yield "qwen2", "qwen2", {}, STRIPPING + [user("<tool>"), user("cat", single_word=True)]
    yield "qwen2 normalized", "qwen2", {"added_tokens": []}, STRIPPING + NORMALIZED + WORDS
    yield "qwen35", "qwen2", {"pre_tokenizer": splits(QWEN35)}, [token("<|user|>")]
    # GPT-NeoX and OLMo: runs of spaces, found in form C.
    runs = [user(" " * n, normalized=True) for n in range(2, 6)]
    yield "neox", "gpt2", {"normalizer": NFC}, [token("<|user|>"), user("<\u212b>")] + runs
    yield "llama3", "llama3", {}, STRIPPING + THINKING
    yield "smollm3", "llama3", {"post_processor": None}, [token("<|user|>"), user("<think>")]
    yield "granite", "smollm", {"post_processor": around("", "")}, [token("<|user|>")] + WORDS
    yield "tekken", "llama3", {"pre_tokenizer": splits(TEKKEN)}, [token("[INST]"), token("<s>")]
    inverted = {"pre_tokenizer": splits(O200K, "Isolated", True)}
    yield "o200k", "llama3", inverted, STRIPPING[:2] + THINKING
    both = {"post_processor": around("<|endoftext|>", "<|im_end|>")}
    yield "both ends", "qwen2", both, THINKING
    yield "legacy", "llama_legacy", {}, STRIPPING + THINKING + WORDS
    yield "legacy normalized", "llama_legacy", {}, STRIPPING + NORMALIZED + WORDS
    yield "metaspace first", "llama_metaspace", {}, STRIPPING + THINKING + WORDS
    for scheme in ("always", "never"):
        changes = {"pre_tokenizer": metaspace(scheme)}
        if scheme == "never":
            parts = [dict(type="Replace", pattern={"String": SPACE}, content=" ")]
            parts += [dict(type="ByteFallback"), dict(type="Fuse")]
            changes["decoder"] = {"type": "Sequence", "decoders": parts}
        yield f"metaspace {scheme}", "llama_metaspace", changes, STRIPPING + THINKING + WORDS
    mixed = [user(f"a{SPACE}b"), user(SPACE * 2), user(SPACE * 3, normalized=True)]
    mixed += [token("<unk>"), token("<s>")]
    yield "gemma", "gemma", {"added_tokens": []}, STRIPPING + mixed + NORMALIZED[:2]
    composed = {"normalizer": {"type": "Sequence", "normalizers": [NFC]}}
    yield "metaspace nfc", "llama_metaspace", composed, STRIPPING + NORMALIZED + WORDS


def config_cases():
    """Name, file of folder_golden.json, parts that differ, tokenizer_config.json."""
    end = token("</s>", rstrip=True, __type="AddedToken")
    named = {"bos_token": "<s>", "eos_token": end, "unk_token": "<unk>"}
    flags = {"1": token("<s>", lstrip=True), "2": user("</s>", rstrip=True)}
    yield "decoder", "llama_legacy", {}, {"unk_token": "<unk>", "added_tokens_decoder": flags}
    yield "decoder and name", "llama_legacy", {}, dict(named, added_tokens_decoder=flags)
    yield "names alone", "llama_metaspace", {"added_tokens": []}, named
    more = {"701": token("<|user|>", rstrip=True), "702": user("cat", single_word=True)}
    yield "decoder alone", "gpt2", {}, {"added_tokens_decoder": more}


def load(file, config):
    """The tokenizer that transformers makes of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        for name, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
            pathlib.Path(folder, name).write_text(json.dumps(content))
        return AutoTokenizer.from_pretrained(folder).backend_tokenizer


def build(files, base, changes, added):
    """tokenizer.json of a case."""
    file = copy.deepcopy(files[base]["tokenizer_json"])
    file.update(copy.deepcopy(changes))
    known = dict(file["model"]["vocab"])
    known.update({entry["content"]: entry["id"] for entry in file["added_tokens"]})
    for entry in added:
        place = known.setdefault(entry["content"], max(known.values()) + 1)
        file["added_tokens"] = [e for e in file["added_tokens"] if e["id"] != place]
        file["added_tokens"].append({"id": place, **entry})
    # Ids without a hole: those of tokens that are no longer added.
    ids = sorted(known.values())
    for text, place in known.items():
        if place not in [e["id"] for e in file["added_tokens"]]:
            file["model"]["vocab"].setdefault(text, place)
    assert ids == list(range(len(ids)))
    file["added_tokens"].sort(key=lambda entry: entry["id"])
    post = file["post_processor"]
    if post and post["type"] == "TemplateProcessing":
        for part in post["single"]:
            name = part.get("SpecialToken", {}).get("id")
            if name:
                table = {"id": name, "ids": [known[name]], "tokens": [name]}
                post["special_tokens"][name] = table
    return file


def results(tokenizer, texts):
    entry = {}
    for name, as_text in (("parsed", False), ("plain", True)):
        tokenizer.encode_special_tokens = as_text
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        entry[name] = [fnv1a(row) for row in ids]
    entry["decoded"] = [text_hash(tokenizer.decode(row, skip_special_tokens=False)) for row in ids]
    entry["with_special"] = tokenizer.encode("Hello you", add_special_tokens=True).ids
    entry["num_tokens"] = tokenizer.get_vocab_size()
    return entry


def random_texts(count, seed):
    source = random.Random(seed)
    texts = []
    while len(texts) < count:
        parts = [source.choice(source.choice([PARTS, TOKENS])) for _ in range(source.randint(1, 9))]
        texts.append("".join(parts))
    return texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=HERE / "added_golden.json", type=pathlib.Path)
    options = parser.parse_args()
    files = json.loads((HERE / "folder_golden.json").read_text())
    texts = random_texts(options.texts, options.seed)
    golden = {"texts": texts, "cases": {}}
    rows = [(*row[:3], row[3], None) for row in cases()]
    rows += [(*row[:3], [], row[3]) for row in config_cases()]
    for name, base, changes, added, config in rows:
        file = build(files, base, changes, added)
        plain = config is None
        tokenizer = Tokenizer.from_str(json.dumps(file)) if plain else load(file, config)
        entry = results(tokenizer, texts)
        entry["base"] = base
        entry["config"] = config or {}
        entry["changes"] = {
            key: file[key]
            for key in file
            if key != "model" and file[key] != files[base]["tokenizer_json"][key]
        }
        golden["cases"][name] = entry
    text = json.dumps(golden, ensure_ascii=True, separators=(",", ":"))
    options.out.write_text(text + "\n")
    print(options.out.name, len(text), "bytes,", len(golden["cases"]), "cases")


if __name__ == "__main__":
    main()
