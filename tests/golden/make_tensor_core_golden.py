#!/usr/bin/env python3
"""Writes tensor_core_h100.golden from gpu_check_primitives.json, what stage 1 of
scripts/gpu_check.sh keeps of a GPU:  make_tensor_core_golden.py RESULTS.json 'ORIGIN'

Of every check of mma.sync and wgmma: how its operands are drawn, the digests of all words that
went in and came out, and some elements whole: all that the rule published first (arXiv 2511.10909
v1: a factor that is zero counts the exponent -126, and so does a C) has otherwise, up to a number,
and eight more. Drawing and that rule are written here once more, by the text of
tests/kernels/gpu_check/mma_vectors.cc; digests say that the operands are those that the GPU had.
"""
import json
import re
import struct
import sys
from pathlib import Path

MASK = (1 << 64) - 1
MAX_ODD = {"zeros": 40}  # nearly all of them are
MAX_ODD_OF_OTHERS = 400
NUM_OTHERS = 8
A, B, C = 128, 64, 128  # words of a tile
# First and number of exponent fields, of factors and of C.
RANGES = {"random": (124, 4, 122, 8), "cancelling": (124, 4, 122, 8),
          "special": (124, 4, 122, 8), "wide": (107, 40, 100, 54),
          "denormal": (0, 70, 0, 4), "huge": (186, 6, 248, 7), "zeros": (50, 12, 0, 3)}
SPECIALS = (0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x0001, 0x7F7F)


