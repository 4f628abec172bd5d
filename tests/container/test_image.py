"""The images: what is in the archive, that it can be built again, and that router, prefill and
decode serve from it as a pod would start them: its root read-only, as its user, without rights.

`cuda` is written from the dynamic program of this build, or from BATON_CUDA_BIN, that of a build
with CUDA (and BATON_NCCL, a libnccl.so.2), which then computes on the processor here."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "benchmarks"))
from machine import free_port  # noqa: E402

BINARY = os.environ["BATON_STATIC_BIN"]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_ARCHIVE_BYTES = {"cpu": 50_000_000, "cuda": 1_200_000_000}
UID = "65532"
START_LIMIT_S = 60


def build(*args):
    """Runs build_image.py and gives its line of JSON."""
    command = [sys.executable, "-B", str(SOURCE / "deploy/container/build_image.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def inputs(kind):
    """The arguments of build_image.py for an image of that kind."""
    if kind == "cpu":
        return ["--binary", BINARY]
    binary = os.environ.get("BATON_CUDA_BIN", os.environ["BATON_BIN"])
    nccl = os.environ.get("BATON_NCCL")
    return ["--cuda", "--binary", binary, *(["--nccl", nccl] if nccl else [])]


@pytest.fixture(
    scope="module", name="kind", params=["cpu", pytest.param("cuda", marks=pytest.mark.long)]
)
def fixture_kind(request):
    return request.param


@pytest.fixture(scope="module", name="archive")
def fixture_archive(kind, tmp_path_factory):
    out = tmp_path_factory.mktemp("image") / "baton.tar"
    return out, build(*inputs(kind), "--out", str(out), "--name", "localhost/baton:test")


def members(path):
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}


def image_config(files):
    manifest = json.loads(files["index.json"])["manifests"][0]["digest"]
    manifest = json.loads(files["blobs/sha256/" + manifest.removeprefix("sha256:")])
    config = files["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")]
    return manifest, json.loads(config)


def test_every_blob_has_the_digest_that_names_it_and_the_index_leads_to_all(archive):
    out, report = archive
    files = members(out)
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert hashlib.sha256(data).hexdigest() == Path(name).name
    manifest, config = image_config(files)
    named = {d["digest"] for d in [manifest["config"], *manifest["layers"]]} | {report["digest"]}
    assert {"sha256:" + Path(n).name for n in files if n.startswith("blobs/")} == named
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert json.loads(files["manifest.json"])[0]["RepoTags"] == ["localhost/baton:test"]


def test_the_image_is_small_and_runs_as_nobody_special(kind, archive):
    out, report = archive
    assert report["archive_bytes"] == out.stat().st_size < MAX_ARCHIVE_BYTES[kind]
    _, config = image_config(members(out))
    assert config["config"]["User"] == f"{UID}:{UID}"
    assert config["config"]["Entrypoint"] == ["/usr/bin/baton"]
    for_gpu = "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["config"]["Env"]
    assert for_gpu == (kind == "cuda")
    print(f"archive {report['archive_bytes']} bytes, binary {report['binary_bytes']} bytes")


def test_the_same_inputs_give_the_same_digest_and_others_another(kind, archive, tmp_path):
    out, report = archive
    again = build(*inputs(kind), "--out", str(tmp_path / "b.tar"), "--name",
                  "localhost/baton:test")  # fmt: skip
    assert again["digest"] == report["digest"]
    assert (tmp_path / "b.tar").read_bytes() == out.read_bytes()
    os.environ["SOURCE_DATE_EPOCH"] = "1"
    try:
        other = build(*inputs(kind), "--out", str(tmp_path / "c.tar"))
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]
    assert other["digest"] != report["digest"]


def test_the_sbom_names_what_is_linked(kind, archive):
    out, report = archive
    sbom = json.loads(Path(str(out) + ".spdx.json").read_text(encoding="utf-8"))
    assert sbom["spdxVersion"] == "SPDX-2.3"
    names = {row["name"] for row in sbom["packages"]}
    assert report["sbom_packages"] == len(sbom["packages"])
    # One of each way in: link line, compiler, header-only, Cargo.lock.
    assert {"libgrpc-dev", "libssl-dev", "libc6-dev", "nlohmann-json3-dev", "tokenizers"} <= names
    beside = [r for r in sbom["relationships"] if r["relationshipType"] == "DYNAMIC_LINK"]
    if kind == "cuda":
        by_id = {row["SPDXID"]: row["name"] for row in sbom["packages"]}
        assert {"libc6", "libstdc++6"} <= {by_id[r["relatedSpdxElement"]] for r in beside}
    else:
        assert not beside
    ids = [row["SPDXID"] for row in sbom["packages"]]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", i) for i in ids)


@pytest.mark.parametrize("args, error", [
    (["--binary", os.environ["BATON_BIN"]], "is not static"),
    (["--cuda", "--binary", BINARY], "is static"),
])  # fmt: skip
def test_the_other_kind_of_binary_is_refused(args, error, tmp_path):
    command = [sys.executable, "-B", str(SOURCE / "deploy/container/build_image.py")]
    done = subprocess.run(
        [*command, *args, "--out", str(tmp_path / "x.tar")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert error in done.stderr and not (tmp_path / "x.tar").exists()


class Pod:
    """One process of the image: own mount and process namespaces, root read-only, as the image's
    user, no capabilities, no new privileges."""

    def __init__(self, root, models, log, *args):
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, "-B",
                 str(Path(__file__).with_name("confine.py")), str(root), str(models), *args],
                stdout=out, stderr=subprocess.STDOUT, env={"PATH": os.environ["PATH"]},
            )  # fmt: skip

    def pid(self):
        """The process id of baton itself, as the host sees it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text(encoding="utf-8").split()[0])

    def stop(self):
        """SIGTERM to baton; its exit code."""
        if self.process.poll() is None:
            os.kill(self.pid(), 15)
        return self.process.wait(timeout=START_LIMIT_S)


