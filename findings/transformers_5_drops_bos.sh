#!/usr/bin/env bash
# transformers 4.57.6 and 5.24.0: one folder, `add_bos_token: true`, and only the older adds BOS.
#
# Folders of the DeepSeek kind name LlamaTokenizerFast beside a byte-level tokenizer.json without a
# post_processor, and ask for the first token by `add_bos_token` in tokenizer_config.json. 4.57.6
# adds it (also where the key is absent). 5.24.0 sees that tokenizer.json is byte-level, takes its
# class TokenizersBackend, warns about the class, says nothing about the key, and adds no token.
# For the names of Gemma and Cohere the key is lost without any warning. A model that was trained
# with BOS gets other ids and answers a little worse; no error shows it. A server has to choose
# whose ids it gives, and cannot take "as transformers does" for an answer.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for release in 4.57.6 5.24.0; do
  python3 -m venv "$work/$release" &&
    "$work/$release/bin/pip" install -q "transformers==$release" || exit 2
done

cat >"$work/try.py" <<'PY'
import json
import os
import sys
import tempfile

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

transformers.logging.set_verbosity_error()
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocab = {c: i for i, c in enumerate(alphabet + ["<s>", "</s>"])}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<s>", "</s>"])


def adds_bos(name, **keys):
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        config = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>", **keys}
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
            json.dump(config, file)
        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        return loaded("hi").input_ids[0] == vocab["<s>"]


print("transformers", transformers.__version__)
seen = {
    name: [adds_bos(name, add_bos_token=True), adds_bos(name), adds_bos(name, add_bos_token=False)]
    for name in ("LlamaTokenizerFast", "GemmaTokenizerFast", "CohereTokenizerFast")
}
print("adds BOS with add_bos_token true, absent, false:", seen)
older = transformers.__version__.startswith("4.")
assert all(row == ([True, True, False] if older else [False] * 3) for row in seen.values())
PY

for release in 4.57.6 5.24.0; do
  "$work/$release/bin/python" "$work/try.py" 2>"$work/errors" || {
    cat "$work/errors" >&2
    exit 1
  }
done