class Random:
    """tests/test_seed.h."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    def below(self, end):
        return self.next() % end


def draw(random, kind):
    if kind == "special" and random.below(24) == 0:
        return SPECIALS[random.below(8)]
    first, count = RANGES[kind][:2]
    is_zero_field = kind == "denormal" and random.below(2) == 0
    field = 0 if is_zero_field else first + random.below(count)
    return field << 7 | random.below(128) | random.below(2) << 15


def draw_c(random, kind):
    first, count = RANGES[kind][2:]
    field = first + random.below(count)
    mantissa = random.next() & 0x7FFFFF
    if kind == "special" and random.below(24) == 0:
        return 0x7F800000 | random.below(2) << 31
    is_zero = kind == "zeros" and random.below(4) != 0
    return (0 if is_zero else field << 23 | mantissa) | random.below(2) << 31


def plant_zeros(tile):
    def plant(words, k, row, magnitude):
        at, shift = words + row * 8 + k // 2, k % 2 * 16
        tile[at] = tile[at] & ~(0x7FFF << shift) | magnitude << shift
    for row in range(16):
        for k, magnitude in ((3, 0), (10, 0 if row % 2 == 0 else 0x7F7F), (12, 0x7F7F)):
            plant(0, k, row, magnitude)
    for column in range(8):
        for k, magnitude in ((3, 0x7F7F), (10, 0), (12, 0)):
            plant(A, k, column, magnitude)


def mma_inputs(kind, num_tiles, seed):
    random = Random(seed)
    tiles = []
    for _ in range(num_tiles):
        tile = []
        for i in range(A + B):
            low = draw(random, kind)
            high = draw(random, kind)
            if kind == "cancelling":
                high = low ^ 0x8000 if i < A else low + random.below(2)
            tile.append(low | high << 16 & 0xFFFFFFFF)
        if kind == "zeros":
            plant_zeros(tile)
        tiles.append(tile + [draw_c(random, kind) for _ in range(C)])
    return tiles


def mma_exchanged(tiles):
    out = []
    for tile in tiles:
        c = [tile[A + B + row * 8 + column] for column in range(8) for row in range(8)]
        out.append(tile[A:A + B] + [0] * (A - B) + tile[:B] + c + [0] * (C - len(c)))
    return out


def mma_grid(kind, columns, seed):
    across = columns // 8
    tiles = mma_inputs(kind, 4 * across, seed)
    return [tiles[i // across * across][:A] + tiles[i % across][A:A + B] + tile[A + B:]
            for i, tile in enumerate(tiles)]


def by_rows(d, columns):
    """Words of [tile][16][8] as [64][columns]."""
    return [d[(row // 16 * (columns // 8) + column // 8) * C + row % 16 * 8 + column % 8]
            for row in range(64) for column in range(columns)]


def wgmma_inputs(grid, columns):
    across = columns // 8
    a = [word for i in range(4) for word in grid[i * across][:A]]
    b = [word for i in range(across) for word in grid[i][A:A + B]]
    return a + b + by_rows([word for tile in grid for word in tile[A + B:]], columns)


def halves(words):
    return [half for word in words for half in (word & 0xFFFF, word >> 16)]


def elements(tiles):
    """(a, b, c) of every element of D, [tile][16][8]."""
    for tile in tiles:
        a, b = halves(tile[:A]), halves(tile[A:A + B])
        for i in range(C):
            row, column = i // 8, i % 8
            yield (a[16 * row:16 * row + 16], b[16 * column:16 * column + 16], tile[A + B + i])


def digest(words):
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(words)}I", *words):
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return f"{value:016x}"


def decode(bits, fraction_bits):
    """Significand and exponent of a finite number, None of another one."""
    field = bits >> fraction_bits & 0xFF
    if field == 0xFF:
        return None
    magnitude = bits & ((1 << fraction_bits) - 1) | (1 << fraction_bits if field else 0)
    return (-magnitude if bits >> (fraction_bits + 8) else magnitude, max(field, 1) - 127)


def cut(value, left):
    magnitude = abs(value) << left if left >= 0 else abs(value) >> -left
    return -magnitude if value < 0 else magnitude


def first_rule(a, b, c):
    """The word that the rule published first gives; None where a factor or C is not finite."""
    pairs = [(decode(x, 7), decode(y, 7)) for x, y in zip(a, b)]
    term_c = decode(c, 23)
    if term_c is None or any(x is None or y is None for x, y in pairs):
        return None
    terms = [(cut(term_c[0], 2), term_c[1])]
    terms += [(x[0] * y[0] << 11, x[1] + y[1]) for x, y in pairs]
    largest = max(exponent for _, exponent in terms)
    total = sum(cut(value, exponent - largest) for value, exponent in terms)
    top = abs(total).bit_length() - 1 + largest - 25
    if total == 0 or top > 127:
        return 0 if total == 0 else 0x7F800000 | (total < 0) << 31
    magnitude = abs(cut(total, largest - 25 - (max(top, -126) - 23)))
    field = top + 127 if top >= -126 else 0
    return (field << 23 | magnitude & 0x7FFFFF | (total < 0) << 31) if magnitude else 0


def kind_of(drawn):
    return re.search(r"\((\w+), \d+, \d+\)", drawn).group(1)


def tiles_of(drawn):
    kind, number, seed = re.search(r"\((\w+), (\d+), (\d+)\)", drawn).groups()
    if drawn.startswith("Wgmma"):
        return mma_grid(kind, int(number), int(seed))
    tiles = mma_inputs(kind, int(number), int(seed))
    return mma_exchanged(tiles) if drawn.startswith("MmaExchanged") else tiles


def lines_of(check):
    tiles = tiles_of(check["drawn"])
    got = [int(check["out"][i:i + 8], 16) for i in range(0, len(check["out"]), 8)]
    columns = int(check["drawn"].rsplit(" ", 1)[1][:-1]) if "Wgmma" in check["drawn"] else 0
    words = wgmma_inputs(tiles, columns) if columns else [word for tile in tiles for word in tile]
    assert digest(words) == check["digest_in"] and digest(got) == check["digest_out"], check["name"]
    yield f"check {check['name']}"
    yield f"drawn {check['drawn']}"
    yield f"words {len(got)} in {check['digest_in']} out {check['digest_out']}"
    if check["name"] == "wgmma chain":  # its C are sums of its own
        return
    operands = list(elements(tiles))
    if columns:
        operands = by_rows(operands, columns)
    if check["name"].endswith(" from zero"):
        operands = [(a, b, 0) for a, b, _ in operands]
    odd = [i for i, of in enumerate(operands) if first_rule(*of) not in (None, got[i])]
    odd = odd[:MAX_ODD.get(kind_of(check["drawn"]), MAX_ODD_OF_OTHERS)]
    others = range(0, len(got), len(got) // NUM_OTHERS)
    for i in sorted({*odd, *others}):
        a, b, c = operands[i]
        factors = ["".join(f"{x:04x}" for x in side) for side in (a, b)]
        yield f"{i} {factors[0]} {factors[1]} {c:08x} {got[i]:08x}"


def main():
    results = json.loads(Path(sys.argv[1]).read_text())
    lines = [
        f"# mma.sync and wgmma of bf16 as {sys.argv[2]} computes them.",
        f"# By scripts/gpu_check.sh, stage 1, commit {results['commit']}, and "
        "tests/golden/make_tensor_core_golden.py.",
        "# Of a check: its name; how tests/kernels/gpu_check/mma_vectors.h draws its operands; "
        "the FNV-1a of all words in and out.",
        "# Of an element: its index among the words out; sixteen a; sixteen b; C; D."]
    for check in results["checks"]:
        if "mma" in check["name"]:
            lines += lines_of(check)
    (Path(__file__).parent / "tensor_core_h100.golden").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
