"""benchmarks/kernels/nvcc_summary.py with a played compiler: what is compiled, and again."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "kernels" / "nvcc_summary.py"
SOURCES = sorted(path.name for path in (ROOT / "kernels" / "cuda").glob("*.cu"))
sys.path.insert(0, str(ROOT / "scripts"))
import readme_tables  # noqa: E402

# Gives the kernel of each source its name, 40 registers, and $SPILLED bytes to that of sample.cu.
NVCC = """#!/usr/bin/env bash
if [[ "$1" == --version ]]; then
  echo "Cuda compilation tools, release 13.5, V13.5.37"
  exit 0
fi
echo "${@: -1}" >>"$LOG"
while [[ $# -gt 1 ]]; do
  if [[ "$1" == -o ]]; then echo object >"$2"; fi
  shift
done
spilled=0
if [[ "$1" == */sample.cu ]]; then spilled="$SPILLED"; fi
echo "ptxas info    : Compiling entry function '_Z17PlayedOneKernelEv' for 'sm_120f'" >&2
echo "    0 bytes stack frame, $spilled bytes spill stores, 0 bytes spill loads" >&2
echo "ptxas info    : Used 40 registers, used 1 barriers" >&2
"""


class NvccSummary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.nvcc = self.folder / "nvcc"
        self.nvcc.write_text(NVCC)
        self.nvcc.chmod(0o755)
        self.json = self.folder / "summary.json"
        self.log = self.folder / "log"

    def call(self, *arguments, spilled=0):
        """(exit status, its last line, the sources that were compiled)."""
        self.log.write_text("")
        variables = dict(os.environ, LOG=str(self.log), SPILLED=str(spilled), CCACHE_DISABLE="1")
        command = [sys.executable, "-B", SCRIPT, "--nvcc", self.nvcc, "--json", self.json]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env=variables, timeout=120
        )
        self.assertEqual(done.stderr, "")
        compiled = [Path(line).name for line in self.log.read_text().splitlines()]
        return done.returncode, done.stdout.splitlines()[-1], compiled

    def rows(self):
        return json.loads(self.json.read_text())["rows"]

    def test_each_source_is_compiled_once_and_again_when_it_has_changed(self):
        code, said, compiled = self.call("sm_120f")
        self.assertEqual((code, compiled), (0, SOURCES))
        self.assertIn(f"{len(SOURCES)} of {len(SOURCES)} compiled, 0 with spills, 0 left", said)
        self.assertEqual(self.call("sm_120f")[2], [])
        self.assertEqual(self.call("sm_120f", "sm_80")[2], SOURCES)
        result = json.loads(self.json.read_text())
        changed = next(row for row in result["rows"] if row["source"] == "embed.cu")
        changed["digest"] = "of another text"
        self.json.write_text(json.dumps(result))
        self.assertEqual(self.call(changed["arch"])[2], ["embed.cu"])

    def test_what_time_does_not_allow_is_counted(self):
        code, said, compiled = self.call("--limit", "1e-9", "sm_120f")
        self.assertEqual((code, compiled), (0, []))
        self.assertIn(f"{len(SOURCES)} left over", said)

    def test_a_spill_is_an_error_and_the_table_says_it(self):
        code, said, _ = self.call("sm_120f", spilled=8)
        self.assertEqual(code, 1)
        self.assertIn("1 with spills", said)
        self.call("sm_90a")
        result = json.loads(self.json.read_text())
        left_out = ("sm_120f", "route.cu")
        result["rows"] = [
            row for row in result["rows"] if (row["arch"], row["source"]) != left_out
        ]
        table = readme_tables.nvcc_summary(result)
        self.assertIn("| sm_90a (13.5) | sm_120f (13.5) |", table[0])
        cells = {row.split(" | ")[0].strip("| "): row for row in table[2:]}
        self.assertTrue(cells["sample.cu"].endswith("| 40 | 40, 8 B spilled |"))
        self.assertTrue(cells["route.cu"].endswith("| 40 | not compiled |"))


if __name__ == "__main__":
    unittest.main()
