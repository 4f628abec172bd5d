"""`baton doctor` as the programs that call it see it: exit codes, scripts, and the rights of an
init container."""

import json
import os
import shutil
import subprocess
import tempfile

import pytest

from baton_server import BIN

PORTS = [f"--{name}=127.0.0.1:0" for name in ("http", "grpc", "admin")]


def doctor(*args, prefix=(), env=None):
    return subprocess.run(
        [*prefix, BIN, "doctor", *args], capture_output=True, text=True, timeout=120, env=env
    )


def by_id(result):
    return {check["id"]: check for check in json.loads(result.stdout)["checks"]}


def test_the_fix_plan_changes_nothing_and_is_a_script():
    def settings():
        paths = ("/proc/sys/vm/overcommit_memory", "/proc/sys/net/core/somaxconn", "/proc/swaps")
        return [open(path).read().split("\n")[0] for path in paths]

    before = settings()
    plan = doctor("--fix-plan", *PORTS)
    assert plan.stdout.startswith("#!/bin/sh\n")
    check = subprocess.run(["sh", "-n"], input=plan.stdout, text=True, capture_output=True)
    assert check.returncode == 0, check.stderr
    assert settings() == before


def test_a_missing_model_is_exit_1_and_names_the_command(tmp_path):
    result = doctor(
        "--json", "--model=smollm2:135m", *PORTS, env={**os.environ, "BATON_HOME": str(tmp_path)}
    )
    assert result.returncode == 1
    assert "baton pull smollm2:135m" in by_id(result)["models"]["value"]


def test_what_serve_would_refuse_is_no_model(tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_text("no model at all")
    for model in (path, tmp_path):
        result = doctor("--json", f"--model={model}", *PORTS)
        assert result.returncode == 1
        assert str(model) in by_id(result)["models"]["value"]


def can_take_rights_away():
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        return False
    # A chroot whose root is no mount point has no mounts of its own to change.
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(
    not can_take_rights_away(),
    reason="needs root, a root that is a mount point, unshare and setpriv",
)
def test_it_runs_as_an_init_container():
    """No write to the root file system, no capability, an ordinary user, no home."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        binary = shutil.copy(BIN, folder)
        command = [binary, "doctor", "--json", "--workers=1", "--kv-memory=64MiB", *PORTS]
        confine = (
            "mount --make-rprivate / && mount -o remount,bind,ro / && exec setpriv --reuid=65534 "
            '--regid=65534 --clear-groups --no-new-privs --bounding-set=-all "$@"'
        )
        result = subprocess.run(
            ["unshare", "--mount", "sh", "-c", confine, "sh", *command],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        )
    assert result.stdout, result.stderr
    checks = by_id(result)
    assert len(checks) >= 25
    container = checks["container"]
    assert container["verdict"] == "ok", container
    assert container["value"] == "kubernetes, user 65534, root file system read-only"
    for name in ("kv_pool", "port_http", "host_id"):
        assert checks[name]["verdict"] == "ok", checks[name]
    for name in ("link_shm", "link_tcp"):
        assert checks[name]["verdict"] in ("ok", "warning"), checks[name]
