"""A stage of the built baton_gpu_check on the runner, for the tests of it."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""  # set by the test's main
FORM = os.environ.get("BATON_TEST_FORM", "")  # short or long; else both


def long(test):
    """Marks a test of the full tier alone (tests/README.md)."""
    test.is_long = True
    return test


class FormCase(unittest.TestCase):
    """Skips the tests of the other form."""

    def setUp(self):
        is_long = hasattr(getattr(self, self._testMethodName), "is_long")
        if FORM and is_long != (FORM == "long"):
            self.skipTest(f"not of the {FORM} form")


class StageCase(FormCase):
    whole_runs = {}  # by arguments, the file j of a run that passed

    def setUp(self):
        super().setUp()
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

    def whole_run(self, *arguments):
        """The checks of a run that passes, with its file j and no other of its files; a run with
        the same arguments is made once."""
        file = self.folder / "j"
        if arguments in self.whole_runs:
            file.write_text(self.whole_runs[arguments])
        else:
            code, checks = self.run_stage(*arguments)
            self.assertEqual(code, 0, checks)
            self.whole_runs[arguments] = file.read_text()
        checks = json.loads(file.read_text())["checks"]
        return {check["name"]: check for check in checks}
