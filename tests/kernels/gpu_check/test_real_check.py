"""real_check.py: what it takes for equal, how it goes on, and the whole of it on the runner.

Usage: test_real_check.py BATON, the built program.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import real_check  # noqa: E402
from stage_case import FormCase, long  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "kernels" / "gpu_check" / "real_check.py"
MODELS = ("head64_llama", "head64_qwen3moe")
BATON = ""


def place(**top):
    """A place of an answer: the first of `top` was chosen."""
    token = next(iter(top))
    return [token, top[token], top]


class Compare(unittest.TestCase):
    BOUND = 0.1
    ANSWER = [place(a=-0.1, b=-3.0), place(b=-0.5, c=-0.9), place(c=-0.2, a=-2.0)]

    def compare(self, *got):
        return real_check.compare([self.ANSWER], [list(got)], self.BOUND)

    def test_equal_answers_have_no_error(self):
        problem, counts = self.compare(*self.ANSWER)
        self.assertEqual(problem, "")
        self.assertEqual((counts["compared"], counts["tokens"], counts["diverged"]), (3, 3, 0))
        self.assertEqual(counts["max_error"], 0)

    def test_log_probabilities_within_the_bound_pass_and_beyond_it_do_not(self):
        problem, counts = self.compare(place(a=-0.19, b=-3.0), *self.ANSWER[1:])
        self.assertEqual(problem, "")
        self.assertAlmostEqual(counts["max_error"], 0.09)
        problem, _ = self.compare(place(a=-0.1, b=-3.2), *self.ANSWER[1:])
        self.assertIn("text 0, token 0: off by 0.2 nats", problem)

    def test_another_token_passes_only_where_the_margin_is_within_twice_the_bound(self):
        self.ANSWER[1] = place(b=-0.5, c=-0.65)
        self.addCleanup(self.ANSWER.__setitem__, 1, place(b=-0.5, c=-0.9))
        other = place(c=-0.56, b=-0.58)
        problem, counts = self.compare(self.ANSWER[0], other, place(z=-9.0))
        self.assertEqual(problem, "")
        # The places after it are of another text.
        self.assertEqual((counts["compared"], counts["diverged"]), (2, 1))
        self.assertAlmostEqual(counts["margins"][0], 0.15)

    def test_a_token_that_the_processor_would_not_choose_fails(self):
        for other in (place(c=-0.9, b=-0.95), place(z=-0.5, b=-0.55)):
            problem, _ = self.compare(self.ANSWER[0], other, self.ANSWER[2])
            self.assertRegex(problem, "token 1: ")

    def test_a_short_answer_fails_and_so_do_answers_without_tokens(self):
        self.assertIn("2 tokens, expected 3", self.compare(*self.ANSWER[:2])[0])
        problem, _ = real_check.compare([[]], [[]], self.BOUND)
        self.assertEqual(problem, "nothing could be compared")


class Folder(FormCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.json = self.folder / "real.json"
        self.models = self.folder / "models"
        self.models.mkdir()

    def checks(self):
        return json.loads(self.json.read_text())["checks"]


class GoesOn(Folder):
    """The order, the clock and the file, with steps that are played."""

    def setUp(self):
        super().setUp()
        self.program = self.folder / "baton"
        self.program.write_text("one")
        self.file = self.models / "m.gguf"
        self.file.write_text("weights")
        self.ran = []
        self.broken = set()
        self.ends_badly = set()

    def play(self, args):
        args.results.know_file(self.file)
        for name in ("m.gguf cpu", "m.gguf cuda", "m.gguf cuda fp8 KV"):
            yield name, self.run_step

    def run_step(self, name):
        self.ran.append(name)
        if name in self.broken:
            raise RuntimeError("it broke")
        self.args.results.keep(name, [[]])
        self.args.add(name, "pass", "played")
        if name in self.ends_badly:
            self.args.add(f"{name}, its end", "FAIL", "exit status 1")

    def call(self, seconds=0.0):
        self.args = argparse.Namespace(
            json=self.json, device="cuda", baton=self.program, num_texts=1, max_tokens=1
        )
        self.args.bound, self.args.seconds, self.args.text_chars = 0.5, seconds, 400
        self.args.results = real_check.Results(self.args)
        self.args.add = self.args.results.add
        steps, real_check.steps = real_check.steps, self.play
        self.ran = []
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return real_check.check(self.args)
        finally:
            real_check.steps = steps

    def test_what_has_passed_is_not_run_again_and_what_failed_is(self):
        self.broken = {"m.gguf cuda"}
        self.assertEqual(self.call(), 1)
        self.assertEqual(len(self.ran), 3, "a step that breaks ends no other")
        self.assertIn("it broke", self.checks()["m.gguf cuda"]["detail"])
        self.broken, self.ends_badly = set(), {"m.gguf cuda"}
        self.assertEqual(self.call(), 1, "its processes are a part of a step")
        self.ends_badly = set()
        self.assertEqual(self.call(), 0)
        self.assertEqual(self.ran, ["m.gguf cuda"])
        self.assertEqual({check["verdict"] for check in self.checks().values()}, {"pass"})
        self.assertEqual(self.call(), 0)
        self.assertEqual(self.ran, [])

    def test_no_step_begins_when_the_time_is_over(self):
        self.assertEqual(self.call(seconds=1e-9), real_check.LEFT_OVER)
        self.assertEqual(self.ran, [])

    def test_another_program_or_file_begins_anew(self):
        self.call()
        self.program.write_text("another")
        self.call()
        self.assertEqual(len(self.ran), 3)
        self.file.write_text("other weights")
        self.call()
        self.assertEqual(len(self.ran), 3)
        self.call()
        self.assertEqual(self.ran, [])


class OnTheRunner(Folder):
    def check(self, *arguments):
        command = [sys.executable, "-B", str(SCRIPT), "--baton", BATON, "--device", "simt"]
        command += ["--models", str(self.models), "--json", str(self.json), "--num-texts", "2"]
        done = subprocess.run(
            [*command, "--max-tokens", "4", *arguments],
            capture_output=True,
            text=True,
            timeout=280,
            env=dict(os.environ),
        )
        return done

    @long
    def test_every_step_passes_with_small_models(self):
        for name in MODELS:
            shutil.copy(ROOT / "tests" / "golden" / f"tiny_{name}.gguf", self.models)
        # Random weights: errors grow more than those of a model that was trained.
        done = self.check("--bound", "3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        checks = self.checks()
        self.assertEqual({check["verdict"] for check in checks.values()}, {"pass"})
        for name in MODELS:
            device = f"tiny_{name}.gguf simt"
            ends = ("", " cuda_ipc", " colocate", " killed", " fp8 KV", " bf16 weights")
            ends += tuple(f" as {kind}" for kind in real_check.CONVERTED)
            self.assertLessEqual({device + end for end in ends}, set(checks))
            self.assertGreater(checks[device]["compared"], 4)
            self.assertGreater(checks[device]["max_error"], 0, "it is another arithmetic")
            self.assertGreater(checks[f"{device} killed"]["resumed"], 0)

    def test_a_bound_that_is_too_small_fails(self):
        shutil.copy(ROOT / "tests" / "golden" / f"tiny_{MODELS[0]}.gguf", self.models)
        done = self.check("--bound", "1e-9", "--seconds", "1e-9")
        self.assertEqual(done.returncode, real_check.LEFT_OVER, done.stdout)
        done = self.check("--bound", "1e-9")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nats", self.checks()[f"tiny_{MODELS[0]}.gguf simt"]["detail"])

    def test_a_folder_without_models_is_an_error(self):
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no *.gguf", done.stderr)


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main()
