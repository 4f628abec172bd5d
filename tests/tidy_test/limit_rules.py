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
    ast.Div: operator.floordiv,
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
    (INFERENCE, r"at most (\d+) prompts and choices", "kMaxPrompts"),
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
    (INFERENCE, r"functions that the model may call, at most (\d+)\.", "kMaxTools"),
    (INFERENCE, r"// 1\.\.(\d+) of \[a-zA-Z0-9_\.-\]", "kMaxToolNameBytes"),
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
    (CHART, r'"maxContext": \{[^}]*"maximum": (\d+)', "kMaxContextTokens"),
    (CHART, r'"localPrefillTokens": \{[^}]*"maximum": (\d+)', "kMaxPromptTokens"),
    (CHART, r'"drainTimeoutSeconds": \{[^}]*"maximum": (\d+)', "kMaxDrainTimeoutS"),
    (CHART, r'"(?:minR|maxR|r)eplicas": \{[^}]*"maximum": (\d{3,})', "kMaxWorkers"),
)
# Sentences of pages: one may move to another .md file, or go.
PAGE_ROWS = (
    (r"`n` above (\d+)", "kMaxChoices"),
    (r"`top_logprobs` above (\d+)", "kMaxTopLogprobs"),
    (r"more than (\d+) `stop` texts", "kMaxStopStrings"),
    (r"`temperature` goes to (\d+)", "kMaxTemperature"),
    (r"`documents` \| at most ([\d,]+) objects", "kMaxDocuments"),
    (
        r"at most (\d+) variables, (\d+) KiB of JSON",
        "kMaxTemplateKwargs kMaxTemplateKwargsBytes/k",
    ),
    (r"body of a request \| (\d+) MiB, (\d+) levels", "kMaxBodyBytes/m kMaxJsonDepth"),
    (r"more than (\d+) levels, more", "kMaxJsonDepth"),
    (r"`user` is any text up to (\d+) KiB", "kMaxUserBytes/k"),
    (r"gRPC metadata of up to (\d+) KiB", "kMaxClientMetadataBytes/k"),
    (r"refusable events in the inbox \| ([\d,]+)", "kMaxInboxEvents"),
    (r"live requests \| ([\d,]+) \|.*retry after (\d+) ms", "kMaxLiveRequests kRetryHintMs"),
    (r"open hand-offs \| ([\d,]+) \|.*retry after (\d+) ms", "kMaxOpenTransfers kRetryHintMs"),
    (r"choices of a request \| (\d+)", "kMaxChoices"),
    (r"more than ([\d,]+) undelivered tokens", "kMaxPendingTokens"),
    (r"\*Batches\*: at most ([\d,]+) changes", "kMaxPrefixChanges"),
    (r"message of a router \| (\d+) MiB", "kMaxClusterMessageBytes/m"),
    (r"events that wait for one router \| ([\d,]+)", "kMaxQueuedEvents"),
    (r"([\d,]+) tokens and states wait", "kMaxQueuedEvents"),
    (r"control message of a peer \| (\d+) MiB", "kMaxControlBytes/m"),
    (r"one router \| ([\d,]+) and twice the cache", "kMaxPrefixChanges"),
    (r"one Nack names \| ([\d,]+)", "kMaxNackSlices"),
    (r"one Grant names \| ([\d,]+)", "kMaxBlocksPerTransfer"),
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


def _compare(path, text, row, known):
    """(number of matches, findings) of one row in one text."""
    pattern, names = row
    found, findings = 0, []
    for found, match in enumerate(re.finditer(pattern, text), 1):
        line = text.count("\n", 0, match.start()) + 1
        for number, name in zip(match.groups(), names.split(), strict=True):
            constant, _, unit = name.partition("/")
            wanted = known[constant] / DIVISORS.get(unit, 1)
            if int(number.replace(",", "")) != wanted:
                message = f"{number} is not limits::{constant}, {wanted:g}"
                findings.append(Finding("limit", path, constant, line, message))
    return found, findings


def check_limits(tree, rows=ROWS, page_rows=PAGE_ROWS):
    if HEADER not in tree.paths:
        return
    known = read_limits(tree.text(HEADER))
    for path, *row in rows:
        if path not in tree.paths:
            continue
        found, findings = _compare(path, tree.text(path), row, known)
        yield from findings
        if not found:
            message = f"no text says {row[1]} any more: {row[0]}"
            yield Finding("limit", path, row[1], 0, message)
    for path in tree.select({".md"}):
        for row in page_rows:
            yield from _compare(path, tree.text(path), row, known)[1]
