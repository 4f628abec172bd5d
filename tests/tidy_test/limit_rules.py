"""Numbers that people read must be the limits of src/base/limits.h."""

import ast
import operator
import re

from tree import Finding

HEADER = "src/base/limits.h"
CONSTANT = re.compile(r"^inline constexpr [\w:]+ (k\w+) =\s*([^;]+);", re.M)
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
}

# (file, pattern, limits of its groups). A group is the number as the file writes it; "/k" after a
# name divides the limit by 2^10, "/m" by 2^20. Every match in the file is compared, and a pattern
# without a match is a finding: the row has outlived its sentence.
INFERENCE = "proto/baton/v1/inference.proto"
COMMON = "proto/baton/v1/common.proto"
HANDOFF = "proto/baton/v1/handoff.proto"
WORKER = "proto/baton/v1/worker.proto"
CHART = "deploy/helm/baton/values.schema.json"
ROWS = (
    (INFERENCE, r"The conversation, 1\.\.(\d+) messages", "kMaxMessages"),
    (INFERENCE, r"// 0\.\.(\d+); 0 = greedy", "kMaxTemperature"),
    (INFERENCE, r"// Choices(?: returned)?, 1\.\.(\d+)\.", "kMaxChoices"),
    (INFERENCE, r"// Choices computed, n\.\.(\d+);", "kMaxChoices"),
    (INFERENCE, r"at most (\d+), each 1\.\.(\d+) bytes", "kMaxStopStrings kMaxStopBytes"),
    (INFERENCE, r"like end-of-generation; at most (\d+)\.", "kMaxStopTokens"),
    (INFERENCE, r"// -(\d+)\.\.(\d+)\. Default 0\.", "kMaxAddedPenalty kMaxAddedPenalty"),
    (INFERENCE, r"// 0 < r <= (\d+);", "kMaxRepetitionPenalty"),
    (
        INFERENCE,
        r"added to its logit, -(\d+)\.\.(\d+); at most (\d+) entries",
        "kMaxLogitBias kMaxLogitBias kMaxLogitBiases",
    ),
    (INFERENCE, r"Alternatives per token, 0\.\.(\d+);", "kMaxTopLogprobs"),
    (INFERENCE, r"// At most (\d+); only with tool_choice", "kMaxTools"),
    (INFERENCE, r"any text of at most (\d+) bytes", "kMaxUserBytes"),
    (INFERENCE, r"DEADLINE_EXCEEDED, 1\.\.(\d+);", "kMaxDeadlineMs"),
    (INFERENCE, r"for logs, 1\.\.(\d+) printable", "kMaxRequestIdBytes"),
    (INFERENCE, r"`idempotency-key`, 1\.\.(\d+) printable", "kMaxIdempotencyKeyBytes"),
    (INFERENCE, r"nothing else\. 1\.\.(\d+) bytes", "kMaxSaltBytes"),
    (
        INFERENCE,
        r"JSON object, at most (\d+) names and (\d+) KiB",
        "kMaxTemplateKwargs kMaxTemplateKwargsBytes/k",
    ),
    (INFERENCE, r"UTF-8 text, at most (\d+) MiB", "kMaxEncodeBytes/m"),
    (INFERENCE, r"vocab_size-1; at most (\d+)\.", "kMaxPromptTokens"),
    (COMMON, r"// 0 = greedy; 0\.\.(\d+)\.", "kMaxTemperature"),
    (COMMON, r"// 0 < r <= (\d+);", "kMaxRepetitionPenalty"),
    (COMMON, r"// -(\d+)\.\.(\d+); 0 = off", "kMaxAddedPenalty kMaxAddedPenalty"),
    (
        COMMON,
        r"of a token id; -(\d+)\.\.(\d+); at most (\d+) entries",
        "kMaxLogitBias kMaxLogitBias kMaxLogitBiases",
    ),
    (COMMON, r"Alternatives per token, 0\.\.(\d+)\.", "kMaxTopLogprobs"),
    (COMMON, r"like end-of-generation; at most (\d+)\.", "kMaxStopTokens"),
    (COMMON, r"Stable name, 1\.\.(\d+) of", "kMaxWorkerIdBytes"),
    (HANDOFF, r"after held_blocks\. At most (\d+)\.", "kMaxBlocksPerTransfer"),
    (HANDOFF, r"when asked for; at most (\d+)\.", "kMaxTopLogprobs"),
    (HANDOFF, r"of each slice\. At most (\d+);", "kMaxNackSlices"),
    (WORKER, r"chat template; <= (\d+) MiB", "kMaxSpecBytes/m"),
    (WORKER, r"little endian\); at most (\d+) links", "kMaxPrefixChanges"),
    (WORKER, r"// Choices, 1\.\.(\d+);", "kMaxChoices"),
    (WORKER, r"when asked for; at most (\d+)\.", "kMaxTopLogprobs"),
    (
        "README.md",
        r"`n` above (\d+), `top_logprobs` above (\d+), more than (\d+) `stop` texts",
        "kMaxChoices kMaxTopLogprobs kMaxStopStrings",
    ),
    (CHART, r'"maxContext": \{[^}]*"maximum": (\d+)', "kMaxContextTokens"),
    (CHART, r'"localPrefillTokens": \{[^}]*"maximum": (\d+)', "kMaxPromptTokens"),
    (CHART, r'"(?:minR|maxR|r)eplicas": \{[^}]*"maximum": (\d{3,})', "kMaxWorkers"),
    ("README.md", r"`temperature` goes to (\d+)", "kMaxTemperature"),
    ("src/api/README.md", r"at most ([\d,]+) objects", "kMaxDocuments"),
    (
        "src/api/README.md",
        r"at most (\d+) variables, (\d+) KiB of JSON",
        "kMaxTemplateKwargs kMaxTemplateKwargsBytes/k",
    ),
    ("src/api/README.md", r"more than (\d+) levels, more", "kMaxJsonDepth"),
    ("src/api/README.md", r"`user` is any text up to (\d+) KiB", "kMaxUserBytes/k"),
    ("src/api/README.md", r"gRPC metadata of up to (\d+) KiB", "kMaxClientMetadataBytes/k"),
    ("src/engine/README.md", r"refusable events in the inbox \| ([\d,]+)", "kMaxInboxEvents"),
    (
        "src/engine/README.md",
        r"live requests \| ([\d,]+) \|.*retry after (\d+) ms",
        "kMaxLiveRequests kRetryHintMs",
    ),
    (
        "src/engine/README.md",
        r"open hand-offs \| ([\d,]+) \|.*retry after (\d+) ms",
        "kMaxOpenTransfers kRetryHintMs",
    ),
    ("src/engine/README.md", r"choices of a request \| (\d+)", "kMaxChoices"),
    ("src/router/README.md", r"more than ([\d,]+) undelivered tokens", "kMaxPendingTokens"),
    ("src/router/README.md", r"at most ([\d,]+) changes", "kMaxPrefixChanges"),
    ("src/worker/README.md", r"message of a router \| (\d+) MiB", "kMaxClusterMessageBytes/m"),
    ("src/worker/README.md", r"events that wait for one router \| ([\d,]+)", "kMaxQueuedEvents"),
    ("src/worker/README.md", r"([\d,]+) tokens and states wait", "kMaxQueuedEvents"),
    ("src/worker/README.md", r"control message of a peer \| (\d+) MiB", "kMaxControlBytes/m"),
    ("src/worker/README.md", r"one router \| ([\d,]+) and twice the cache", "kMaxPrefixChanges"),
    ("src/worker/README.md", r"one Nack names \| ([\d,]+)", "kMaxNackSlices"),
)
DIVISORS = {"k": 1 << 10, "m": 1 << 20}


