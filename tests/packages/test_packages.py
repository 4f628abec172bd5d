"""The packages: equal bytes twice, installed where nothing was, run to the first token, removed
without a trace; and what a machine says that lacks something.

BATON_STATIC_BIN: the static program in its build folder. BATON_PACKAGES_CHROOT: a folder with a
Debian system (debootstrap --variant=minbase bookworm FOLDER), in which the .deb is installed too.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
BINARY = os.environ["BATON_STATIC_BIN"]
MODELS = Path(os.environ.get("BATON_HOME", Path.home() / ".cache/baton")) / "models"
MODEL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIRST_TOKEN_LIMIT_S = 20


def run(*command, **more):
    more = {"capture_output": True, "text": True, "check": False, "timeout": 900, **more}
    return subprocess.run([str(part) for part in command], **more)


def package(out, *args):
    done = run(SOURCE / "scripts/package.sh", "--out", out, *args,
               env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir()}


@pytest.fixture(scope="module", name="made")
def fixture_made(tmp_path_factory):
    out = tmp_path_factory.mktemp("packages")
    return out, package(out, "--binary", BINARY)


def one(made, pattern):
    (found,) = made[0].glob(pattern)
    return found


@pytest.fixture(scope="module", name="venv")
def fixture_venv(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv")
    assert run(sys.executable, "-m", "venv", folder).returncode == 0
    before = set(folder.rglob("*"))
    begin = time.monotonic()
    done = run(folder / "bin/pip", "install", "-q", "--no-index", one(made, "*.whl"))
    assert done.returncode == 0, done.stderr
    print(f"wheel: installed in {time.monotonic() - begin:.1f} s")
    return folder, before


@pytest.fixture(scope="module", name="root")
def fixture_root(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    begin = time.monotonic()
    done = dpkg(folder, "-i", one(made, "*.deb"))
    assert done.returncode == 0, done.stderr
    print(f"deb: installed in {time.monotonic() - begin:.1f} s")
    return folder


def dpkg(root, *args):
    return run("dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless",
               f"--log={root}/dpkg.log", *args)  # fmt: skip


def seconds_to_first_token(program, home):
    """Starts `program serve` with the model at hand and streams one answer."""
    begin = time.monotonic()
    run_dir = home / "run"
    server = subprocess.Popen(
        [*map(str, program), "serve", str(MODEL), "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
         "--admin=127.0.0.1:0", f"--run-dir={run_dir}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    try:
        address = None
        while address is None or not is_ready(address):
            assert server.poll() is None, server.stderr.read()
            assert time.monotonic() - begin < 60
            time.sleep(0.05)
            address = address or http_of(run_dir / "topology.json")
        request = urllib.request.Request(
            f"http://{address}/v1/completions",
            json.dumps({"prompt": "One, two,", "max_tokens": 4, "stream": True}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.readline().startswith(b"data: {")
        return time.monotonic() - begin
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def http_of(topology):
    try:
        rows = json.loads(topology.read_text())["processes"]
    except (OSError, ValueError):
        return None
    return next((row["http"] for row in rows if row["role"] == "router"), None)


def is_ready(address):
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_the_same_inputs_give_the_same_bytes_and_the_sums_hold(made, tmp_path):
    assert package(tmp_path, "--binary", BINARY) == made[1]
    done = run("sha256sum", "-c", "SHA256SUMS", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count(": OK") == 4, done.stdout
    for path in sorted(tmp_path.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes, {made[1][path.name]}")
        assert path.stat().st_size < 40_000_000


def test_the_sbom_names_the_program_and_what_is_in_it(made, root):
    document = json.loads(one(made, "*.spdx.json").read_text())
    names = {p["name"]: p for p in document["packages"]}
    assert {"baton", "libgrpc++-dev", "libssl-dev", "libc6-dev"} <= set(names)
    digest = hashlib.sha256((root / "usr/bin/baton").read_bytes()).hexdigest()
    assert names["baton"]["checksums"][0]["checksumValue"] == digest


def test_each_subcommand_has_a_man_page_with_all_its_flags(root):
    program = root / "usr/bin/baton"
    table = re.findall(r"^  ([a-z]\S*) ", run(program, "--help").stdout, re.M)
    assert "serve" in table
    for name in table:
        page = gzip.decompress((root / f"usr/share/man/man1/baton-{name}.1.gz").read_bytes())
        text = page.decode().replace("\\-", "-")
        said = run(program, name, "--help").stdout
        for flag in re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", said, re.M):
            assert re.search(rf"^\.B .*{flag}\b", text, re.M), (name, flag)
    if shutil.which("man"):
        page = run("man", "-l", root / "usr/share/man/man1/baton-serve.1.gz").stdout
        assert "router" in page and "--http" in page


def test_the_completions_are_those_of_the_program(root):
    program = root / "usr/bin/baton"
    for shell, path in (("bash", "bash-completion/completions/baton"),
                        ("zsh", "zsh/vendor-completions/_baton"),
                        ("fish", "fish/vendor_completions.d/baton.fish")):  # fmt: skip
        assert (root / "usr/share" / path).read_text() == run(program, "completion", shell).stdout


def test_systemd_takes_the_units_of_the_package(root, tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is missing (package systemd)")
    for unit in (root / "usr/lib/systemd/system").iterdir():
        text = unit.read_text()
        assert "/usr/local" not in text
        (tmp_path / unit.name).write_text(text.replace("/usr/bin/baton", "/bin/true"))
    done = run(verify, "verify", "--man=no", tmp_path / "baton.service",
               env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})  # fmt: skip
    assert not [line for line in done.stderr.splitlines() if "baton" in line], done.stderr


def test_the_configuration_of_the_service_is_taken(root):
    # Such a run also finds a key that the program does not have.
    config = f"--config={root}/etc/baton/serve.yaml"
    done = run(root / "usr/bin/baton", "serve", config, "--no-such-flag")
    assert done.returncode == 2 and "--no-such-flag" in done.stderr


def test_the_wheel_runs_to_its_first_token_and_leaves_nothing(venv, tmp_path):
    folder, before = venv
    version = run(folder / "bin/baton", "version").stdout
    assert version.startswith("baton ")
    assert run(folder / "bin/python", "-B", "-m", "baton_llm", "version").stdout == version
    seconds = seconds_to_first_token([folder / "bin/baton"], tmp_path)
    print(f"wheel: first token after {seconds:.1f} s")
    assert seconds < FIRST_TOKEN_LIMIT_S
    assert run(folder / "bin/pip", "uninstall", "-q", "-y", "baton-llm").returncode == 0
    left = {p for p in set(folder.rglob("*")) - before if "__pycache__" not in p.parts}
    assert not [p for p in left if p.is_file()], left


def test_pip_takes_the_wheel_into_a_folder_too(made, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", tmp_path / "t"]
    done = run(*pip, one(made, "*.whl"))
    assert done.returncode == 0, done.stderr
    done = run(sys.executable, "-B", "-m", "baton_llm", "version",
               env={**os.environ, "PYTHONPATH": str(tmp_path / "t")})  # fmt: skip
    assert done.stdout.startswith("baton "), done.stderr


def test_the_deb_runs_to_its_first_token_and_a_purge_leaves_nothing(root, tmp_path):
    seconds = seconds_to_first_token([root / "usr/bin/baton"], tmp_path)
    print(f"deb: first token after {seconds:.1f} s")
    assert seconds < FIRST_TOKEN_LIMIT_S
    (root / "var/lib/baton").mkdir(parents=True)  # what a service would keep
    done = dpkg(root, "-P", "baton")
    assert done.returncode == 0, done.stderr
    left = [p for p in root.rglob("*") if p.name != "dpkg.log" and "var/lib/dpkg" not in str(p)]
    assert {str(p.relative_to(root)) for p in left} <= {"var", "var/lib"}


def test_the_deb_in_a_debian_of_its_own(made):
    chroot = os.environ.get("BATON_PACKAGES_CHROOT")
    if not chroot:
        pytest.skip("BATON_PACKAGES_CHROOT names no folder made by debootstrap")
    shutil.copy(one(made, "*.deb"), Path(chroot) / "tmp/baton.deb")
    assert run("chroot", chroot, "dpkg", "-i", "/tmp/baton.deb").returncode == 0
    assert run("chroot", chroot, "baton", "version").stdout.startswith("baton ")
    assert run("chroot", chroot, "dpkg", "-P", "baton").returncode == 0
    assert run("chroot", chroot, "sh", "-c", "ls -d /etc/baton /usr/bin/baton").returncode != 0


def test_a_processor_without_avx2_runs_and_says_what_it_lacks(tmp_path):
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("qemu-x86_64 is missing (package qemu-user)")
    old = [emulator, "-cpu", "core2duo", BINARY]
    assert run(*old, "version").stdout.startswith("baton ")
    done = run(*old, "bench", "model", MODEL, "--isa", "avx2")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and '"avx2"' in done.stderr


def test_a_processor_that_shows_avx2_alone_runs():
    """Some virtual machines hide what compilers give AVX2 code besides: mulx in checksums."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("qemu-x86_64 is missing (package qemu-user)")
    virtual = [emulator, "-cpu", "max,-bmi1,-bmi2,-fma,-f16c", BINARY]
    done = run(*virtual, "inspect", MODEL)
    assert done.returncode == 0, done.stderr


