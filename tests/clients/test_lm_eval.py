"""lm-eval: scores and choices of two small tasks by a float64 reference, at batch sizes 1 and 8.

The reference shares no code with Baton: PyPI's `gguf` and `tokenizers` read the model file, numpy
computes (tests/golden/make_golden.py).
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, model_path

sys.path.insert(0, str(ROOT / "tests" / "golden"))

import make_golden  # noqa: E402
from baton_server import Server  # noqa: E402

pytestmark = pytest.mark.client("lm-eval")

# As ARC asks: a question, four answers.
ARC = [
    ("Which gas do plants take from the air?", "carbon dioxide", "helium", "neon", "methane"),
    ("What is the closest star to the Earth?", "the Sun", "Sirius", "Vega", "Polaris"),
    ("Which of these is a mammal?", "a whale", "a shark", "a frog", "a lizard"),
    ("What does a thermometer measure?", "temperature", "weight", "length", "speed"),
    ("Which organ pumps blood through the body?", "the heart", "the liver", "the lung", "the skin"),
    ("At what temperature does water freeze?", "0 degrees", "50 degrees", "80 degrees", "9 metres"),
    ("Which material is attracted by a magnet?", "iron", "wood", "glass", "paper"),
    ("What makes the tides of the sea?", "the Moon", "the wind", "whales", "volcanoes"),
]
# As HellaSwag asks: a beginning, four endings.
HELLASWAG = [
    ("A man pours milk into a bowl of cereal. He", "eats it with a spoon.",
     "paints the wall with it.", "drives it to the airport.", "reads it to him."),
    ("She puts the letter into an envelope and", "writes the address on it.", "boils it an hour.",
     "plants it in the garden.", "teaches it to swim."),
    ("The dog sees the ball fly across the field. It", "runs after the ball.",
     "buys a new house.", "plays the violin.", "calls the police."),
    ("It begins to rain, so the children", "run into the house.", "swim across the desert.",
     "fry the umbrella.", "sell the clouds."),
    ("He turns the key, and the engine of the car", "starts with a roar.", "sings a lullaby.",
     "becomes a salad.", "writes a novel."),
    ("The baker takes the bread out of the oven and", "lets it cool on a rack.",
     "sends it to school.", "asks it for a loan.", "throws it at the moon."),
    ("Before the concert the violinist", "tunes her violin.", "eats her violin.",
     "waters her violin.", "votes for her violin."),
    ("The lamp is broken, so she", "changes the bulb.", "feeds the lamp fish.",
     "marries the lamp.", "swims through the lamp."),
]  # fmt: skip
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {name}.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
metadata:
  version: 1
"""


def rows_of(task, examples):
    """The right choice stands at another place in each row."""
    for number, (context, *choices) in enumerate(examples):
        turn = number % len(choices)
        choices = choices[-turn:] + choices[:-turn]
        if task == "arc_like":
            context = f"Question: {context}\nAnswer:"
        yield dict(context=context, choices=choices, answer=turn)


TASKS = {
    "arc_like": list(rows_of("arc_like", ARC)),
    "hellaswag_like": list(rows_of("hellaswag_like", HELLASWAG)),
}


@pytest.fixture(scope="module", name="reference")
def fixture_reference():
    """{(context, choice): (log-probability, number of tokens, root mean square of the logits)}."""
    weights = make_golden.Weights(str(model_path()))
    encode = make_golden.tokenizer_of(weights)
    pairs = [
        (row["context"], choice)
        for rows in TASKS.values()
        for row in rows
        for choice in row["choices"]
    ]
    sequences = [encode(f"{context} {choice}") for context, choice in pairs]
    firsts = [len(encode(context)) for context, _ in pairs]
    for (context, _), ids, first in zip(pairs, sequences, firsts, strict=True):
        assert ids[:first] == encode(context)
    hidden = make_golden.hidden_states(weights, sequences)
    rows = [states[first - 1 : -1] for states, first in zip(hidden, firsts, strict=True)]
    # All at once: the output weights are dequantised by each call.
    logits = make_golden.logits_of(weights, np.concatenate(rows))
    top = logits.max(axis=-1)
    totals = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
    squares, at, scores = (logits**2).mean(axis=-1), 0, {}
    for pair, ids, first in zip(pairs, sequences, firsts, strict=True):
        part = slice(at, at + len(ids) - first)
        at = part.stop
        targets = logits[np.arange(part.start, at), ids[first:]]
        rms = math.sqrt(squares[part].mean())
        scores[pair] = (float((targets - totals[part]).sum()), len(targets), rms)
    return scores


