"""A stage of the built baton_gpu_check on the runner, for the tests of it."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""  # set by the test's main


class StageCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_stage(self, stage, *arguments, **environment):
        command = [PROGRAM, "--stage", str(stage), "--simt", "--json", self.folder / "j"]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=dict(os.environ, **environment),
        )
        result = json.loads((self.folder / "j").read_text())
        return done.returncode, {check["name"]: check for check in result["checks"]}