def get(address, path, body=None):
    """Status and text of one HTTP request; (0, reason) when nobody answers."""
    request = urllib.request.Request(f"http://{address}{path}", data=body)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_ready(address, pods):
    deadline = time.monotonic() + START_LIMIT_S
    while get(address, "/readyz")[0] != 200:
        alive = all(pod.process.poll() is None for pod in pods)
        if not alive or time.monotonic() > deadline:
            pytest.fail("\n".join(Path(pod.log).read_text(encoding="utf-8") for pod in pods))
        time.sleep(0.05)


@pytest.fixture(scope="module", name="root")
def fixture_root(archive, tmp_path_factory):
    """The image's root filesystem, or a skip that says what this machine does not let us do."""
    if os.geteuid() != 0:
        pytest.skip("starting the image needs root (mount, chroot)")
    if shutil.which("unshare") is None:
        pytest.skip("starting the image needs unshare (util-linux)")
    allowed = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"],
                             capture_output=True, text=True, check=False)  # fmt: skip
    if allowed.returncode != 0:
        pytest.skip(f"no new namespaces here: {allowed.stderr.strip()}")
    root = tmp_path_factory.mktemp("root")
    root.parent.parent.chmod(0o755)
    root.parent.chmod(0o755)
    root.chmod(0o755)
    manifest, _ = image_config(members(archive[0]))
    with tarfile.open(archive[0]) as tar:
        for layer in manifest["layers"]:
            blob = tar.extractfile("blobs/sha256/" + layer["digest"].removeprefix("sha256:"))
            with tarfile.open(fileobj=blob) as files:
                files.extractall(root)
    return root


def models_folder():
    home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache/baton"))
    assert (home / "models" / MODEL).is_file(), "the demo model is missing: baton pull smollm2:135m"
    return home / "models"


def test_it_serves_with_a_read_only_root_as_its_user(root, tmp_path):
    grpc, http, router_admin, prefill_admin, decode_admin = (
        f"127.0.0.1:{free_port()}" for _ in range(5)
    )
    worker = ["--router", grpc, "--model", f"/models/{MODEL}", "--kv-memory=64MiB",
              "--max-context=256", "--threads=1"]  # fmt: skip
    models = models_folder()

    def start(name, *args):
        return Pod(root, models, tmp_path / f"{name}.log", *args)

    pods = [start("router", "router", "--grpc", grpc, "--http", http, "--admin", router_admin)]
    try:
        pods += [
            start("prefill", "prefill", "--worker-id=prefill-0", "--admin", prefill_admin, *worker),
            start("decode", "decode", "--worker-id=decode-0", "--admin", decode_admin, *worker),
        ]
        for address in (prefill_admin, decode_admin, router_admin):
            wait_ready(address, pods)
        question = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        status, text = get(http, "/v1/completions", json.dumps(question).encode())
        assert status == 200, text
        answer = json.loads(text)
        assert answer["usage"]["completion_tokens"] == 4
        assert answer["timings"]["path"] == "disagg", "both workers took part"
        for pod in pods:
            check_confined(pod, root)
        assert [pod.stop() for pod in reversed(pods)] == [0, 0, 0]
    finally:
        for pod in pods:
            pod.process.kill()
            pod.process.wait()


def check_confined(pod, root):
    """Checks what the kernel says of the running process."""
    proc = Path(f"/proc/{pod.pid()}")
    status = (proc / "status").read_text(encoding="utf-8")
    field = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert field["Uid"].split() == [UID] * 4 and field["Gid"].split() == [UID] * 4
    assert field["CapEff"] == field["CapBnd"] == "0" * 16 and field["NoNewPrivs"] == "1"
    assert os.readlink(proc / "exe") == "/usr/bin/baton" or os.readlink(proc / "root") == str(root)
    mountinfo = (proc / "mountinfo").read_text(encoding="utf-8")
    root_mount = [m for m in map(str.split, mountinfo.splitlines()) if m[4] == "/"]
    assert root_mount and "ro" in root_mount[-1][5].split(",")