def test_a_home_that_cannot_be_written_and_no_network_are_one_line_each(tmp_path):
    env = {"HOME": "/proc", "PATH": "/usr/bin:/bin", "TMPDIR": "/proc"}
    done = run(BINARY, "pull", "smollm2:135m", env=env)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = run(BINARY, "pull", "hf:org/repo/file.gguf", env=env)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_a_program_that_is_missing_or_lies_elsewhere_is_one_line(tmp_path):
    done = run(SOURCE / "scripts/package.sh", "--binary", tmp_path / "none")
    assert done.returncode == 1 and "scripts/build.sh release baton_static" in done.stderr
    moved = shutil.copy(BINARY, tmp_path / "baton")
    done = run(SOURCE / "scripts/package.sh", "--binary", moved, "--out", tmp_path / "out")
    assert done.returncode == 1 and "build folder" in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "out").glob("*"))


def test_a_wheel_has_the_tag_of_the_symbols_that_its_program_needs():
    sys.path.insert(0, str(SOURCE / "deploy/packages"))
    import libc_needs  # noqa: PLC0415

    needs = libc_needs.Needs(("libc.so.6", "libstdc++.so.6"), 35, 30)
    assert needs.wheel_tags() == ["manylinux_2_35_x86_64"]
    assert needs.debian() == "libc6 (>= 2.35), libgcc-s1, libstdc++6 (>= 12)"
    newer = libc_needs.Needs(("libc.so.6", "libstdc++.so.6"), 36, 30)
    assert newer.wheel_tags() == ["manylinux_2_39_x86_64"]
    with pytest.raises(SystemExit, match="libcuda"):
        libc_needs.Needs(("libcuda.so.1",), 17, 0).wheel_tags()
