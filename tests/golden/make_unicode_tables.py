#!/usr/bin/env python3
"""Writes src/text/hf/src/jinja/unicode_tables.rs: what Python's str methods know of characters.

usage: make_unicode_tables.py > src/text/hf/src/jinja/unicode_tables.rs

Made with CPython 3.11 (Unicode 14). Each table is a list of ranges [first, last] of code points for
which the method says True; the maps hold the characters whose mapping Rust's standard library does
not have. unicode.rs has the classes that the crate regex-syntax knows.
"""

import unicodedata

CHARS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(predicate):
    out = []
    for c in CHARS:
        if not predicate(c):
            continue
        code = ord(c)
        if out and (out[-1][1] == code - 1 or (out[-1][1] == 0xD7FF and code == 0xE000)):
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def wrapped(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            print(line)
            line = "   "
        line += " " + item + ","
    print(line)


def table(name, predicate):
    found = ranges(predicate)
    print(f"\npub static {name}: [(u32, u32); {len(found)}] = [")
    wrapped(f"(0x{a:x}, 0x{b:x})" for a, b in found)
    print("];")


def mapping(name, pairs):
    print(f"\npub static {name}: [(u32, &str); {len(pairs)}] = [")
    wrapped('(0x%x, "%s")' % (ord(c), "".join(f"\\u{{{ord(d):x}}}" for d in s)) for c, s in pairs)
    print("];")


VERSION = unicodedata.unidata_version
print(f"//! Made by tests/golden/make_unicode_tables.py with Unicode {VERSION}; do not edit.")
print("#![cfg_attr(rustfmt, rustfmt_skip)]")
table("DIGIT", str.isdigit)
table("NUMERIC", str.isnumeric)
mapping("TITLE", [(c, c.title()) for c in CHARS if c.title() != c.upper()])
mapping("CASEFOLD", [(c, c.casefold()) for c in CHARS if c.casefold() != c.lower()])
