"""The examples that need packages or tools of their own; tests/e2e has the others."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples"


def run_example(*command, cwd=EXAMPLES, env=None):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.client("langchain", "langchain-openai")
def test_an_agent_uses_each_tool_once_and_answers(server):
    text = run_example(sys.executable, "agent_langchain.py", "--url", server.http)
    calls = re.findall(r"^call: (\w+)\((.*)\)$", text, re.M)
    results = re.findall(r"^result: (\w+) -> (\d+)$", text, re.M)
    assert [name for name, _ in calls] == [name for name, _ in results]
    assert sorted(name for name, _ in calls) == ["area_km2", "population"]
    assert re.search(r"^answer: \S", text, re.M), text


@pytest.mark.client("npm:ai", "npm:@ai-sdk/openai-compatible")
def test_node_streams_types_and_calls(server, node):
    text = node(EXAMPLES / "node" / "chat.mjs", server.http)
    assert re.search(r"^stream: \S", text, re.M) and re.search(r"^tokens: [1-9]", text, re.M)
    typed = json.loads(re.search(r"^object: (.*)$", text, re.M)[1])
    assert typed["colour"] in ("blue", "grey", "red") and 0 <= typed["clouds"] <= 9
    result = json.loads(re.search(r"^call: population -> (.*)$", text, re.M)[1])
    assert result["people"] > 0
    assert re.search(r"^answer: \S", text, re.M), text


@pytest.mark.client("go net/http")
def test_go_streams_and_tells_a_refusal(server, tmp_path):
    if not shutil.which("go"):
        pytest.skip("go is missing")
    run_example("go", "build", "-o", tmp_path / "chat", ".", cwd=EXAMPLES / "go",
                env={"GOFLAGS": "-mod=mod"})  # fmt: skip
    text = run_example(tmp_path / "chat", "-url", server.http, "Why is the sky blue?")
    *answer, timings = text.strip().splitlines()
    assert "light" in " ".join(answer).lower()
    assert json.loads(timings)["path"] == "disagg"
    done = subprocess.run(
        [tmp_path / "chat", "-url", server.http + "/none"], capture_output=True, check=False
    )
    assert done.returncode == 1 and b"404" in done.stderr


def choice_log_probability(server, context, choice):
    """Sum of the log-probabilities of the choice's tokens, asked for by hand."""
    texts = (context, context + choice)
    context_ids, ids = (server.post("/tokenize", {"content": t})[2]["tokens"] for t in texts)
    assert ids[: len(context_ids)] == context_ids
    status, _, answer = server.post(
        "/v1/completions",
        {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0},
    )
    assert status == 200, answer
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][len(context_ids) :])


@pytest.mark.client("lm-eval")
def test_an_evaluation_has_the_scores_of_the_prompts_at_any_batch_size(server, tmp_path):
    folder = EXAMPLES / "evaluate"
    rows = [json.loads(line) for line in (folder / "capitals.jsonl").read_text().splitlines()]
    right = 0
    for row in rows:
        context = f"The capital of {row['country']} is the city of"
        scores = [choice_log_probability(server, context, " " + c) for c in row["capitals"]]
        right += scores.index(max(scores)) == row["answer"]
    assert right > len(rows) / 2, "the model knows more than chance"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for batch_size in ("1", "8"):
        out = tmp_path / batch_size
        run_example("bash", folder / "run.sh", server.http, "--batch_size", batch_size,
                    "--output_path", out, env={"PATH": path, "HF_HOME": str(tmp_path)})  # fmt: skip
        (report,) = out.rglob("results_*.json")
        score = json.loads(report.read_text())["results"]["capitals"]["acc,none"]
        assert score == pytest.approx(right / len(rows))