def logit_error(kv_dtype):
    """Standard deviation of a logit's error in units of the row's root mean square, as
    tests/model/rounding_bound.h derives it: 30 layers, 16-bit activations, K and V in bf16."""
    products = 2.3 / 32767 / math.sqrt(12) * math.sqrt(4 * 30 + 1)
    kv = math.sqrt(0.375 / math.log(2) / 3) / 256 * math.sqrt(30)
    return math.hypot(products, kv) if kv_dtype == "bf16" else products


def bound_of(entry, kv_dtype):
    """Six standard deviations of the sum over the tokens of a logit less the log of the sum of all,
    whose errors are taken for independent."""
    _, num_tokens, rms = entry
    return 6 * logit_error(kv_dtype) * rms * math.sqrt(2 * num_tokens)


def evaluate(url, batch_size, folder):
    """{task: its samples in order} of one run of lm_eval."""
    folder.mkdir()
    for name, rows in TASKS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name))
    command = [Path(sys.executable).parent / "lm_eval", "run", "--model", "local-completions"]
    command += ["--tasks", *TASKS, "--include_path", ".", "--batch_size", str(batch_size)]
    command += ["--log_samples", "--output_path", "out", "--model_args"]
    command += [f"model=default,base_url={url}/v1/completions,tokenizer_backend=remote"]
    env = dict(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(folder))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    samples = {}
    for name in TASKS:
        (file,) = folder.glob(f"out/**/samples_{name}_*.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        samples[name] = sorted(lines, key=lambda line: line["doc_id"])
    return samples


def scores_of(sample):
    return [float(score) for score, _ in sample["filtered_resps"]]


def check(samples, reference, kv_dtype):
    """Scores within the bound; the choice of the reference wherever its margin exceeds it."""
    worst, decided, right, num = 0.0, 0, 0, 0
    for name, rows in TASKS.items():
        for row, sample in zip(rows, samples[name], strict=True):
            entries = [reference[row["context"], choice] for choice in row["choices"]]
            expected, scores = [entry[0] for entry in entries], scores_of(sample)
            for entry, score in zip(entries, scores, strict=True):
                worst = max(worst, abs(score - entry[0]) / bound_of(entry, kv_dtype))
            bounds = sorted(bound_of(entry, kv_dtype) for entry in entries)
            second, first = sorted(expected)[-2:]
            chosen = scores.index(max(scores))
            num += 1
            right += chosen == row["answer"]
            if first - second > bounds[-1] + bounds[-2]:
                decided += 1
                assert chosen == expected.index(first), (row, scores, expected)
                assert sample["acc"] == (chosen == row["answer"])
    print(f"{kv_dtype}: {decided} of {num} decided, {right} right, worst {worst:.3f} of the bound")
    assert worst <= 1, "a score is further from the reference than roundings take it"
    assert decided >= num * (0.9 if kv_dtype == "f32" else 0.5)


def all_scores(samples):
    return {name: [scores_of(sample) for sample in rows] for name, rows in samples.items()}


def test_choices_are_those_of_a_float64_reference_at_any_batch_size(server, reference, tmp_path):
    one = evaluate(server.http, 1, tmp_path / "1")
    eight = evaluate(server.http, 8, tmp_path / "8")
    assert all_scores(one) == all_scores(eight)
    check(one, reference, "bf16")


@pytest.mark.undisturbed
def test_scores_with_keys_and_values_in_fp32_are_the_reference_s(reference, tmp_path):
    with Server("--kv-dtype", "f32") as exact:
        check(evaluate(exact.http, 8, tmp_path / "f32"), reference, "f32")