def _value(node, known):
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    return OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known))


def read_limits(text):
    """{name: value} of the constants of limits.h."""
    known = {}
    for name, expression in CONSTANT.findall(text):
        plain = re.sub(r"\bu?int\d+_t\{(\d+)\}|\bsize_t\{(\d+)\}", r"\1\2", expression)
        plain = re.sub(r"(?<=\d)'(?=\d)|(?<=\d)[uf]\b", "", plain)
        known[name] = _value(ast.parse(plain.strip(), mode="eval").body, known)
    return known


def check_limits(tree, rows=ROWS):
    if HEADER not in tree.paths:
        return
    known = read_limits(tree.text(HEADER))
    for path, pattern, names in rows:
        if path not in tree.paths:
            continue
        matches = list(re.finditer(pattern, tree.text(path)))
        if not matches:
            yield Finding("limit", path, names, 0, f"no text says {names} any more: {pattern}")
        for match in matches:
            line = tree.text(path).count("\n", 0, match.start()) + 1
            for number, name in zip(match.groups(), names.split(), strict=True):
                constant, _, unit = name.partition("/")
                wanted = known[constant] / DIVISORS.get(unit, 1)
                if int(number.replace(",", "")) != wanted:
                    message = f"{number} is not limits::{constant}, {wanted:g}"
                    yield Finding("limit", path, constant, line, message)
