"""Which machine instructions the kernels must hold: the ones they were written for.

A source may compile to something slower without a word: an asynchronous copy as a load and a store,
sixteen bytes as four loads. cuda_resources.py gives what cuobjdump -sass says of each kernel.
"""

import collections
import re
import subprocess

FUNCTION = re.compile(r"Function : (\S+)")
NAME = re.compile(r"\d([A-Z][A-Za-z0-9]*Kernel)E")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)")

# Products of bf16 with fp32 sums, copies to shared memory past L1, four 8 x 8 matrices at once.
TENSOR_PIPELINE = (r"HMMA\.16816\.F32\.BF16", r"LDGSTS\.E\.BYPASS.*\.128", r"LDSM\.16\.M88\.4")


def wgmma_ring(columns):
    """Products of 64 rows by so many columns, tensor copies, barriers that are tried until they are
    over."""
    return (
        rf"HGMMA\.64x{columns}x16\.F32\.BF16",
        r"UTMALDG\.2D",
        r"SYNCS\.PHASECHK\.TRANS64\.TRYWAIT",
        r"SYNCS\.ARRIVE\.TRANS64.*",
    )


# Registers are given from one warpgroup to the others.
REGISTERS_GIVEN = (r"USETMAXREG\.DEALLOC\.CTAPOOL", r"USETMAXREG\.TRY_ALLOC\.CTAPOOL")


# V is read by columns out of its rows (T). Products are fused, weights rounded two at a time.
ATTENTION = (
    *TENSOR_PIPELINE,
    r"LDSM\.16\.MT88\.4",
    r"FFMA",
    r"F2FP\.BF16\.F32\.PACK_AB",
    r"SHFL\.BFLY",
)
# Scores are 64 columns whatever the head, sums as many as it has dims; the weights of the sums are
# registers. No operand is loaded by lanes.
def wgmma_attention(dim):
    """Copies past L1, products of both kinds, and the arithmetic between them."""
    return (
        r"HGMMA\.64x64x16\.F32\.BF16",
        rf"HGMMA\.64x{dim}x16\.F32\.BF16",
        r"LDGSTS\.E\.BYPASS.*\.128",
        r"FFMA",
        r"F2FP\.BF16\.F32\.PACK_AB",
        r"SHFL\.BFLY",
    )


