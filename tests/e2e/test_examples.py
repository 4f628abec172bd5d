"""The examples that need no more than the packages of these tests; tests/clients has the others."""

import json
import re
import subprocess
import sys

import pytest

from baton_server import ROOT, generated_stubs


def run_example(*command):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_python(server, name, *args):
    return run_example(sys.executable, name, "--url", server.http, *args)


def test_chat_streams_and_tells_where_it_was_computed(server):
    text = run_python(server, "chat_openai.py", "Why", "is", "the", "sky", "blue?")
    assert "light" in text.lower()
    assert re.search(r"^\d+ tokens, \{'path': 'disagg'", text, re.M), text


def test_grpc_prints_each_token_once_and_its_time(server):
    generated_stubs()
    text = run_example(sys.executable, "chat_grpc.py", "--address", server.grpc)
    rows = re.findall(r"^ *(\d+) +(first|[\d.]+ ms) '", text, re.M)
    assert [int(index) for index, _ in rows[:3]] == [0, 1, 2] and rows[0][1] == "first"
    assert 'path: "disagg"' in text


def test_a_tool_is_called_and_its_result_is_answered(server):
    text = run_python(server, "tools_openai.py", "Rome")
    call = re.search(r"^call: population\((.*)\) -> (.*)$", text, re.M)
    city = json.loads(call[1])["city"]
    assert city in ("Oslo", "Paris", "Rome") and json.loads(call[2])["city"] == city
    assert re.search(r"^answer: \S", text, re.M), text


def test_an_answer_has_the_type(server):
    text = run_python(server, "schema_openai.py")
    assert re.fullmatch(r"mood: (good|bad|mixed), stars: [1-5], topics: [a-z, ]+\n", text), text


@pytest.mark.parametrize(
    "question, source",
    [
        ("How do I give tenants keys and limits?", "API.md: API keys and tenants"),
        ("Which form may an answer have, regex, choice or grammar?", "API.md: Forms of answers"),
    ],
)
def test_the_sections_that_speak_of_a_question_are_found(server, question, source):
    text = run_python(server, "rag.py", question)
    assert f"source: {source}\n" in text
    assert re.search(r"^answer: \S", text, re.M), text


def test_curl_sees_whole_answers_streams_and_forms(server):
    text = run_example("bash", "chat_curl.sh", server.http)
    models, whole, stream, form = re.split(r"^== .*\n", text, flags=re.M)[1:]
    assert json.loads(models)["data"][0]["id"] == "smollm2:135m"
    assert json.loads(whole)["timings"]["path"] == "disagg"
    assert stream.strip().endswith("data: [DONE]")
    assert re.fullmatch(r"1999-\d\d-\d\d", json.loads(form)["choices"][0]["text"])
