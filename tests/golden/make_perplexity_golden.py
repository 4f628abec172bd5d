#!/usr/bin/env python3
"""Writes perplexity_golden.json: the perplexity of tests/data/alice.txt in float64.

Model files are dequantised with the PyPI package `gguf`, texts are cut into tokens by PyPI
`tokenizers` or `sentencepiece`, and the forward pass is make_golden.py's. The windows are those of
`baton eval`: the bos and up to context - 1 tokens, all scored, where the model has a bos; else up
to `context` tokens, of which the first is not scored.

  pip install gguf numpy tokenizers sentencepiece protobuf
  make_perplexity_golden.py MODEL.gguf...     keeps the other models' results
"""

import hashlib
import json
import pathlib
import sys

import numpy as np

import make_golden

HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parent / "data" / "alice.txt"
GOLDEN = HERE / "perplexity_golden.json"
CONTEXT = 2048


def windows(weights, tokens, context):
    bos = make_golden.bos_of(weights)
    step = context - len(bos)
    return [bos + tokens[at : at + step] for at in range(0, len(tokens), step)]


def likelihoods(weights, sequences):
    """-ln p of every token of each sequence but its first."""
    out = []
    for tokens, states in zip(sequences, make_golden.hidden_states(weights, sequences)):
        targets = np.array(tokens[1:], dtype=int)
        for begin in range(0, len(targets), 128):
            t = targets[begin : begin + 128]
            logits = make_golden.logits_of(weights, states[begin : begin + len(t)])
            logits -= logits.max(axis=-1, keepdims=True)
            out.extend(np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(t)), t])
    return out


def reference(path, text, context=CONTEXT):
    weights = make_golden.Weights(str(path))
    tokens = make_golden.tokenizer_of(weights)(text)
    nll = likelihoods(weights, windows(weights, tokens, context))
    return {
        "context": context,
        "tokens": len(tokens),
        "scored": len(nll),
        "mean_nll": float(np.mean(nll)),
        "perplexity": float(np.exp(np.mean(nll))),
    }


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    text = TEXT.read_text()
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for model in map(pathlib.Path, sys.argv[1:]):
        row = reference(model, text)
        row["sha256"] = hashlib.sha256(model.read_bytes()).hexdigest()
        golden[model.name] = row
        print(model.name, row)
    GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