# Partials travel as pairs of sums; the item that comes last is told by a counter.
ATTENTION_DECODE = (*ATTENTION, r"STG\.E\.64", r"LDG\.E\.64", r"ATOMG\.E\.ADD\.STRONG\.GPU")
ATTENTION_SPREAD = (*ATTENTION_DECODE, r"CCTL\.E\.PF2", r"LDS\.128", r"STS\.128")
# Codes of fp8 become bf16 by two LOP3 and a product of pairs.
CODES = (r"LOP3\.LUT", r"HMUL2\.BF16_V2")
PARTIALS = (r"STG\.E\.128", r"LDG\.E\.128")
ROPE = (
    r"LDG\.E\.64",
    r"STG\.E\.64",
    r"FFMA",
    r"F2FP\.BF16\.F32\.PACK_AB",
    r"F2FP.*E4M3.*",
    r"SHFL\.BFLY",
    r"ATOMG\.E\.ADD\.STRONG\.GPU",
)
NORM = (r"SHFL\.BFLY", r"STS\.128", r"F2FP\.BF16\.F32\.PACK_AB")
GATES = (r"FFMA", r"STS\.128", r"LDS\.128")
# Ranks meet through flags that every GPU of the host sees.
MEETING = (r"STG\.E\.STRONG\.SYS", r"LDG\.E\.STRONG\.SYS")
# Formats of packed weights, and how they become bf16.
UNPACKING = (r"LOP3\.LUT", r"FFMA", r"F2FP\.BF16\.F32\.PACK_AB", r"HADD2\.F32")
PACKED = {
    **{kind: UNPACKING for kind in ("Q40", "Q41", "Q4K", "Q80", "Q6K")},
    "E4m3": (r"LOP3\.LUT", r"FMUL", r"F2FP\.BF16\.F32\.PACK_AB"),
}
# The wait for the kernel before, and the word that the next may begin (griddepcontrol): in every
# kernel of a step. A path that expects no writer must not read the results of the kernel before.
OVERLAP = (r"ACQBULK", r"PREEXIT")
NOWHERE_IN_OVERLAP = (r"LDG.*CONSTANT.*",)
ALONE = ("Unpack", "KvGather", "KvScatter")
# Kernel -> patterns of which each must match some instruction. Partial sums of products travel as
# 16 bytes; rotation moves quads of bf16.
EXPECTED = {
    **{f"AttentionDecode{dim}Kernel": ATTENTION_DECODE for dim in (64, 128, 256)},
    **{f"AttentionDecodeFew{dim}Kernel": ATTENTION_DECODE for dim in (64, 128, 256)},
    **{f"AttentionDecodeFew{dim}Fp8Kernel": (*ATTENTION_DECODE, *CODES) for dim in (128, 256)},
    # It asks for K and V in L2 before it waits, and its operands travel as sixteen bytes.
    **{f"AttentionSpread{dim}Kernel": ATTENTION_SPREAD for dim in (64, 128, 256)},
    **{f"AttentionSpread{dim}Fp8Kernel": (*ATTENTION_SPREAD, *CODES) for dim in (64, 128, 256)},
    **{f"AttentionPrefill{dim}Kernel": ATTENTION for dim in (64, 128, 256)},
    **{f"AttentionDecode{dim}Fp8Kernel": (*ATTENTION_DECODE, *CODES) for dim in (64, 128, 256)},
    **{f"AttentionWgmma{dim}Kernel": wgmma_attention(dim) for dim in (64, 128, 256)},
    # Codes are read and their bf16 written sixteen bytes at a time.
    **{
        f"AttentionPrefill{dim}Fp8Kernel": (*ATTENTION, *CODES, r"LDS\.128", r"STS\.128")
        for dim in (64, 128, 256)
    },
    **{
        f"AttentionWgmma{dim}Fp8Kernel": (
            *wgmma_attention(dim),
            *CODES,
            r"LDS\.128",
            r"STS\.128",
        )
        for dim in (64, 128, 256)
    },
    **{f"GemmNarrow{rows}Kernel": (*wgmma_ring(rows), *PARTIALS) for rows in (8, 32, 64)},
    # Gates in the product: exp is a chain of fmas, and ups go through shared memory.
    **{
        f"GatedNarrow{rows}Kernel": (*wgmma_ring(rows), *PARTIALS, *GATES) for rows in (8, 32)
    },
    **{f"GatedRows{rows}Kernel": (*TENSOR_PIPELINE, *PARTIALS, *GATES) for rows in (8, 32)},
    # A norm that two products divide.
    "SumNarrow8Kernel": (*wgmma_ring(8), *PARTIALS, r"FFMA", r"LDS\.128"),
    "NormGatedNarrow8Kernel": (*wgmma_ring(8), *PARTIALS, *GATES, *NORM),
    "NormRopedNarrow8Kernel": (*wgmma_ring(8), *PARTIALS, *ROPE, *NORM),
    # The instructions of rope_append, in the product.
    **{f"RopedNarrow{rows}Kernel": (*wgmma_ring(rows), *PARTIALS, *ROPE) for rows in (8, 32)},
    **{f"RopedRows{rows}Kernel": (*TENSOR_PIPELINE, *PARTIALS, *ROPE) for rows in (8, 32)},
    "GemmRows8Kernel": (*TENSOR_PIPELINE, *PARTIALS),
    "GemmRows32Kernel": (*TENSOR_PIPELINE, *PARTIALS),
    "GemmTile64Kernel": TENSOR_PIPELINE,
    "GemmTile128Kernel": TENSOR_PIPELINE,
    **{f"GemmWgmma{rows}Kernel": (*wgmma_ring(rows), *REGISTERS_GIVEN) for rows in (128, 192, 256)},
    **{
        f"Kv{way}Kernel": (r"LDG\.E.*\.128", r"STG\.E\.128", r"SHFL\.BFLY", r"IMAD\.WIDE\.U32.*")
        for way in ("Gather", "GatherRanks", "Scatter", "ScatterRanks")
    },
    "GroupedGemm8Kernel": TENSOR_PIPELINE,
    "GroupedGemm64Kernel": TENSOR_PIPELINE,
    # Digits are taken out by one LOP3 each and become weights by one fma; halves by HADD2. Codes
    # are taken out in pairs and become weights by a product.
    **{
        f"PackedRows{rows}{kind}Kernel": (*TENSOR_PIPELINE, *unpacking, r"LDS\.128", *PARTIALS)
        for rows in (8, 32)
        for kind, unpacking in PACKED.items()
    },
    **{
        f"GroupedPacked{rows}{kind}Kernel": (*TENSOR_PIPELINE, *unpacking, r"LDS\.128")
        for rows in (8, 64)
        for kind, unpacking in PACKED.items()
    },
    **{
        f"Unpack{kind}Kernel": (*unpacking, r"LDS\.128", r"STG\.E\.128")
        for kind, unpacking in PACKED.items()
    },
    **{f"Embed{kind}Kernel": unpacking for kind, unpacking in PACKED.items()},
    "RouteKernel": (r"SHFL\.BFLY", r"FSETP.*"),
    "RouteScoredKernel": (r"SHFL\.BFLY", r"FSETP.*"),
    "SortPairsKernel": (r"SHFL\.BFLY", r"ATOMG\.E\.ADD\.STRONG\.GPU"),
    "AllReduceKernel": (*MEETING, r"LDG\.E.*\.128", r"STG\.E\.128", r"F2FP\.BF16.*"),
    "GatherColumnsKernel": MEETING,
    "CombineKernel": (r"LDG\.E.*\.128", r"STG\.E\.128", r"FFMA"),
    "RmsNormKernel": (r"LDG\.E.*\.128", r"STG\.E\.128", r"SHFL\.BFLY", r"FFMA"),
    "SiluMulKernel": (r"LDG\.E.*\.128", r"STG\.E\.128"),
    "GeluMulKernel": (r"LDG\.E.*\.128", r"STG\.E\.128", r"FFMA"),
    "EmbedKernel": (r"LDG\.E.*\.128", r"STG\.E\.128"),
    "SampleKernel": (
        r"LDG\.E\.128",
        r"ATOMS\.ADD",
        r"ATOMS\.POPC\.INC\.32",
        r"F2I\.S64\.TRUNC",
        r"SHFL\.BFLY",
        r"IMAD\.WIDE\.U32",
    ),
    "RopeAppendKernel": (
        r"LDG\.E\.64",
        r"STG\.E\.64",
        r"FFMA",
        r"F2FP\.BF16\.F32\.PACK_AB",
        r"SHFL\.BFLY",
    ),
    # Products of the scan are chains of fmas whose state stays in registers.
    **{f"DeltaScan{dim}Kernel": (r"LDGSTS\.E.*\.128", r"LDS\.128", r"FFMA") for dim in (64, 128)},
    "DeltaInputsKernel": (r"SHFL\.BFLY", r"FFMA", r"MUFU\.RSQ"),
    "DeltaGateKernel": (r"SHFL\.BFLY", r"FFMA", r"MUFU\.RSQ"),
    "ClearBlocksKernel": (r"STG\.E\.128",),
    "SigmoidMulKernel": (r"LDG\.E.*\.128", r"STG\.E\.128", r"FFMA"),
    "ShortConvKernel": (
        r"LDG\.E\.128",
        r"STG\.E\.128",
        r"FFMA",
        r"F2FP\.BF16\.F32\.PACK_AB",
    ),
    "RopeAppendFp8Kernel": (r"LDG\.E\.64", r"FFMA", r"F2FP.*E4M3.*", r"SHFL\.BFLY"),
}
# Local memory: an array or a spill that ptxas did not warn of.
NOWHERE = (r"LDL.*", r"STL.*")


