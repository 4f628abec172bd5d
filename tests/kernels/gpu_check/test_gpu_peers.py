"""Tests how gpu_check uses other programs: compute-sanitizer (stage 7), torch (8), baton (9).

Usage: test_gpu_peers.py PROGRAM, the built baton_gpu_check.
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).resolve().parent))
import stage_case  # noqa: E402
from stage_case import StageCase, long  # noqa: E402

# The functions of torch that torch_peers.py uses. A launch takes 2 us. An event with no work before
# it has the host's time, which is not the GPU's.
FAKE_TORCH = """
import contextlib
import os
import time
bfloat16 = "bf16"
__version__ = "0"
assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"
num_launches = 0
gpu_ms = 0
is_idle = True
if os.path.exists(os.path.join(os.path.dirname(__file__), "hang")):
    time.sleep(60)


def launch(*args, **kwargs):
    global num_launches
    num_launches += 1


def synchronize():
    global is_idle
    is_idle = True


@contextlib.contextmanager
def record(graph):
    before = num_launches
    yield
    graph.ms = 0.002 * (num_launches - before)


class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(synchronize)
    graph = staticmethod(record)

    class CUDAGraph:
        def replay(self):
            global gpu_ms, is_idle
            gpu_ms += self.ms
            is_idle = False

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = gpu_ms - (1000 if is_idle else 0)

        def elapsed_time(self, other):
            sample = other.at - self.at
            with open(os.path.join(os.path.dirname(__file__), "samples"), "a") as file:
                file.write(f"{sample}\\n")
            return sample


class functional:
    linear = staticmethod(launch)
    scaled_dot_product_attention = staticmethod(launch)


class nn:
    functional = functional


no_grad = contextlib.nullcontext


def randn(*sizes, device, dtype):
    return None
