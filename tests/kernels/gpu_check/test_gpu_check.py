"""scripts/gpu_check.sh itself: what it makes of stages that pass, fail, hang or cannot run.

Usage: test_gpu_check.py PROGRAM, the built baton_gpu_check.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"
PROGRAM = ""
HAS_GPU = Path("/dev/nvidiactl").exists()

# Does in stage N what the N-th word of $BEHAVIOUR says.
FAKE = """#!/usr/bin/env bash
words=($BEHAVIOUR)
echo '{"stage": '"$2"'}' >"$4"
case "${words[$2]}" in
  pass) exit 0 ;;
  fail) exit 1 ;;
  none) exit 77 ;;
  crash) kill -SEGV $$ ;;
  hang) sleep 60 ;;
  deaf) trap '' TERM; while true; do sleep 1; done ;;
esac
"""


class GpuCheckScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.fake = self.folder / "fake"
        self.fake.write_text(FAKE)
        self.fake.chmod(self.fake.stat().st_mode | stat.S_IXUSR)

    def run_script(self, *arguments, behaviour=""):
        environment = dict(os.environ, BEHAVIOUR=behaviour)
        command = [str(SCRIPT), "--out", str(self.folder / "out"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    def run_fake(self, behaviour, *arguments):
        return self.run_script("--program", str(self.fake), *arguments, behaviour=behaviour)

    def results(self):
        files = sorted((self.folder / "out").glob("*.json"))
        return {file.stem: json.loads(file.read_text()) for file in files}

    def test_all_stages_pass(self):
        done = self.run_fake("pass pass pass")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(self.results()), 3)

    def test_a_failing_stage_fails_the_call_and_the_later_ones_still_run(self):
        for behaviour in ("fail", "crash"):
            done = self.run_fake(f"pass {behaviour} pass")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, r"1 primitives +FAIL")
            self.assertRegex(done.stdout, r"2 kernels +pass")

    def test_a_stage_over_its_limit_is_stopped_and_its_results_stay(self):
        for behaviour in ("hang", "deaf"):
            begin = time.monotonic()
            done = self.run_fake(f"pass {behaviour} pass", "--limit", "1")
            self.assertLess(time.monotonic() - begin, 40)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, r"1 primitives +FAIL .*stopped after 1 s")
            self.assertRegex(done.stdout, r"2 kernels +pass")
            self.assertEqual(len(self.results()), 3)

    def test_the_whole_call_has_a_limit(self):
        done = self.run_fake("hang pass pass", "--total", "1")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"2 kernels +not run .*1 s are over")

    def test_what_cannot_run_is_not_a_pass(self):
        done = self.run_fake("none none none")
        self.assertEqual(done.returncode, 77)
        self.assertNotIn("pass ", done.stdout)
        self.assertEqual(self.run_fake("pass none none").returncode, 0)
        self.assertEqual(self.run_fake("none fail none").returncode, 1)

    def test_wrong_arguments_are_named(self):
        for arguments in (["--stages", "7"], ["--limit", "x"], ["--out"], ["--what"]):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage", done.stderr)

    @unittest.skipIf(HAS_GPU, "there is a driver here")
    def test_without_a_gpu_every_stage_says_that_it_did_not_run(self):
        done = self.run_script("--program", PROGRAM)
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        for result in self.results().values():
            self.assertEqual({check["verdict"] for check in result["checks"]}, {"not run"})
        self.assertEqual(len(self.results()), 3)

    def run_stage_0_with_the_fake_driver(self, **environment):
        folder = Path(PROGRAM).resolve().parent / "fake_driver"
        if not (folder / "libcuda.so.1").exists():
            self.skipTest("only a build with CUDA asks a driver")
        command = [PROGRAM, "--stage", "0", "--json", self.folder / "j"]
        environment = dict(os.environ, LD_LIBRARY_PATH=str(folder), **environment)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        checks = json.loads((self.folder / "j").read_text())["checks"]
        return done.returncode, {check["name"]: check for check in checks}

    def test_stage_0_says_what_a_driver_answers(self):
        code, checks = self.run_stage_0_with_the_fake_driver()
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["driver"]["detail"], "CUDA 13000, 1 x Fake, 144384 MiB")
        self.assertEqual(checks["attributes"]["capability_major"], 9)
        self.assertEqual(checks["attributes"]["mps"], "error 1")
        for name in ("VMM export as fd", "IPC handle"):
            self.assertEqual(checks[name]["verdict"], "pass")
        self.assertEqual(checks["green contexts"]["verdict"], "not run")

    def test_what_a_driver_refuses_is_not_run(self):
        code, checks = self.run_stage_0_with_the_fake_driver(FAKE_DRIVER_LACKS="memory")
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["VMM export as fd"]["verdict"], "not run")
        self.assertEqual(checks["VMM export as fd"]["detail"], "CUDA_ERROR_NOT_SUPPORTED")

    def test_the_program_starts_without_libraries_of_a_gpu(self):
        command = ["readelf", "-d", PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        needed = [line for line in done.stdout.splitlines() if "NEEDED" in line]
        self.assertTrue(needed)
        for library in ("libcuda", "libcudart", "libnccl", "libcublas"):
            self.assertNotIn(library, "".join(needed))

    def test_other_bits_of_the_tensor_cores_fail(self):
        command = [PROGRAM, "--stage", "1", "--simt", "--float-mma", "--json", self.folder / "j"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        checks = json.loads((self.folder / "j").read_text())["checks"]
        failed = {check["name"] for check in checks if check["verdict"] == "FAIL"}
        self.assertTrue(failed and all(name.startswith("mma ") for name in failed), failed)
        self.assertIn("expected", next(check for check in checks if check["wrong"])["wrong"][0])

    def test_the_files_hold_the_vectors(self):
        command = [PROGRAM, "--stage", "1", "--simt", "--json", self.folder / "j"]
        subprocess.run(command, capture_output=True, check=True, timeout=120)
        result = json.loads((self.folder / "j").read_text())
        self.assertEqual((result["benchmark"], result["body"]), ("gpu_check", "simt"))
        for check in result["checks"]:
            self.assertEqual(check["verdict"], "pass", check["name"])
            self.assertEqual(len(check["in"]) % 8 + len(check["out"]) % 8, 0)
            self.assertGreater(len(check["out"]), 0)
        self.assertLess((self.folder / "j").stat().st_size, 16 << 20)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
