#!/usr/bin/env bash
# llguidance 1.9.1: which JSON of a schema its grammar lets a model write.
#
# A grammar made from a JSON Schema should take what the schema's validator takes. A bound changes
# the *spelling* of numbers: {"type": "number"} takes 1e3, {"type": "number", "minimum": 0} takes
# 1000 but not 1e3 (nor -0), as does a `maximum` of a million. "integer" takes neither 1.0 nor 1e3,
# which are integers for JSON Schema, and `multipleOf` 0.5 takes 1.5 and not 1.50. No error or
# warning says so. In the other direction a free object may have one key twice.
# A model that learnt to write 1e-7 is pushed off its best token: whoever compares constrained with
# free answers, or checks recorded answers against the grammar, must know these rules.
#
# Exit status 0: still so. 1: it changed. 2: the check could not be made (packages, port).
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" &&
  "$work/venv/bin/pip" install -q llguidance==1.9.1 jsonschema==4.26.0 || exit 2

cat >"$work/try.py" <<'PY'
import os
import sys
import traceback


def end(kind, error, trace):
    """A claim that fails ends with 1, all else with 2."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    os._exit(1 if issubclass(kind, AssertionError) else 2)


sys.excepthook = end

import importlib.metadata
import json

import jsonschema
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class Bytes:  # a tokenizer of 256 bytes and an end
    eos_token_id, bos_token_id, unk_token_id = 256, None, None
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def grammar_takes(schema, text):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    assert not LLMatcher.validate_grammar(grammar, tokenizer)
    matcher = LLMatcher(tokenizer, grammar)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


NUMBER, AT_LEAST_0 = {"type": "number"}, {"type": "number", "minimum": 0}
HALVES = {"type": "number", "multipleOf": 0.5}
CASES = [  # schema, text, whether the grammar takes it; each is valid by the schema
    (NUMBER, "1e3", True),
    (AT_LEAST_0, "1000", True),
    (AT_LEAST_0, "1e3", False),
    (AT_LEAST_0, "-0", False),
    ({"type": "number", "maximum": 1000000}, "1e3", False),
    ({"type": "integer"}, "1", True),
    ({"type": "integer"}, "1.0", False),
    ({"type": "integer"}, "1e3", False),
    (HALVES, "1.5", True),
    (HALVES, "1.50", False),
    ({"type": "object"}, '{"a": 1, "a": 2}', True),
]
print("llguidance", importlib.metadata.version("llguidance"))
changed = 0
for schema, text, wanted in CASES:
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    takes = grammar_takes(schema, text)
    verb = "takes" if takes else "refuses"
    print(f"{json.dumps(schema)}: {text} is valid, the grammar {verb} it")
    changed |= takes != wanted
raise SystemExit(changed)
PY
"$work/venv/bin/python" "$work/try.py" || exit "$(($? == 1 ? 1 : 2))"
