"""Answers under the schemas of the JSON Schema Test Suite: each finished answer must be valid by
the package `jsonschema`, and equal to itself when its decode worker dies at a random token.

  schema_corpus.py FOLDER [--schemas N] [--kills N] [--each-token N] [--shard K/N] [--json FILE]

FOLDER: json/tests of the source package of PyPI's jsonschema. Schemas of drafts 2020-12, 7 and 4
are taken in this order, each once, up to --schemas. A refusal must be INVALID_ARGUMENT and name
the field. --kills: for how many schemas the worker also dies, spread evenly. --each-token: for how
many of the schemas that are taken, from the first, it dies at every token of an answer (of 24 at
most). --shard: every N-th schema alone, from the K-th (1 to N), with its part of the kills: N runs
side by side are the whole, and take less time, since a worker that dies often starts late. Exits
with 1 when an answer is wrong. The seed of the kills is printed; BATON_TEST_SEED=<number> replays
it, `random` draws a fresh seed.
"""

import argparse
import collections
import json
import random
import sys
import time
from pathlib import Path

import grpc
import jsonschema

from baton_server import Server, seed_of_tests
from fault_work import wait_clean
from kill_guided import ask, kill_at, problem_of, run_case, shard_of

VALIDATORS = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft4": jsonschema.Draft4Validator,
}
# Each kill takes about a second, and most answers of a small model are as long as they may be.
MAX_TOKENS_OF_EACH = 24
# Shards stand beside each other, and a pool is reserved from what memory is free.
POOL = ("--kv-memory", "128MiB", "--max-context", "2048")
FLAGS = ("--prefill", "1", "--decode", "2", *POOL)
MODES = (dict(temperature=0), dict(temperature=0.9, top_p=0.95, seed=17))


def schemas_of(folder):
    """(name, schema, validator) of each group of the suite whose schema is an object."""
    seen = set()
    for draft, validator in VALIDATORS.items():
        for path in sorted((Path(folder) / draft).glob("*.json")):
            for number, group in enumerate(json.loads(path.read_text())):
                text = json.dumps(group["schema"])
                bare = json.dumps({**group["schema"], "$schema": ""}) if text[0] == "{" else ""
                if bare and bare not in seen:
                    seen.add(bare)
                    yield f"{draft}/{path.stem}/{number}", group["schema"], validator


def asked(cluster, schema, mode):
    form = dict(type="json_schema", strict=True, json_schema=json.dumps(schema))
    fields = dict(response_format=form, **mode)
    return fields, ask(cluster, fields)


def verdict(said, schema, validator):
    """One of: valid, unfinished, or INVALID and what is wrong."""
    if said.finish == "length":
        return "unfinished"
    try:
        validator(schema).validate(json.loads(said.text()))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"INVALID {said.text()!r}: {str(error).splitlines()[0]}"
    return "valid"


def killed_once(cluster, fields, said, index, counts):
    """What is wrong with the answer whose decode worker dies at this token."""
    try:
        again, died = kill_at(cluster, fields, index)
    except grpc.RpcError as error:
        return [f"killed at {index}: {error.code().name} {error.details()}"]
    counts["killed"] += died
    counts["resumed"] += again.resumes > 0
    problem = problem_of(again, said, index)
    return [problem] if problem else []


def killed_at_each_token(cluster, fields, counts):
    """What is wrong with the answers to this request when the worker dies at each of its tokens;
    None for an answer of one token, amid which it cannot."""
    short = dict(fields, max_tokens=MAX_TOKENS_OF_EACH)
    num_kills, num_resumed, problems = run_case(cluster, short, every=1, first=1)
    counts["killed"] += num_kills
    counts["resumed"] += num_resumed
    print(f"killed at each token: {num_kills} kills, {num_resumed} resumed", *problems, flush=True)
    return problems if num_kills or problems else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each-token", type=int, default=0)
    parser.add_argument("--shard", type=shard_of, default=(1, 1))
    parser.add_argument("--json", help="a file for the numbers")
    options = parser.parse_args()
    shard, num_shards = options.shard
    rng = random.Random(seed_of_tests("1") + shard)
    corpus = list(schemas_of(options.folder))[: options.schemas]
    kills_of_each = options.kills / max(len(corpus), 1)
    corpus = corpus[shard - 1 :: num_shards]
    wanted_at_each = -(-options.each_token // num_shards)
    counts, bad, refusals, began = collections.Counter(), [], {}, time.monotonic()
    due = 0.0
    with Server(*FLAGS) as cluster:
        for name, schema, validator in corpus:
            due += kills_of_each
            for mode in MODES:
                try:
                    fields, said = asked(cluster, schema, mode)
                except grpc.RpcError as error:
                    code, text = error.code().name, error.details()
                    if code != "INVALID_ARGUMENT" or "response_format" not in text:
                        bad.append(f"{name}: {code} {text}")
                    refusals[name] = text
                    counts["refused"] += 1
                    break
                result = verdict(said, schema, validator)
                counts[result.split()[0]] += 1
                if result.startswith("INVALID"):
                    bad.append(f"{name}: {result}")
                if due >= 1 and len(said.tokens) > 1:
                    due -= 1
                    index = rng.randrange(1, len(said.tokens))
                    problems = killed_once(cluster, fields, said, index, counts)
                    bad += [f"{name}: {problem}" for problem in problems]
            else:
                if counts["killed at each token"] < wanted_at_each:
                    problems = killed_at_each_token(cluster, fields, counts)
                    counts["killed at each token"] += problems is not None
                    bad += [f"{name}: {problem}" for problem in problems or []]
        wait_clean(cluster)
    for line in bad:
        print(line)
    seconds = time.monotonic() - began
    numbers = ", ".join(f"{key} {counts[key]}" for key in sorted(counts))
    print(f"{len(corpus)} schemas: {numbers}; {len(bad)} wrong, {seconds:.0f} s")
    if options.json:
        rows = dict(schemas=len(corpus), counts=counts, wrong=bad, refusals=refusals)
        Path(options.json).write_text(json.dumps(rows, indent=1))
    has_kills = options.kills or options.each_token
    if counts["valid"] == 0 or (has_kills and counts["resumed"] == 0):
        print("nothing was shown")
        return 1
    if counts["killed at each token"] < wanted_at_each:
        print(f"only {counts['killed at each token']} schemas were there for --each-token")
        return 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