"""


def text_of(file):
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class GpuCheckPeers(StageCase):
    def sanitizer(self, status):
        """Runs what it is asked to watch, then says `status`."""
        tool = self.folder / "sanitizer"
        tool.write_text(
            '#!/usr/bin/env bash\necho "$2 $3 $4"\nshift 6\n"$@" --commit x >/dev/null || exit 3\n'
            f"echo verdict\nexit {status}\n"
        )
        tool.chmod(0o755)
        return self.run_stage(7, "--sanitizer", tool)

    def test_the_sanitizer_runs_stage_2(self):
        code, checks = self.sanitizer(0)
        self.assertEqual(code, 0, checks)
        self.assertEqual(
            checks["sanitizer racecheck"]["lines"],
            ["racecheck --target-processes application-only", "verdict"],
        )
        tools = ["memcheck", "racecheck", "synccheck", "initcheck", "memcheck, other kernels"]
        self.assertEqual(list(checks), [f"sanitizer {tool}" for tool in tools])
        code, checks = self.sanitizer(9)
        self.assertEqual(code, 1)
        self.assertEqual(checks["sanitizer memcheck"]["detail"], "found something, verdict")
        code, checks = self.run_stage(7)
        self.assertEqual((code, checks["sanitizer"]["verdict"]), (77, "not run"))

    def test_each_tool_of_the_sanitizer_has_its_share_of_the_time(self):
        tool = self.folder / "sanitizer"
        tool.write_text(
            "#!/usr/bin/env bash\n"
            'echo "== $CUDA_MODULE_LOADING ${*: -3}"\n'
            'echo "  pass    gemm wgmma256            3 x 257 x 72"\n'
            'case "$2" in\n'
            "  racecheck) sleep 60 ;;\n"
            "  synccheck) echo '========= Barrier error detected.'; sleep 60 ;;\n"
            "  initcheck)\n"
            "    echo \"========= Error: process didn't terminate successfully\"; exit 1 ;;\n"
            "esac\n"
        )
        tool.chmod(0o755)
        begin = time.monotonic()
        code, checks = self.run_stage(7, "--sanitizer", tool, "--seconds", "11")
        self.assertLess(time.monotonic() - begin, 30)
        verdicts = {name: check["verdict"] for name, check in checks.items()}
        self.assertEqual(code, 1)
        self.assertEqual(verdicts["sanitizer memcheck"], "pass")
        self.assertEqual(verdicts["sanitizer racecheck"], "stopped")
        self.assertIn("and 1 checks with nothing found", checks["sanitizer racecheck"]["detail"])
        # 8 s: 30 parts of 100, and of what the first did not take 30 of 70.
        self.assertAlmostEqual(checks["sanitizer memcheck"]["seconds"], 2.4, delta=0.3)
        self.assertAlmostEqual(checks["sanitizer racecheck"]["seconds"], 3.4, delta=0.5)
        detail = "found something, ========= Barrier error detected."
        self.assertEqual(checks["sanitizer synccheck"]["detail"], detail)
        self.assertEqual(verdicts["sanitizer initcheck"], "tool failed")
        detail = "after 1 checks with nothing found, ========= Error: process didn't terminate"
        self.assertIn(detail, checks["sanitizer initcheck"]["detail"])
        said = checks["sanitizer memcheck"]["lines"][0]
        self.assertEqual(said, "== LAZY --kernels asynchronous --simt")

    @long
    def test_the_lists_of_the_sanitizer_are_all_of_stage_2(self):
        lists = []
        for which in ((), ("--kernels", "asynchronous"), ("--kernels", "others")):
            code, checks = self.run_stage(2, *which)
            self.assertEqual(code, 0, checks)
            lists.append(set(checks))
        self.assertEqual(lists[1] | lists[2], lists[0])
        self.assertFalse(lists[1] & lists[2])
        self.assertLess(len(lists[1]), 16)
        self.assertTrue({"gemm wgmma256", "gemm rows8", "prefill 128"} <= lists[1])

    def test_our_times_stand_beside_those_of_others(self):
        def write(name, medians):
            checks = [{"name": key, "median_us": us} for key, us in medians.items()]
            (self.folder / name).write_text(json.dumps({"checks": checks}))
            return self.folder / name

        bandwidth = write("b", {"cublaslt qkv m 1": 20, "cublaslt o m 2048": 50, "read": 1})
        timings = write("t", {"gemm qkv m 1": 18, "gemm o m 2048": 60})
        arguments = ["--limits", bandwidth, "--timings", timings]
        code, checks = self.run_stage(8, *arguments)
        self.assertEqual(code, 0, checks)
        compared = {name: check["ratio"] for name, check in checks.items() if "cublaslt:" in name}
        self.assertEqual(
            compared, {"ours / cublaslt: gemm qkv m 1": 0.9, "ours / cublaslt: gemm o m 2048": 1.2}
        )
        decode = checks["ours / cublaslt, decode"]
        self.assertEqual((decode["num_decode"], decode["num_ahead"]), (1, 1))
        self.assertEqual(decode["detail"], "not of a GPU")

    @long
    def test_torch_is_asked_where_it_is(self):
        site = self.folder / "site"
        site.mkdir()
        script = ROOT / "tests" / "kernels" / "gpu_check" / "torch_peers.py"
        arguments = ["--python", sys.executable, "--peers", script]
        code, checks = self.run_stage(8, *arguments, PYTHONPATH=str(site))
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["torch"]["verdict"], "not run")
        self.assertIn("No module named 'torch'", checks["torch"]["detail"])
        self.assertEqual(sum(name.startswith("sweep ") for name in checks), 28)
        (site / "torch.py").write_text(FAKE_TORCH)
        code, checks = self.run_stage(8, *arguments, PYTHONPATH=str(site))
        self.assertEqual(code, 0, checks)
        samples_us = checks["torch gemm o m 3"]["samples_us"]
        self.assertEqual(len(samples_us), 2)
        for us in samples_us:
            self.assertAlmostEqual(us, 2.0)
        self.assertIn("torch attention b 1 x 16", checks)
        order = list(checks)
        self.assertLess(order.index("sweep o m 9 tile64"), order.index("torch gemm o m 3"))
        # Per case one that says how long it takes, 0.256 ms, then those that are kept.
        samples = [float(line) for line in (site / "samples").read_text().split()]
        self.assertEqual([round(sample, 3) for sample in samples], [0.256, 1.024, 1.024] * 3)
        (site / "torch.py").write_text("raise RuntimeError('broken')")
        code, checks = self.run_stage(8, *arguments, PYTHONPATH=str(site))
        self.assertEqual((code, checks["torch"]["verdict"]), (1, "FAIL"))
        self.assertIn("broken", checks["torch"]["detail"])
        code, checks = self.run_stage(8, "--python", "/no/python", "--peers", script)
        self.assertEqual((code, checks["torch"]["verdict"]), (0, "not run"))
        self.assertIn("/no/python", checks["torch"]["detail"])

    def test_torch_has_what_is_left_of_the_time(self):
        site = self.folder / "site"
        site.mkdir()
        (site / "torch.py").write_text(FAKE_TORCH)
        (site / "hang").touch()
        script = ROOT / "tests" / "kernels" / "gpu_check" / "torch_peers.py"
        arguments = ["--python", sys.executable, "--peers", script, "--seconds", "3"]
        code, checks = self.run_stage(8, *arguments, PYTHONPATH=str(site))
        self.assertEqual((code, checks["torch"]["verdict"]), (0, "stopped"))
        self.assertRegex(checks["torch"]["detail"], "after 1 s")
        self.assertEqual(sum(name.startswith("sweep ") for name in checks), 28)

    def product(self, body, *arguments):
        script = self.folder / "product.py"
        script.write_text(f"import json, sys, time\n{body}\n")
        models = ["--models", self.folder, "--python", sys.executable]
        program = ["--baton", "/a/baton", "--product-script", script]
        return self.run_stage(9, *models, *program, *arguments)

    def test_what_the_product_check_says_is_kept(self):
        line = 'print(json.dumps(dict(name="{}", verdict="{}", detail="d", data=dict(n=7))))\n'
        body = "print(sys.argv[1:])\n" + line.format("a", "pass") + line.format("b", "not run")
        code, checks = self.product(body)
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["a"]["verdict"], "pass")
        self.assertEqual((checks["a"]["detail"], checks["a"]["n"]), ("d", 7))
        self.assertEqual(checks["b"]["verdict"], "not run")
        code, checks = self.product(line.format("a", "FAIL"))
        self.assertEqual((code, checks["a"]["verdict"]), (1, "FAIL"))

    def test_a_product_check_that_ends_badly_is_a_failure(self):
        code, checks = self.product('print("end"); sys.exit(3)')
        self.assertEqual((code, checks["product"]["detail"]), (1, "exit status 3, end"))
        code, checks = self.product("time.sleep(60)", "--seconds", "4")
        self.assertEqual((code, checks["product"]["detail"]), (1, "stopped after 1 s"))
        code, checks = self.run_stage(9)
        self.assertEqual((code, checks["product"]["verdict"]), (77, "not run"))
        code, checks = self.product("", "--python", "/no/python")
        self.assertEqual((code, checks["product"]["verdict"]), (77, "not run"))
        self.assertIn("/no/python", checks["product"]["detail"])
        code, checks = self.product('print(json.dumps(dict(name=1, verdict="pass"))); sys.exit(1)')
        self.assertEqual((code, checks["product"]["verdict"]), (1, "FAIL"))

    def until(self, is_true):
        end = time.monotonic() + 20
        while not is_true() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(is_true())

    def test_a_product_check_that_is_ended_leaves_nothing(self):
        pid_file = self.folder / "pid"
        baton = self.folder / "baton"
        baton.write_text(f'#!/bin/sh\ntrap "" TERM\necho $$ >"{pid_file}"\nexec sleep 60\n')
        baton.chmod(0o755)
        script = ROOT / "tests" / "kernels" / "gpu_check" / "product_check.py"
        command = [sys.executable, "-B", script, "--baton", baton, "--models", self.folder]
        for how in (signal.SIGTERM, signal.SIGKILL):
            pid_file.unlink(missing_ok=True)
            variables = {**os.environ, "TMPDIR": str(self.folder)}
            with subprocess.Popen([*command, "--device", "simt"], env=variables) as check:
                self.until(lambda: text_of(pid_file))
                check.send_signal(how)
                check.wait(10)
            served = Path("/proc") / pid_file.read_text().strip() / "cmdline"
            self.until(lambda: not text_of(served))  # "" of one whose status nobody has taken
            if how == signal.SIGTERM:
                self.assertEqual(list(self.folder.glob("baton_product_*")), [])


if __name__ == "__main__":
    stage_case.PROGRAM = sys.argv.pop(1)
    unittest.main()
