"""A decode worker dies at each token of answers that follow a schema or call a tool: the rest of
each answer must be what an undisturbed cluster says.

  kill_guided.py [--cases N] [--every N] [--first N] [--shard K/N] [--json FILE]

--cases: how many of the 20 cases, from the first; --every: kill at each N-th token alone, from
--first. `--cases 1 --every 8` is a short form with about six kills. --shard: every N-th case alone,
from the K-th (1 to N): N runs side by side are the whole, and take less time, since a worker that
dies often starts late. Each case is asked greedily and with a seed. Exits with 1 when an answer
differs, is no JSON of its schema, or was not resumed although its worker died.
"""

import argparse
import json
import os
import signal
import sys
import time

import grpc

from baton_server import Server, generated_stubs, wait_until
from fault_work import live_requests, wait_clean, wait_serving

MAX_TOKENS = 80
LIMIT_S = 300
MODES = (dict(temperature=0), dict(temperature=0.9, top_p=0.95, seed=41))


def an_object(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "maxLength": 12}
WORD = {"type": "string", "pattern": "^[a-z]{2,8}$"}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 99}
FLAG = {"type": "boolean"}


def a_list(items, least=1, most=3):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS = (
    an_object(city=TEXT, degrees=DIGIT),
    an_object(colour={"enum": ["red", "green", "blue"]}, sure=FLAG),
    an_object(names=a_list(WORD)),
    an_object(when={"type": "string", "format": "date"}),
    an_object(size={"anyOf": [{"type": "integer"}, {"type": "null"}]}, unit={"const": "cm"}),
    an_object(inner=an_object(a=DIGIT, b=an_object(c=FLAG))),
    a_list(an_object(x=DIGIT, y=DIGIT), 2, 2),
    {"type": "string", "maxLength": 20},
    {"type": "number", "minimum": -10, "maximum": 10},
    {"enum": ["yes", "no", 1, None]},
    an_object(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    {"$ref": "#/$defs/node", "$defs": {"node": an_object(value=DIGIT, tags=a_list(WORD, 0, 2))}},
)
# Arguments of the function that is called, because some call is demanded or this one.
TOOL_SCHEMAS = (
    an_object(city=TEXT),
    an_object(amount=DIGIT, currency={"enum": ["EUR", "USD"]}),
    an_object(query=TEXT, limit=DIGIT, exact=FLAG),
    an_object(items=a_list(an_object(id=DIGIT, kind=WORD), 1, 2)),
)
TOOL_CASES = tuple((schema, choice) for schema in TOOL_SCHEMAS for choice in ("required", "named"))


def all_cases():
    """(name, fields of the request) of each case."""
    for i, schema in enumerate(SCHEMAS):
        form = dict(type="json_schema", strict=True, json_schema=json.dumps(schema))
        yield f"schema-{i}", dict(response_format=form)
    for i, (schema, choice) in enumerate(TOOL_CASES):
        function = dict(name="act", description="acts", parameters=json.dumps(schema), strict=True)
        named = json.dumps({"type": "function", "function": {"name": "act"}})
        yield (
            f"tool-{i}",
            dict(
                tools=[dict(type="function", function=function)],
                tool_choice=named if choice == "named" else choice,
                parallel_tool_calls=False,
            ),
        )


def interleaved(cases):
    """Schemas and tools in turn, so that the first few cases have both."""
    schemas = [case for case in cases if case[0].startswith("schema")]
    tools = [case for case in cases if case[0].startswith("tool")]
    mixed = [case for pair in zip(schemas, tools) for case in pair]
    return mixed + schemas[len(tools) :]


class Said:
    """The chunks of one answer, without what depends on where it was computed."""

    def __init__(self):
        self.tokens, self.deltas, self.finish, self.resumes = [], [], "", 0

    def add(self, chunk):
        for choice in chunk.choices:
            calls = [
                (c.index, bool(c.id), c.function.name, c.function.arguments)
                for c in choice.delta.tool_calls
            ]
            self.deltas.append((choice.delta.content, calls))
            self.finish = choice.finish_reason or self.finish
        assert chunk.token_index == len(self.tokens), "indices come once and in order"
        self.tokens.append(chunk.token_id)
        self.resumes = max(self.resumes, chunk.timings.resumes)

    def bits(self):
        return self.tokens, self.deltas, self.finish

    def text(self):
        content = "".join(content for content, _ in self.deltas)
        return content + "".join(arguments for _, calls in self.deltas for *_, arguments in calls)


def ask(cluster, fields, on_token=None):
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.ChatServiceStub(cluster.channel)
    request = pb2.ChatCompletionRequest(
        messages=[pb2.ChatMessage(role="user", content="Answer about the weather in Rome.")],
        **{"max_tokens": MAX_TOKENS, **fields},
    )
    said = Said()
    for chunk in stub.StreamChatCompletion(request, timeout=LIMIT_S):
        said.add(chunk)
        if on_token:
            on_token(len(said.tokens))
    return said


def kill_at(cluster, fields, index):
    """The answer, when its decode worker dies as the client has `index` tokens; and whether one
    died: it may have sent the whole answer before."""
    num_processes = len(cluster.topology())
    killed = []

    def on_token(num_tokens):
        if num_tokens != index:
            return
        rows = [row for row in live_requests(cluster) if row["num_tokens"] > 0]
        if not rows:
            return  # the last token is under way
        victim = next(w for w in cluster.workers() if w["worker_id"] == rows[0]["worker"])
        os.kill(victim["pid"], signal.SIGKILL)
        killed.append(victim)

    said = ask(cluster, fields, on_token)
    for victim in killed:
        pid = victim["pid"]
        wait_until(
            lambda: pid not in [p["pid"] for p in cluster.topology()], 10, "its death is seen"
        )
        wait_serving(cluster, num_processes)
    return said, bool(killed)


def problem_of(said, expected, index):
    if said.bits() == expected.bits():
        return None
    pairs = zip(said.tokens, expected.tokens)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), "no")
    return f"killed at {index}: token {first} differs: {said.text()!r}, {expected.text()!r}"


