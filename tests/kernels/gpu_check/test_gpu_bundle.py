"""scripts/gpu_bundle.sh: the archive is unpacked in a folder of its own and run on the runner.

Usage: test_gpu_bundle.py PROGRAM BATON, the built baton_gpu_check and baton.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).resolve().parent))
from stage_case import FormCase, long  # noqa: E402

SCRIPT = ROOT / "scripts" / "gpu_bundle.sh"
PROGRAM = ""
BATON = ""


class GpuBundle(FormCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.archive = self.folder / "bundle.tar.xz"

    def pack(self, *arguments):
        command = [str(SCRIPT), "--out", str(self.archive), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=280)

    @long
    def test_what_is_unpacked_runs(self):
        done = self.pack("--program", PROGRAM, "--baton", BATON)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertLess(self.archive.stat().st_size, 64 << 20)
        self.assertRegex(done.stdout, r"needs GLIBC_2\.\d+ or newer")
        subprocess.run(["tar", "-C", self.folder, "-xf", self.archive], check=True)
        root = self.folder / "gpu_bundle"
        # No repository, no other folder of ours, no library of this build.
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        command = [root / "run.sh", "--simt", "--stages", "0 3 6 9"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd="/", timeout=120
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"3 bandwidth +pass")
        self.assertRegex(done.stdout, r"6 transport +pass")
        self.assertRegex(done.stdout, r"9 product +pass")
        result = json.loads((root / "results" / "gpu_check_bandwidth.json").read_text())
        head = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        commit = subprocess.run(head, capture_output=True, text=True, cwd=ROOT, check=True).stdout
        self.assertEqual(result["commit"], commit.strip() + "-not-built")

    @long
    def test_real_files_travel_in_pieces_and_are_served_by_what_is_unpacked(self):
        done = self.pack("--program", PROGRAM, "--baton", BATON)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        pieces, models, out = (self.folder / name for name in ("pieces", "models", "real.json"))
        model = ROOT / "tests" / "golden" / "tiny_head64_llama.gguf"
        cut = [ROOT / "scripts" / "gpu_pieces.py", "cut", model, "--out", pieces]
        subprocess.run([*cut, "--piece-mib", "0.02"], check=True, capture_output=True)
        subprocess.run(["tar", "-C", self.folder, "-xf", self.archive], check=True)
        root = self.folder / "gpu_bundle"
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}

        def call(*command):
            return subprocess.run(
                command, capture_output=True, text=True, env=environment, cwd="/", timeout=250
            )

        join = (root / "scripts" / "gpu_pieces.py", "join", pieces, "--to", models)
        last = pieces / "tiny_head64_llama.gguf.003"
        last.rename(self.folder / "later")
        self.assertEqual(call(*join).returncode, 3)
        (self.folder / "later").rename(last)
        self.assertEqual(call(*join).returncode, 0)
        real = (root / "real.sh", models, "--json", out, "--device", "simt", "--num-texts", "2")
        done = call(*real, "--max-tokens", "3", "--bound", "3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "[0-9]+ passed, 0 failed, 0 left")

    def test_an_archive_that_cannot_travel_is_an_error(self):
        large = self.folder / "large"
        noise = self.folder / "noise"
        noise.write_bytes(os.urandom(2 << 20))
        # A section that strip keeps.
        section = ["--add-section", f".noise={noise}", "--set-section-flags"]
        command = ["objcopy", *section, ".noise=alloc,readonly,data", PROGRAM, large]
        subprocess.run(command, check=True)
        done = self.pack("--program", str(large), "--max-mib", "1")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("1 MiB may travel", done.stderr)
        self.assertFalse(self.archive.exists())

    def test_a_library_that_may_be_missing_is_an_error(self):
        source = self.folder / "main.cc"
        source.write_text("#include <iostream>\nint main() { std::cout << 1; }\n")
        subprocess.run(["g++", "-o", self.folder / "dynamic", source], check=True)
        done = self.pack("--program", str(self.folder / "dynamic"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("needs libstdc++.so.6", done.stderr)

    def test_wrong_arguments_are_named(self):
        both = ["--preset", "cuda", "--program", PROGRAM]
        wrong = (["--what"], ["--program"], ["--max-mib", "65"], ["--baton", BATON], both)
        for arguments in (*wrong, ["--preset", "release"]):
            self.assertEqual(self.pack(*arguments).returncode, 2)
        done = self.pack("--program", str(self.folder / "nothing"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("is no program", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    BATON = sys.argv.pop(1)
    unittest.main()