def parse(sass):
    """{kernel: Counter of instructions} of cuobjdump -sass."""
    found, current = {}, None
    for line in sass.splitlines():
        function = FUNCTION.search(line)
        if function:
            name = NAME.search(function.group(1))
            current = found.setdefault(
                name.group(1) if name else function.group(1), collections.Counter()
            )
        elif current is not None and (instruction := INSTRUCTION.match(line)):
            current[instruction.group(1)] += 1
    return found


def read(cuobjdump, cubin):
    """The counts of instructions of one file, as parse gives them."""
    done = subprocess.run(
        [cuobjdump, "-sass", str(cubin)], capture_output=True, text=True, check=True
    )
    return parse(done.stdout)


def needed(kernel):
    """Patterns of which each must match some instruction of the kernel."""
    return EXPECTED[kernel] if kernel.startswith(ALONE) else (*EXPECTED[kernel], *OVERLAP)


def forbidden(kernel):
    """Patterns that no instruction of the kernel may match."""
    return NOWHERE if kernel.startswith(ALONE) else (*NOWHERE, *NOWHERE_IN_OVERLAP)


def differences(found):
    """Lines that say which kernel is not listed, lacks what, or holds what none may."""
    unlisted = sorted(set(found) - set(EXPECTED))
    lines = [f"{kernel}: no instructions are listed" for kernel in unlisted]
    for kernel in sorted(EXPECTED):
        instructions = found.get(kernel, {})
        for pattern in needed(kernel):
            if not any(re.fullmatch(pattern, name) for name in instructions):
                lines.append(f"{kernel}: no instruction {pattern}")
    for kernel, instructions in sorted(found.items()):
        for name in sorted(instructions):
            if any(re.fullmatch(pattern, name) for pattern in forbidden(kernel)):
                lines.append(f"{kernel}: {instructions[name]} times {name}")
    return lines
