"""`baton completion`: what a shell offers with the script."""

import os
import shutil
import subprocess

import pytest

from baton_server import BIN

SHELLS = ("bash", "zsh", "fish")


def script(shell):
    run = subprocess.run([BIN, "completion", shell], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


def offered(*words):
    """What bash offers for the last word."""
    asked = f"""{script("bash")}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
_baton; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    run = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    return run.stdout.split()


def test_bash_offers_subcommands_and_the_flags_of_each():
    assert offered(BIN, "ser") == ["serve"]
    assert {"serve", "pull", "completion"} <= set(offered(BIN, ""))
    assert offered(BIN, "serve", "--prefix") == ["--prefix-cache"]
    assert {"--http", "--help", "--kv-memory"} <= set(offered(BIN, "serve", "m.gguf", "--"))
    assert offered(BIN, "pull", "--http") == []
    assert offered(BIN, "nosuch", "--") == []
    assert offered(BIN, "serve", "m.g") == []  # bash itself offers files


def test_bash_offers_shells_codes_and_models():
    assert offered(BIN, "completion", "") == list(SHELLS)
    assert offered(BIN, "explain", "queue_f") == ["queue_full"]
    lines = subprocess.run([BIN, "list"], capture_output=True, text=True, timeout=60).stdout
    models = [line.split()[0] for line in lines.splitlines()]
    assert "smollm2:135m" in models
    for command in ("serve", "run", "show", "inspect", "rm"):
        assert offered(BIN, command, "") == models, command
    assert offered(BIN, "serve", "x", "smollm2") == []
    assert offered(BIN, "top", "smollm2") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_is_one_of_its_shell(shell):
    text = script(shell)
    assert "COMMANDS" not in text and " serve " in text.replace("'", " ").replace('"', " ")
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=60)


def test_other_shells_are_refused():
    for shell, text in (("", "missing"), ("tcsh", "'tcsh'"), ("bahs", "did you mean bash?")):
        args = [BIN, "completion", *([shell] if shell else [])]
        run = subprocess.run(args, capture_output=True, text=True, timeout=60, env=os.environ)
        assert run.returncode == 2 and text in run.stderr, run.stderr
        assert run.stdout == ""
