"""scripts/gpu_check.sh itself: what it makes of stages that pass, fail, hang or cannot run.

Usage: test_gpu_check.py PROGRAM CUBLASLT NCCL RESULTS, the built baton_gpu_check, the loopbacks of
tests/cublaslt and tests/nccl, and the folder of results of a whole run with them on the runner.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import readme_tables  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))
import stage_case  # noqa: E402
from stage_case import StageCase, long  # noqa: E402

SCRIPT = ROOT / "scripts" / "gpu_check.sh"
PROGRAM = ""
CUBLASLT = ""
LOOPBACK = ""
HAS_GPU = Path("/dev/nvidiactl").exists()

NUM_STAGES = 10
NUM_FILES = 8  # that may come back from a machine that is lent

# Does in stage N what the N-th word of $BEHAVIOUR says; passes where there is none. A stage that is
# "cut" is killed in the middle of a check's line.
FAKE = """#!/usr/bin/env bash
if [[ "$1" == --starts ]]; then exit 0; fi
if [[ "$1" == --results ]]; then exec "$REAL" "$@"; fi
words=($BEHAVIOUR)
echo '{"stage": '"$2"', "loading": "'"$CUDA_MODULE_LOADING"'"}' >"$4"
case "${words[$2]:-pass}" in
  pass) exit 0 ;;
  fail) exit 1 ;;
  none) exit 77 ;;
  crash) kill -SEGV $$ ;;
  hang) sleep 60 ;;
  big) truncate -s 17M "$4" ;;
  many) touch "${4%/*}/gpu_check_more.json" ;;
  cut)
    printf '%s\n' '{"stage":"primitives","checks":[' '{"name":"mma","verdict":"pass"}' \
      ',{"name":"atomics","verdict":"FAIL"}' >"$4"
    printf ',{"name":"half of a li' >>"$4"
    kill -KILL $$
    ;;
  # Ends in one check after another, and then has all.
  lost)
    echo "$@" >>"${4%/*}/runs"
    n="$(wc -l <"${4%/*}/runs")"
    printf '{"stage":"x","checks":[\n{"name":"%s","verdict":"FAIL"}\n]}' "$n" >"$4"
    [[ $n -lt "${RUNS:-3}" ]] || exit "${LAST:-1}"
    [[ $n -lt 2 ]] || kill -SEGV $$
    exit 76
    ;;
  args) printf '{"arguments": "%s"}' "$*" >"$4" ;;
  deaf) trap '' TERM; while true; do sleep 1; done ;;
esac
"""


class GpuCheckScript(StageCase):
    def setUp(self):
        super().setUp()
        self.fake = self.folder / "fake"
        self.fake.write_text(FAKE)
        self.fake.chmod(self.fake.stat().st_mode | stat.S_IXUSR)

    def run_script(self, *arguments, behaviour=""):
        environment = dict(os.environ, BEHAVIOUR=behaviour, REAL=PROGRAM)
        command = [str(SCRIPT), "--out", str(self.folder / "out"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    def run_fake(self, behaviour, *arguments):
        return self.run_script("--program", str(self.fake), *arguments, behaviour=behaviour)

    def results(self):
        files = sorted((self.folder / "out").glob("*.json"))
        return {file.stem: json.loads(file.read_text()) for file in files}

    def test_all_stages_pass(self):
        done = self.run_fake("")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(self.results()), NUM_FILES)
        page = done.stdout.split("== summary")[1]
        self.assertEqual(page.count(" pass "), NUM_STAGES)
        loading = {name: result["loading"] for name, result in self.results().items()}
        self.assertEqual(loading.pop("gpu_check_bandwidth"), "LAZY")
        self.assertEqual(set(loading.values()), {"EAGER"})

    def test_the_limits_of_the_stages_fill_the_whole_call(self):
        text = SCRIPT.read_text()
        limits = re.search(r"^limits=\((.*)\)$", text, re.M).group(1).split()
        self.assertEqual(len(limits), NUM_STAGES)
        self.assertEqual(sum(int(limit) for limit in limits), 450)

    def test_a_call_begins_the_files_of_its_own_stages_and_leaves_the_others(self):
        self.run_fake("")
        for file in (self.folder / "out").glob("*.json"):
            file.write_text('{"stage": "of an earlier call"}')
        self.run_fake("none none none none none none none fail", "--stages", "2 7 8")
        stages = {name: result["stage"] for name, result in self.results().items()}
        ours = {"gpu_check_kernels": 2, "gpu_check_tools": 8}
        self.assertEqual({name: stages.pop(name) for name in ours}, ours)
        self.assertEqual(len(stages), NUM_FILES - 2)
        self.assertEqual(set(stages.values()), {"of an earlier call"})
        # A stage that is left out because the time is over keeps no results of an earlier call
        # either.
        self.run_fake("hang", "--stages", "0 2", "--total", "1")
        self.assertNotIn("gpu_check_kernels", self.results())

    def test_a_failing_stage_fails_the_call_and_the_later_ones_still_run(self):
        for behaviour in ("fail", "crash"):
            done = self.run_fake(f"pass {behaviour} pass")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, r"1 primitives +FAIL")
            self.assertRegex(done.stdout, r"2 kernels +pass")

    def runs_of(self, *arguments):
        done = self.run_fake("pass lost pass", *arguments)
        file = self.folder / "out" / "runs"
        runs = [run.split() for run in file.read_text().splitlines()]
        file.unlink()
        return done, runs

    def test_a_stage_goes_on_behind_a_check_that_ended_it(self):
        done, runs = self.runs_of()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(runs), 3)
        self.assertEqual(["--resume" in run for run in runs], [False, True, True])
        line = r"1 primitives +FAIL .* exit status 1, restarts: 2; 1 FAIL"
        self.assertRegex(done.stdout, line)
        self.assertRegex(done.stdout, r"2 kernels +pass")
        self.assertIn("exit status 76", done.stdout)
        # No check has failed, but a process ended all the same.
        os.environ["LAST"] = "0"
        self.addCleanup(os.environ.pop, "LAST")
        done, runs = self.runs_of()
        self.assertEqual((done.returncode, len(runs)), (1, 3))
        line = r"1 primitives +FAIL .* exit status 0, but it ended by itself before, restarts: 2"
        self.assertRegex(done.stdout, line)
        os.environ["RUNS"] = "99"
        self.addCleanup(os.environ.pop, "RUNS")
        done, runs = self.runs_of()
        self.assertEqual(len(runs), 4)
        self.assertRegex(done.stdout, r"1 primitives +FAIL .* exit status 139, restarts: 3")
        # With the time that is left, and not without some.
        done, runs = self.runs_of("--limit", "1")
        self.assertEqual(len(runs), 1)

    def test_a_stage_over_its_limit_is_stopped_and_its_results_stay(self):
        for behaviour in ("hang", "deaf"):
            begin = time.monotonic()
            done = self.run_fake(f"pass {behaviour} pass", "--limit", "4")
            self.assertLess(time.monotonic() - begin, 59)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, r"1 primitives +FAIL .*stopped after 4 s")
            self.assertRegex(done.stdout, r"2 kernels +pass")
            self.assertEqual(len(self.results()), NUM_FILES)

    def test_a_file_that_was_cut_is_on_the_page_and_whole_again(self):
        done = self.run_fake("pass cut")
        self.assertEqual(done.returncode, 1)
        line = r'1 primitives +FAIL .* 137, killed; 1 pass, 1 FAIL, cut behind "atomics"'
        self.assertRegex(done.stdout, line)
        result = self.results()["gpu_check_primitives"]
        self.assertEqual([check["name"] for check in result["checks"]], ["mma", "atomics"])
        self.assertTrue(result["cut"])

    def test_more_than_may_come_back_fails(self):
        done = self.run_fake("pass big", "--stages", "0 1")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"1 primitives +FAIL .* 17825792 bytes where 16 MiB may come")
        done = self.run_fake("many")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "FAIL: 9 result files in .*, and 8 may come back")

    def unpacked(self, *files):
        """A folder with the script, as a bundle has it or a checkout, and a program that says what
        a loader says."""
        root = self.folder / "root"
        (root / "scripts").mkdir(parents=True)
        script = root / "scripts" / "gpu_check.sh"
        script.write_text(SCRIPT.read_text())
        script.chmod(0o755)
        program = root / "program"
        program.write_text(
            "#!/usr/bin/env bash\necho 'program: version `GLIBC_2.99'\\'' not found' >&2\nexit 1\n"
        )
        program.chmod(0o755)
        for name, text in files:
            (root / name).write_text(text)
            (root / name).chmod(0o755)
        return root

    def run_unpacked(self, root, *arguments):
        script = root / "scripts" / "gpu_check.sh"
        return self.run_in(root, script, "--program", root / "program", *arguments)

    def run_in(self, root, *command, **variables):
        environment = dict(os.environ, BEHAVIOUR="", REAL=PROGRAM, FAKE=str(self.fake))
        environment |= variables
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=120, cwd=root
        )

    def test_a_bundle_whose_program_cannot_start_says_what_to_do(self):
        done = self.run_unpacked(self.unpacked(("COMMIT", "abc123\n")))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("cannot start here (program: version `GLIBC_2.99' not found)", done.stderr)
        self.assertIn("a checkout of abc123", done.stderr)
        self.assertNotIn("summary", done.stdout)

    def test_a_checkout_whose_program_cannot_start_builds_it_there(self):
        folder = "build/cuda/tests/kernels/gpu_check"
        build = (
            "scripts/build.sh",
            '#!/usr/bin/env bash\n[[ "$*" == "cuda baton_gpu_check" ]] || exit 3\n'
            f'mkdir -p {folder} && cp "$FAKE" {folder}/baton_gpu_check\n',
        )
        root = self.unpacked(("CMakeLists.txt", ""), build)
        done = self.run_unpacked(root)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("not found): building it (at most 600 s)", done.stdout)
        self.assertRegex(done.stdout, r"8 peers +pass")
        self.assertNotIn("not-built", done.stdout)

    def test_a_checkout_builds_for_the_gpu_that_is_there(self):
        build = (
            "scripts/build.sh",
            '#!/usr/bin/env bash\nfolder="build/$1/tests/kernels/gpu_check"\n'
            'mkdir -p "$folder" && cp "$FAKE" "$folder/baton_gpu_check"\n',
        )
        root = self.unpacked(("CMakeLists.txt", ""), build)
        tools = self.folder / "tools"
        tools.mkdir()
        smi = tools / "nvidia-smi"
        for said, preset in (("9.0\n9.0", "cuda"), ("12.0", "cuda-all"), ("8.9", "cuda-all")):
            smi.write_text(f"#!/bin/sh\nprintf '{said}\\n'\n")
            smi.chmod(0o755)
            path = f"{tools}:{os.environ['PATH']}"
            script = root / "scripts" / "gpu_check.sh"
            done = self.run_in(root, script, "--stages", "0", PATH=path)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual([path.name for path in (root / "build").glob("cuda*")], [preset])
            self.assertEqual("compiles what comes as PTX" in done.stdout, preset == "cuda-all")
            shutil.rmtree(root / "build")

    def test_a_checkout_builds_what_stage_9_serves_by(self):
        build = (
            "#!/usr/bin/env bash\n"
            'case "$2" in\n'
            "  baton_gpu_check) folder=build/cuda/tests/kernels/gpu_check ;;\n"
            '  baton) [[ -z "$NO_BATON" ]] || exit 1; folder=build/cuda ;;\n'
            "esac\n"
            'mkdir -p $folder && cp "$FAKE" "$folder/$2"\n'
        )
        root = self.unpacked(("CMakeLists.txt", ""), ("scripts/build.sh", build))
        script = root / "scripts" / "gpu_check.sh"
        file = root / "build" / "gpu_check" / "gpu_check_tools.json"
        for variables, verdict in (({}, True), ({"NO_BATON": "1"}, False)):
            shutil.rmtree(root / "build", ignore_errors=True)
            behaviour = "pass " * 9 + "args"
            done = self.run_in(root, script, "--stages", "9", BEHAVIOUR=behaviour, **variables)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            arguments = json.loads(file.read_text())["arguments"]
            self.assertEqual("--baton build/cuda/baton" in arguments, verdict)
            self.assertIn("--models tests/golden", arguments)
            self.assertEqual("baton could not be built" in done.stdout, not verdict)
            self.assertNotIn("not-built", done.stdout)
        # A program that is named may be of any commit. Where the build fails, the program that lies
        # there is used.
        done = self.run_in(root, script, "--stages", "9", "--baton", self.fake, BEHAVIOUR=behaviour)
        self.assertRegex(done.stdout, r"summary \(gpu, commit .*-not-built,")
        shutil.copy(self.fake, root / "build" / "cuda" / "baton")
        (root / "scripts" / "build.sh").write_text("#!/usr/bin/env bash\nexit 1\n")
        done = self.run_in(root, script, "--stages", "9", BEHAVIOUR=behaviour)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("--baton build/cuda/baton", json.loads(file.read_text())["arguments"])
        self.assertRegex(done.stdout, r"summary \(gpu, commit .*-not-built,")

    @long
    def test_a_build_that_fails_leaves_the_program_that_is_there(self):
        folder = "build/cuda/tests/kernels/gpu_check"
        for text, why in (
            ("exit 1", "building it here failed"),
            ("sleep 60", r"stopped after 1 s \(--build-limit\)"),
        ):
            build = ("scripts/build.sh", f"#!/usr/bin/env bash\n{text}\n")
            root = self.unpacked(("CMakeLists.txt", ""), build)
            script = root / "scripts" / "gpu_check.sh"
            # As where somebody else built it, in another place.
            done = self.run_in(root, script, "--build-limit", "1")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"cannot start here .*; {why}|; .*{why}")
            (root / folder).mkdir(parents=True)
            shutil.copy(self.fake, root / folder / "baton_gpu_check")
            done = self.run_in(root, script, "--build-limit", "1")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, f"== .*{why}.*is taken as it is, of whatever commit")
            self.assertRegex(done.stdout, r"summary \(gpu, commit .*-not-built,")
            shutil.rmtree(root)

    def test_a_program_that_cannot_be_built_there_says_why(self):
        for text, why in (
            ("exit 1", "building it here failed: install what scripts/deps.sh lists"),
            ("sleep 60", r"stopped after 1 s \(--build-limit\)"),
            ("mkdir -p $(dirname $B); cp program $B", "and it was built here"),
        ):
            text = "B=build/cuda/tests/kernels/gpu_check/baton_gpu_check\n" + text
            files = (("CMakeLists.txt", ""), ("scripts/build.sh", f"#!/usr/bin/env bash\n{text}\n"))
            root = self.unpacked(*files)
            done = self.run_unpacked(root, "--build-limit", "1")
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertRegex(done.stderr, why)
            shutil.rmtree(root)

    def test_the_whole_call_has_a_limit(self):
        done = self.run_fake("hang pass pass", "--total", "1")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"2 kernels +FAIL .*1 s are over")

    def test_what_cannot_run_is_not_a_pass(self):
        none = "none " * NUM_STAGES
        done = self.run_fake(none)
        self.assertEqual(done.returncode, 77)
        self.assertNotIn("pass ", done.stdout)
        self.assertEqual(self.run_fake("pass " + none).returncode, 0)
        self.assertEqual(self.run_fake("none fail " + none).returncode, 1)

    def test_wrong_arguments_are_named(self):
        for arguments in (
            ["--stages", "10"],
            ["--baton", "/nowhere/baton"],
            ["--stages", "00"],
            ["--limit", "x"],
            ["--build-limit", "0"],
            ["--out"],
            ["--out", "/proc/x"],
            ["--what"],
            ["--program", "/nowhere/program"],
            ["--nccl", "/nowhere/libnccl.so"],
            ["--cublaslt", "/nowhere/lt.so"],
        ):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage", done.stderr)
            self.assertNotIn("building", done.stdout)
        self.assertEqual(self.run_script("--help").returncode, 0)

    def test_a_stage_without_results_is_no_pass(self):
        done = self.run_script("--program", "/bin/true", "--stages", "0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no results", done.stdout)

    @unittest.skipIf(HAS_GPU, "there is a driver here")
    def test_without_a_gpu_every_stage_says_that_it_did_not_run(self):
        done = self.run_script("--program", PROGRAM)
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        for result in self.results().values():
            self.assertEqual({check["verdict"] for check in result["checks"]}, {"not run"})
        self.assertEqual(len(self.results()), NUM_FILES)

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
        for name in ("VMM export as fd", "VMM import, read only", "IPC handle"):
            self.assertEqual(checks[name]["verdict"], "pass")
        self.assertEqual(checks["SMs, which green contexts divide"]["verdict"], "not run")

    def test_what_a_driver_refuses_is_not_run(self):
        code, checks = self.run_stage_0_with_the_fake_driver(FAKE_DRIVER_LACKS="memory")
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["VMM export as fd"]["verdict"], "not run")
        self.assertEqual(checks["VMM export as fd"]["detail"], "CUDA_ERROR_NOT_SUPPORTED")
        code, checks = self.run_stage_0_with_the_fake_driver(FAKE_DRIVER_LACKS="read only")
        self.assertEqual((code, checks["VMM export as fd"]["verdict"]), (0, "pass"))
        self.assertEqual(checks["VMM import, read only"]["detail"], "CUDA_ERROR_NOT_SUPPORTED")
        code, checks = self.run_stage_0_with_the_fake_driver(FAKE_DRIVER_LACKS="attribute")
        self.assertEqual((code, checks["VMM export as fd"]["verdict"]), (0, "not run"))
        self.assertEqual(checks["VMM export as fd"]["detail"], "error 1")

    def test_what_a_driver_has_and_does_not_do_fails(self):
        code, checks = self.run_stage_0_with_the_fake_driver(FAKE_DRIVER_LACKS="words")
        self.assertEqual((code, checks["VMM export as fd"]["verdict"]), (1, "FAIL"))
        self.assertEqual(checks["VMM export as fd"]["detail"], "error 1")
        self.assertEqual(checks["IPC handle"]["verdict"], "pass")

    def test_the_program_starts_without_libraries_of_a_gpu(self):
        command = ["readelf", "-d", PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        needed = [line for line in done.stdout.splitlines() if "NEEDED" in line]
        self.assertTrue(needed)
        for library in ("libcuda", "libcudart", "libnccl", "libcublas"):
            self.assertNotIn(library, "".join(needed))

    def test_a_stage_that_is_resumed_does_what_is_left_and_nothing_twice(self):
        for stage, arguments in (
            (1, []),
            (2, []),
            (3, ["--cublaslt", CUBLASLT]),
            (4, []),
            (5, ["--cublaslt", CUBLASLT]),
            (6, ["--nccl", LOOPBACK]),
            (8, []),
        ):
            checks = self.whole_run(stage, *arguments)
            file = self.folder / "j"
            # A process that ended in the middle of a check.
            lines = file.read_text().splitlines()
            kept = lines[: 2 + len(checks) // 2]
            ended_in = list(checks)[len(kept) - 1]
            end = f'],\n"limits":{{"read_bytes_per_s":5}},\n"under_way":"{ended_in}"}}'
            file.write_text("\n".join(kept) + "\n" + end)
            code, resumed = self.run_stage(stage, *arguments, "--resume")
            result = json.loads(file.read_text())
            self.assertEqual(len(result["checks"]), len(resumed), "each of them once")
            self.assertEqual(result["limits"]["read_bytes_per_s"], 5)
            self.assertNotIn("under_way", result)
            self.assertEqual(code, 1)
            failed = {name for name, check in resumed.items() if check["verdict"] == "FAIL"}
            self.assertEqual(failed, {ended_in})
            self.assertEqual(resumed[ended_in]["detail"], "the process ended in it")
            if stage in (1, 2, 4):
                self.assertEqual(list(resumed), list(checks))
            self.assertLessEqual(set(resumed), set(checks))
            # The checks that were there are not computed again.
            self.assertEqual(
                [check["name"] for check in result["checks"]][: len(kept) - 1],
                list(checks)[: len(kept) - 1],
            )

    def test_times_on_the_runner_claim_nothing_about_a_gpu(self):
        measured = self.folder / "limits"
        measured.write_text(
            json.dumps(
                {
                    "device": "the runner of kernels/simt, with Hopper's bits",
                    "limits": {"read_bytes_per_s": 1, "bf16_flops_per_s": 1},
                }
            )
        )
        code, checks = self.run_stage(4, "--limits", measured)
        self.assertEqual(code, 0, checks)
        limits = {
            re.sub(r" (m |b |prefill |)\d.*", "", name): check["limit"]
            for name, check in checks.items()
        }
        products = {f"gemm {name}" for name in ("qkv", "o", "gate_up", "down", "output")}
        products |= {
            f"gemm {kernel} {name}"
            for kernel in ("tile128", "wgmma128", "wgmma192", "wgmma256", "joined")
            for name in ("qkv", "o", "gate_up", "down")
        }
        rows = {"rms_norm", "silu_mul", "gelu_mul", "embed", "sample", "sample greedy"}
        rows |= {"rope_append", "rope_append fp8", "short_conv"}
        experts = {"route", "sort_pairs", "grouped_gemm", "combine"}
        packed = {
            f"{work} {kind} {name}"
            for work in ("gemm", "unpack")
            for kind in ("q4_0", "q4_k", "q8_0", "e4m3")
            for name in ("gate_up", "down")
        }
        others = {"all_reduce", "kv_gather", "kv_scatter"}
        others |= {f"attention{of}{by}" for of in ("", " fp8") for by in ("", " wgmma")}
        self.assertEqual(set(limits), products | packed | rows | experts | others)
        for check in checks.values():
            self.assertGreater(check["median_us"], 0)
            self.assertEqual(len(check["samples_us"]), 3)
            self.assertEqual(check["detail"], "timed, on this processor")
            self.assertNotIn("percent_of_limit", check)
        in_l2 = {name for name, limit in limits.items() if limit == "none, it lies in L2"}
        resident = {"route", "sort_pairs", "combine", "all_reduce"}
        self.assertEqual(in_l2, rows - {"sample", "sample greedy"} | resident)
        copied = {name for name, limit in limits.items() if limit == "copying"}
        unpacked = {name for name in packed if name.startswith("unpack")}
        self.assertEqual(copied, unpacked | {"kv_gather", "kv_scatter"})
        self.check_table(json.loads((self.folder / "j").read_text()))

    def check_table(self, timed):
        row = next(check for check in timed["checks"] if check["name"] == "gemm qkv m 1")
        row |= {"median_us": 20.0, "bytes": 5e7, "flops": 5e7}
        row |= {"percent_of_limit": 58.1, "target_percent": 85, "target": "missed"}
        table = readme_tables.gpu_check(timed)
        self.assertIn("| gemm qkv m 1 | 20.0 | 2500 | 2.5 | 58 % | 85 % |", table)
        self.assertEqual(len(table), 2 + len(timed["checks"]) + 2)

    def test_a_model_has_the_same_bits_however_it_is_computed(self):
        checks = self.whole_run(5, "--cublaslt", CUBLASLT)
        exact = [name for name in checks if "==" in name]
        self.assertEqual(len(exact), 8)
        # 2 layers, K and V of 2 heads of 64, two blocks of 64 tokens.
        self.assertIn(f"{2 * 2 * 2 * 64 * 2 * 128} bytes moved", checks[exact[1]]["detail"])
        steps = [check["step"] for check in checks.values() if "step" in check]
        self.assertEqual({step["decode_rows"] for step in steps}, {0, 1, 2})
        # Prompts of two blocks and one.
        self.assertIn("2 requests, 196608 bytes handed over,", checks[exact[7]]["detail"])
        self.assertEqual(len(checks["an engine's step by its model's"]["engine_ratios"]), 1)
        self.assertGreater(len(checks["engine decode 2 x 70"]["samples_us"]), 2)
        self.assertEqual(len(checks["hand-over of 70 tokens"]["exposed_us"]), 1)
        self.assertIn("3 blocks of 65536 bytes", checks["KV through pinned arenas"]["detail"])
        self.assertEqual(checks["weights through pinned buffers"]["detail"], "21496 bytes")

    def test_what_equal_bits_cost_is_told_where_cublaslt_is(self):
        checks = self.whole_run(5, "--cublaslt", CUBLASLT)
        self.assertIn("cublaslt=13.0.0 rows>128", checks["fast mode"]["detail"])
        for name in ("deterministic: prefill 136", "fast: prefill 136"):
            self.assertGreater(checks[name]["median_us"], 0)
        cost = checks["cost of equal bits, prefill 136"]
        self.assertGreater(cost["cost_ratio"], 0)
        logits = checks["logits of prefill 136"]
        self.assertEqual(logits["verdict"], "pass")
        self.assertGreater(logits["error"], 0)

    @long
    def test_a_cublaslt_that_is_wrong_or_missing_is_no_fast_mode(self):
        checks = self.whole_run(5, "--cublaslt", CUBLASLT)
        file = self.folder / "j"
        # The checks before "fast mode" have been computed.
        kept = file.read_text().splitlines()[: 1 + list(checks).index("fast mode")]
        before = "\n".join(kept) + '\n],\n"limits":{}}'
        file.write_text(before)
        faults = {"BATON_CUBLASLT_LOOPBACK": "wrong=0"}
        code, checks = self.run_stage(5, "--cublaslt", CUBLASLT, "--resume", **faults)
        self.assertEqual((code, checks["fast mode"]["verdict"]), (1, "FAIL"))
        file.write_text(before)
        code, checks = self.run_stage(5, "--resume")
        self.assertEqual((code, checks["fast mode"]["verdict"]), (0, "not run"))

    def test_cublaslt_is_called_where_it_is(self):
        code, checks = self.run_stage(3, "--cublaslt", CUBLASLT)
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["cublaslt"]["verdict"], "pass")
        self.assertIn("version 130000", checks["cublaslt"]["detail"])
        timed = [name for name in checks if name.startswith("cublaslt ")]
        self.assertEqual(len(timed), 10)

    def test_a_cublaslt_that_is_wrong_missing_or_too_old_says_so(self):
        code, checks = self.run_stage(3, "--cublaslt", CUBLASLT, BATON_CUBLASLT_LOOPBACK="wrong=0")
        self.assertEqual(code, 1)
        self.assertIn("relative error", checks["cublaslt"]["detail"])
        # Right where it is small, and wrong at a shape of the model.
        faults = {"BATON_CUBLASLT_LOOPBACK": "wrong=512"}
        code, checks = self.run_stage(3, "--cublaslt", CUBLASLT, **faults)
        failed = {name for name, check in checks.items() if check["verdict"] == "FAIL"}
        wrong = {f"cublaslt {name} m {m}" for name in ("qkv", "gate_up") for m in (1, 9)}
        self.assertEqual((code, failed), (1, wrong))
        self.assertRegex(checks["cublaslt qkv m 9"]["detail"], "row 0 from column 0 on: relative")
        code, checks = self.run_stage(3, "--cublaslt", CUBLASLT, BATON_CUBLASLT_LOOPBACK="refuse=0")
        self.assertEqual((code, checks["cublaslt"]["verdict"]), (1, "FAIL"))
        for library in (self.folder / "missing.so", "libm.so.6"):
            code, checks = self.run_stage(3, "--cublaslt", library)
            self.assertEqual((code, checks["cublaslt"]["verdict"]), (0, "not run"))
        self.assertIn("lacks cublasLtGetVersion", checks["cublaslt"]["detail"])

    def test_two_processes_hand_over(self):
        code, checks = self.run_stage(6, "--nccl", LOOPBACK)
        self.assertEqual(code, 0, checks)
        sizes = ["12 KiB", "24 KiB", "60 KiB", "96 KiB"]
        steps = ["pair", *sizes, "sender killed", "paired anew"]
        divided = ["of 2 ranks pair", "of 2 ranks 96 KiB"]
        rows = [f"cuda_ipc {step}" for step in steps + divided] + [f"nccl {step}" for step in steps]
        rows += ["nccl receiver killed", "nccl and once more"]
        rows += [f"nccl {step}" for step in divided]
        self.assertEqual(list(checks), rows)
        for name, check in checks.items():
            self.assertEqual(check["blocks_leaked"], 0)
            if name.endswith("KiB"):
                self.assertEqual(check["bytes"], 4096 * check["slices"])
                self.assertEqual(check["bytes_compared"], 3 * check["bytes"])
                self.assertEqual(check["checksums_verified"], 3 * check["slices"])
                self.assertEqual((len(check["samples_ms"]), len(check["copy_samples_ms"])), (3, 3))
                self.assertNotIn("gb_per_s", check)
            if name.endswith("killed"):
                self.assertLess(check["down_ms"], 20000)
        for kind in ("cuda_ipc", "nccl"):
            self.assertEqual(checks[f"{kind} sender killed"]["slices_done"], 12)
            for step in ("pair", "sender killed", "paired anew"):
                steps = checks[f"{kind} {step}"]["steps"]
                self.assertEqual(set(steps), {"beside", "control"})
                for samples in steps.values():
                    self.assertGreater(samples["num"], 0)
                    self.assertEqual(len(samples["samples_us"]), samples["num"])
                    self.assertLessEqual(samples["p50_us"], samples["max_us"])
        transport = checks["nccl 12 KiB"]["transport"]
        self.assertEqual((transport["version"], transport["dropped"]), ("2.28.9", {}))
        self.assertIn("NCCL_HOSTID", transport["way"])

    @long
    def test_a_newer_nccl_shares_a_gpu(self):
        faults = {"BATON_NCCL_LOOPBACK": "version=23003"}
        code, checks = self.run_stage(6, "--nccl", LOOPBACK, **faults)
        self.assertEqual(code, 0, checks)
        self.assertIn("NCCL_MULTI_RANK_GPU_ENABLE", checks["nccl pair"]["transport"]["way"])

    def test_a_hand_off_without_nccl_says_so(self):
        for arguments, why in (
            ([], "--nccl"),
            (["--nccl", str(self.folder / "missing.so")], "missing.so"),
            (["--nccl", "libm.so.6"], "lacks ncclGetVersion"),
        ):
            code, checks = self.run_stage(6, *arguments)
            self.assertEqual((code, checks["nccl"]["verdict"]), (0, "not run"))
            self.assertRegex(checks["nccl"]["detail"], f"^skipped: .*{why}")

    def test_other_bytes_than_the_sender_s_fail(self):
        code, checks = self.run_stage(6, "--other-bytes", "--nccl", LOOPBACK)
        kinds = ("cuda_ipc", "cuda_ipc of 2 ranks", "nccl", "nccl of 2 ranks")
        pairs = [f"{kind} pair" for kind in kinds]
        self.assertEqual((code, list(checks)), (1, pairs))
        for check in checks.values():
            self.assertRegex(check["detail"], r"block 0 of 1: byte 12287 is \w\w, the sender's is")
        code, checks = self.run_stage(6, "--nccl", LOOPBACK, BATON_NCCL_LOOPBACK="corrupt=1")
        self.assertEqual((code, checks["nccl pair"]["verdict"]), (1, "FAIL"))
        self.assertIn("other checksums than the sender's", checks["nccl pair"]["detail"])

    @staticmethod
    def is_gone(process):
        try:
            # It may stay as a zombie where nobody waits for orphans.
            return ") Z" in (process / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    def wait_until(self, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.002)

    def test_the_other_process_dies_with_the_stage(self):
        command = [PROGRAM, "--stage", "6", "--simt"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as stage:
            own = Path("/proc") / str(stage.pid)
            children = own / "task" / str(stage.pid) / "children"
            self.wait_until(lambda: children.read_text())
            child = Path("/proc") / children.read_text().split()[0]
            # It has threads once it runs; one that is stopped cannot see that its peer hung up.
            self.wait_until(lambda: len(list((child / "task").iterdir())) > 1)
            os.kill(int(child.name), signal.SIGSTOP)
            stage.kill()
            stage.wait()
        self.wait_until(lambda: self.is_gone(child))

    def test_other_bits_of_the_tensor_cores_fail(self):
        command = [PROGRAM, "--stage", "1", "--simt", "--float-mma", "--json", self.folder / "j"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        checks = json.loads((self.folder / "j").read_text())["checks"]
        failed = {check["name"] for check in checks if check["verdict"] == "FAIL"}
        self.assertTrue(any(name.startswith("mma ") for name in failed), failed)
        self.assertTrue(any(name.startswith("wgmma ") for name in failed), failed)
        # Both are wrong alike, and nothing else is.
        self.assertFalse(any(name.startswith("wgmma =") for name in failed), failed)
        self.assertTrue(all(name.startswith(("mma ", "wgmma ")) for name in failed), failed)
        self.assertIn("expected", next(check for check in checks if check["wrong"])["wrong"][0])

    @long
    def test_of_a_wrong_product_the_case_and_the_first_bits_are_kept(self):
        command = [PROGRAM, "--stage", "2", "--simt", "--float-mma", "--json", self.folder / "j"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        checks = json.loads((self.folder / "j").read_text())["checks"]
        failed = {check["name"]: check["failed"] for check in checks if check["verdict"] == "FAIL"}
        gemm = failed["gemm wgmma192"]
        self.assertEqual({key: gemm["case"][key] for key in "mnk"}, {"m": 3, "n": 193, "k": 264})
        self.assertIn("RandomBf16(m k, 6)", gemm["case"]["inputs"])
        differences = gemm["differences"]
        self.assertEqual(len(differences["first"]), 8)
        self.assertLess(differences["first"][7]["index"], differences["num_elements"])
        self.assertRegex(differences["first"][0]["got"], "^[0-9a-f]{8}$")
        self.assertEqual(len(differences["operands"]["x"]), 4 * 264)
        self.assertEqual(failed["prefill 64"]["case"]["chunks"], [[0, 250, 20], [1, 9, 1]])
        self.assertLess((self.folder / "j").stat().st_size, 1 << 20)

    @long
    def test_on_an_ampere_the_bits_are_those_of_its_model(self):
        for stage in ("1", "2"):
            command = [PROGRAM, "--stage", stage, "--simt", "--ampere", "--json", self.folder / "j"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout)
            verdicts = {
                check["name"]: check["verdict"]
                for check in json.loads((self.folder / "j").read_text())["checks"]
            }
            left_out = {name for name, verdict in verdicts.items() if verdict == "not run"}
            hopper = ("wgmma", "tensor", "bulk_copy", "gemm narrow", "gemm tile128", "mbarrier")
            for name in left_out:
                self.assertTrue(any(word in name for word in hopper), name)
            self.assertEqual(set(verdicts.values()), {"pass", "not run"})
            wanted = "mma random" if stage == "1" else "gemm tile64"
            self.assertEqual(verdicts[wanted], "pass")

    @long
    def test_of_a_gpu_that_came_later_no_bits_are_claimed(self):
        for stage in ("1", "2"):
            code, checks = self.run_stage(stage, "--newer")
            self.assertEqual(code, 0, checks)
            verdicts = {name: check["verdict"] for name, check in checks.items()}
            self.assertEqual(set(verdicts.values()), {"pass", "not run"})
            # A kernel of wgmma has another in its place, by mma.sync.
            self.assertTrue(
                all(verdict == "not run" for name, verdict in verdicts.items() if "wgmma" in name)
            )
            if stage == "2":
                self.assertEqual(verdicts["gemm tile64"], "pass")
                continue
            tiles = {name: check for name, check in checks.items() if name.startswith("mma ")}
            self.assertGreater(len(tiles), 10)
            for check in tiles.values():
                self.assertIn("no model of these tensor cores is known", check["detail"])
                self.assertEqual(len(check["out"]), 8 * check["words_out"])
                self.assertEqual(len(check["in"]), 8 * check["words_in"])

    def test_the_files_hold_the_vectors(self):
        command = [PROGRAM, "--stage", "1", "--simt", "--json", self.folder / "j"]
        subprocess.run(command, capture_output=True, check=True, timeout=120)
        result = json.loads((self.folder / "j").read_text())
        self.assertEqual((result["benchmark"], result["body"]), ("gpu_check", "simt"))
        for check in result["checks"]:
            self.assertEqual(check["verdict"], "pass", check["name"])
            self.assertEqual(len(check.get("in", "")) % 8 + len(check["out"]) % 8, 0)
            self.assertEqual(len(check["out"]), 8 * min(check["words_out"], 64 * 256))
            # The inputs that are not in the file are drawn from a seed again.
            if len(check.get("in", "")) < 8 * check["words_in"]:
                self.assertRegex(check["drawn"], r"MmaGrid\(\w+, (192|256), \d+\)")
            self.assertRegex(check["digest_in"], "^[0-9a-f]{16}$")
        products = [check for check in result["checks"] if check["name"].startswith("wgmma ")]
        sizes = {check["words_out"] for check in products}
        self.assertEqual(sizes, {64 * columns for columns in (64, 128, 192, 256)})
        tiles = [check for check in result["checks"] if check["name"].startswith("mma ")]
        self.assertTrue(all(len(check["in"]) == 8 * check["words_in"] for check in tiles))
        self.assertLess((self.folder / "j").stat().st_size, 16 << 20)


def whole_runs(folder):
    """What gpu_check_simt has computed, as StageCase keeps it: it runs before these tests."""
    arguments = {3: ("--cublaslt", CUBLASLT), 5: ("--cublaslt", CUBLASLT), 6: ("--nccl", LOOPBACK)}
    names = ("primitives", "kernels", "bandwidth", "timings", "model", "transport")
    return {
        (stage, *arguments.get(stage, ())): (folder / f"gpu_check_{name}.json").read_text()
        for stage, name in enumerate(names, 1)
    }


if __name__ == "__main__":
    PROGRAM = stage_case.PROGRAM = sys.argv.pop(1)
    CUBLASLT = sys.argv.pop(1)
    LOOPBACK = sys.argv.pop(1)
    GpuCheckScript.whole_runs = whole_runs(Path(sys.argv.pop(1)))
    unittest.main()