def run_case(cluster, fields, every, first):
    """(number of kills, of resumed answers, problems) of one request."""
    expected = ask(cluster, fields)
    problems = []
    if ask(cluster, fields).bits() != expected.bits():
        problems.append("two undisturbed answers differ")
    if expected.finish != "length":
        json.loads(expected.text())
    num_kills = num_resumed = 0
    for index in range(first, len(expected.tokens), every):
        try:
            said, died = kill_at(cluster, fields, index)
        except grpc.RpcError as error:
            problems.append(f"killed at {index}: {error.code().name} {error.details()}")
            continue
        num_kills += died
        num_resumed += said.resumes > 0
        problem = problem_of(said, expected, index)
        if problem:
            problems.append(problem)
    return num_kills, num_resumed, problems


def shard_of(text):
    """(K, N) of "K/N"."""
    first, _, number = text.partition("/")
    shard = int(first), int(number)
    if not 1 <= shard[0] <= shard[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: K/N with K of 1 to N")
    return shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--shard", type=shard_of, default=(1, 1))
    parser.add_argument("--json", help="a file for the numbers")
    options = parser.parse_args()
    shard, num_shards = options.shard
    cases = interleaved(list(all_cases()))[: options.cases][shard - 1 :: num_shards]
    rows, began = [], time.monotonic()
    with Server("--prefill", "1", "--decode", "2") as cluster:
        for name, fields in cases:
            for mode in MODES:
                kills, resumed, problems = run_case(
                    cluster, {**fields, **mode}, options.every, options.first
                )
                how = "seeded" if "seed" in mode else "greedy"
                rows.append(dict(case=name, mode=how, kills=kills, resumed=resumed))
                print(f"{name:10} {how} kills {kills:3} resumed {resumed:3}", *problems, flush=True)
                rows[-1]["problems"] = problems
        wait_clean(cluster)
    num = {key: sum(row[key] for row in rows) for key in ("kills", "resumed")}
    bad = sum(len(row["problems"]) for row in rows)
    seconds = time.monotonic() - began
    print(f"{len(cases)} cases: {num['kills']} kills, {num['resumed']} resumed, "
          f"{bad} problems, {seconds:.0f} s")  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    if num["kills"] == 0 or num["resumed"] == 0:
        print("no answer was resumed: nothing was shown")
        bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
