"""Requests that each surface refuses: made from our own limits, and harmless elsewhere."""

import json

ASK = [{"role": "user", "content": "Say hi."}]
MODEL = {"model": "default"}
# A body that each path answers with 200.
GOOD = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/messages": {**MODEL, "messages": ASK, "max_tokens": 1},
    "/v1/messages/count_tokens": {**MODEL, "messages": ASK},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/api/chat": {"messages": ASK, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "Hi", "stream": False, "options": {"num_predict": 1}},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": ASK},
}
CHATS = ("/v1/chat/completions", "/v1/messages", "/api/chat", "/apply-template")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DEEP = "[" * 33 + "]" * 33
ENUM = {"enum": [str(i) for i in range(10001)]}


def of_every_path():
    """(path, what, body, headers, status): bodies that no path takes."""
    for path, good in GOOD.items():
        text = json.dumps(good)
        yield path, "no JSON", text + "x", {}, 400
        yield path, "not an object", "[]", {}, 400
        yield path, "a key twice", text[:-1] + ',"x":1,"x":2}', {}, 400
        yield path, "33 levels", text[:-1] + f',"x":{DEEP}}}', {}, 400
        yield path, "no UTF-8", text[:-1].encode() + b',"x":"\xff"}', {}, 400
        yield path, "no JSON type", text, {"Content-Type": "text/plain"}, 415
        yield path, "compressed", text, {"Content-Encoding": "gzip"}, 415


def of_fields():
    """(path, what, changes of the good body, what the message names)."""
    chat, completion, messages, responses, ollama, generate = list(GOOD)[:3] + [
        "/v1/responses",
        "/api/chat",
        "/api/generate",
    ]
    for path in CHATS:
        yield path, "image", {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0]"
        yield path, "no role", {"messages": [{"content": "a"}]}, "messages[0]"
        yield path, "null", {"messages": [None]}, "messages[0]"
    yield responses, "image", {"input": [{"role": "user", "content": [IMAGE]}]}, "input[0]"
    yield generate, "image", {"images": ["AAAA"]}, "images"
    yield chat, "4097 messages", {"messages": ASK * 4097}, "messages"
    yield chat, "n 129", {"n": 129}, "n"
    yield chat, "n of 64 bits", {"n": 2**63}, "n"
    yield chat, "other surface", {"instructions": "x"}, "instructions"
    yield completion, "other surface", {"options": {"a": 1}}, "options"
    yield messages, "other surface", {"format": "json"}, "format"
    yield responses, "other surface", {"messages": ASK}, "messages"
    yield completion, "1025 prompts", {"prompt": ["a"] * 1025}, "prompt"
    yield completion, "id of no token", {"prompt": [2**31 - 1]}, "prompt"
    yield completion, "no prompt", {"prompt": None}, "prompt"
    yield messages, "no max_tokens", {"max_tokens": None}, "max_tokens"
    yield messages, "result without a call", {
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        ]
    }, "messages[0]"
    yield responses, "result without a call", {
        "input": [{"type": "function_call_output", "call_id": "a", "output": "1"}]
    }, "input[0]"
    yield chat, "equal tools", {"tools": [TOOL, TOOL]}, "tools[1]"
    yield chat, "1025 tools", {"tools": [TOOL] * 1025}, "tools"
    yield chat, "arguments", {
        "messages": ASK
        + [
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "no"}}
                ],
            }
        ]
    }, "arguments"
    for path, field, body in (
        (chat, "guided_json", {"guided_json": ENUM}),
        (chat, "response_format", {"response_format": json_schema({"$ref": "#"})}),
        (responses, "text.format", {"text": {"format": {**named(ENUM), "type": "json_schema"}}}),
        (ollama, "format", {"format": {"$ref": "file:x"}}),
        (chat, "structured_outputs", {"structured_outputs": {"regex": "("}}),
        (chat, "structured_outputs", {"structured_outputs": {"grammar": "start: start"}}),
        (chat, "structured_outputs", {"structured_outputs": {"regex": "a" * (2**20 + 1)}}),
    ):
        yield path, "form", body, field


def named(schema):
    return {"name": "s", "schema": schema}


def json_schema(schema):
    return {"type": "json_schema", "json_schema": named(schema)}
