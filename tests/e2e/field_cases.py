"""Values that no field should get, and what each field of each surface has to say to them.

The fields are those of the server's /openapi.json, so a new field is asked without a line here. A
value of a wrong type or out of range is a 400 that names the field. A text that is no JSON at all
is refused before any field is read, by a code of its own.
"""

import json
import math

import guard_cases

GOOD = {
    **guard_cases.GOOD,
    "/v1/embeddings": {"input": "Hi"},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
}
# Values of one field as they stand in a body.
VALUES = {
    "1e309": b"1e309",
    "-1e309": b"-1e309",
    "-1": b"-1",
    "2^63": b"9223372036854775808",
    "2^64": b"18446744073709551616",
    "-2^63-1": b"-9223372036854775809",
    "a fraction": b"0.5",
    "400 digits": b"9" * 400,
    "null": b"null",
    "true": b"true",
    "a text": b'"nonsense"',
    "no text": b'""',
    "a NUL": b'"a\\u0000b"',
    "an array": b"[]",
    "an array of null": b"[null]",
    "an array of arrays": b"[[]]",
    "an object": b'{"zz":1}',
    "an object of 1e309": b'{"zz":1e309}',
    "20 levels": b"[" * 20 + b"]" * 20,
    "a text of 1 MiB": b'"' + b"x" * (1 << 20) + b'"',
    "66,000 entries": b"[" + b"0," * 65999 + b"0]",
}
# Texts that are no JSON, or not one that all readers understand alike: the code of each.
BROKEN = {
    "NaN": (b"NaN", "invalid_json"),
    "Infinity": (b"Infinity", "invalid_json"),
    "-Infinity": (b"-Infinity", "invalid_json"),
    "+1": (b"+1", "invalid_json"),
    "01": (b"01", "invalid_json"),
    "half a pair": (b'"\\ud800"', "invalid_json"),
    "an open text": (b'"', "invalid_json"),
    "no UTF-8": (b'"\xff"', "invalid_utf8"),
    "40 levels": (b"[" * 40 + b"]" * 40, "too_deep"),
    "a key twice within": (b'{"a":1,"a":2}', "duplicate_key"),
}
TWICE = "the field twice"
# Members of fields that are objects, by path: their own rules stand within the surface's reader.
FLAG = {"type": "boolean"}
TEXT = {"type": "string"}
OPTIONS = {
    **{
        f"options.{name}": name
        for name in (
            *("temperature", "top_p", "min_p", "stop", "presence_penalty", "frequency_penalty"),
            *("top_k", "seed"),
        )
    },
    "options.repeat_penalty": "repetition_penalty",
    "options.num_predict": {"type": "integer", "minimum": -2, "maximum": 2**31 - 1},
    "options.num_ctx": {"type": ["number", "boolean"]},  # nothing is loaded: any number
}
MEMBERS = {
    **dict.fromkeys(
        ("/v1/chat/completions", "/v1/completions"),
        {"stream_options.include_usage": FLAG, "stream_options.continuous_usage_stats": FLAG},
    ),
    **dict.fromkeys(
        ("/v1/responses", "/v1/responses/input_tokens"),
        {"text.format": {"type": "object"}, "reasoning.effort": TEXT, "reasoning.summary": TEXT},
    ),
    **dict.fromkeys(("/api/chat", "/api/generate"), OPTIONS),
}
# Values that a field takes although its description has another type (src/api/API.md).
TAKEN = {("/v1/completions", "logprobs", "true"): "1, as peers take it"}
# Fields that the good body needs beside a field that needs it.
BESIDE = {"stream_options": {"stream": True}}
# /tokenize has three forms; each has fields of its own.
FORMS = {
    "prompt": ("prompt", "add_special_tokens", "return_token_strs"),
    "messages": (
        *("messages", "documents", "reasoning_effort", "chat_template_kwargs", "tools"),
        *("add_generation_prompt", "continue_final_message"),
    ),
}


def good_body(path, outer):
    """The body that the path answers with 200 and in which it reads the field."""
    if path != "/tokenize":
        return {**GOOD[path], **BESIDE.get(outer, {})}
    form = next((form for form, fields in FORMS.items() if outer in fields), "content")
    return {form: guard_cases.ASK if form == "messages" else "Hi"}


def body_with(path, field, values):
    """The good body of the path as bytes, with each of `values` for the field or for its member."""
    outer, _, member = field.partition(".")
    body = good_body(path, outer)
    inner = dict(body.pop(outer, {})) if member else body
    if not member:
        inner.pop(outer, None)
    parts = [b'"%s":%s' % ((member or outer).encode(), value) for value in values]
    inner.pop(member, None)
    parts += [b'"%s":%s' % (k.encode(), json.dumps(v).encode()) for k, v in inner.items()]
    text = b"{" + b",".join(parts) + b"}"
    if not member:
        return text
    rest = json.dumps({**body, "last": None}).encode()
    return b'{"%s":%s,%s' % (outer.encode(), text, rest[1:])


def value_of(text):
    """The JSON value; an integer beyond a double is infinity, as it is to the server."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 99 else math.inf)


def is_of_type(value, name):
    if name in ("integer", "number"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (name == "number" or float(value).is_integer())
    kinds = {"boolean": bool, "string": str, "array": list, "object": dict}
    return isinstance(value, kinds[name])


def is_described(schema, value):
    """Whether the description allows the value; it may be looser than the server, not stricter."""
    types = schema.get("type")
    if types is None:
        return True
    if not any(is_of_type(value, t) for t in ([types] if isinstance(types, str) else types)):
        return False
    if isinstance(value, list):
        items = schema.get("items")
        fits = items is None or all(is_described(items, item) for item in value)
        return fits and len(value) <= schema.get("maxItems", len(value))
    if isinstance(value, dict):
        rest = schema.get("additionalProperties")
        return rest is None or all(is_described(rest, item) for item in value.values())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    above = schema.get("exclusiveMinimum")
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and abs(value) != float("inf")
        and (above is None or value > above)
    )


def fields_of(document, path):
    """{field: its schema} of the path's body, members of objects with a dot."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    schemas = document["components"]["schemas"]
    fields = dict(schemas[name]["properties"])
    chat = schemas["ChatCompletionRequest"]["properties"]
    for member, schema in MEMBERS.get(path, {}).items():
        fields[member] = chat[schema] if isinstance(schema, str) else schema
    return fields


def cases(document, path):
    """(field, what, body, expectation) for each field and value of the path.

    The expectation is a code of a body that is not read, "named": a 400 that names the field,
    "absent": the answer without the field, or "any": served, or refused by the field's name.
    """
    for field, schema in fields_of(document, path).items():
        for what, (text, code) in BROKEN.items():
            yield field, what, body_with(path, field, [text]), code
        yield field, TWICE, body_with(path, field, [b"1", b"1"]), "duplicate_key"
        for what, text in VALUES.items():
            body = body_with(path, field, [text])
            if what == "null":
                yield field, what, body, "absent"
                continue
            takes = is_described(schema, value_of(text)) or (path, field, what) in TAKEN
            if field == "seed" and what == "2^63":
                takes = True  # any 64 bits
            yield field, what, body, "any" if takes else "named"
