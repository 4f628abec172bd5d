#!/usr/bin/env bash
# tokenizers 0.23.3 (Python): DecodeStream never gives out the end of some texts.
#
# `DecodeStream.step` returns the text that a further id adds, or None while a character is not
# whole. It knows that by a U+FFFD at the end of what it decoded, and there is no call that ends a
# stream. So the pieces of a text that ends with a U+FFFD of its own do not add up to `decode` of
# the same ids: the last character is lost, and so is a character that the last token cut (decode
# shows U+FFFD for it). In the middle of a text the character comes late, together with the next
# one. Whoever streams by this class has to compare with `decode` once the last id is known.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q tokenizers==0.23.3 || exit 2

cat >"$work/try.py" <<'PY'
import importlib.metadata

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

# One token a byte.
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()


def pieces_and_whole(ids):
    stream = DecodeStream(skip_special_tokens=False)
    pieces = [stream.step(tokenizer, i) for i in ids]
    return pieces, tokenizer.decode(ids)


print("tokenizers", importlib.metadata.version("tokenizers"))
seen = {}
for name, ids in (
    ("whole characters", tokenizer.encode("h\u00e9").ids),
    ("ends with U+FFFD", tokenizer.encode("a\ufffd").ids),
    ("U+FFFD in the middle", tokenizer.encode("a\ufffdb").ids),
    ("ends within a character", tokenizer.encode("a\u00e9").ids[:-1]),
):
    seen[name] = pieces_and_whole(ids)
    print(f"{name}: pieces {seen[name][0]}, decode {seen[name][1]!r}")
assert not hasattr(DecodeStream, "flush") and not hasattr(DecodeStream, "finish")
assert seen["whole characters"] == (["h", None, "\u00e9"], "h\u00e9")
assert seen["ends with U+FFFD"] == (["a", None, None, None], "a\ufffd")
assert seen["U+FFFD in the middle"] == (["a", None, None, None, "\ufffdb"], "a\ufffdb")
assert seen["ends within a character"] == (["a", None], "a\ufffd")
PY

"$work/venv/bin/python" "$work/try.py"
