"""`baton pull hf:...` against a hub on loopback: redirect, resume, checksum, refusals."""

import hashlib
import http.server
import os
import re
import subprocess
import threading

import pytest

from baton_server import BIN

CONTENT = bytes(range(256)) * 4096


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers like a model hub; class attributes choose what goes wrong."""

    cut_after = None
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    ranges = []

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        if "missing" in self.path:
            self.send_error(404)
            return
        if self.path.startswith("/org/repo/resolve/main/"):
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
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        if body:
            piece = CONTENT[begin:]
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
    Hub.cut_after, Hub.ranges, Hub.sha256 = None, [], hashlib.sha256(CONTENT).hexdigest()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "BATON_HOME": str(tmp_path),
    }

    def pull(name="hf:org/repo/sub/m.gguf"):
        return subprocess.run(
            [BIN, "pull", name], env=env, capture_output=True, text=True, timeout=60
        )

    yield pull, tmp_path / "models"
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


def test_a_wrong_checksum_is_refused(hub):
    pull, models = hub
    Hub.sha256 = "0" * 64
    result = pull()
    assert result.returncode == 1 and "sha256" in result.stderr
    assert not (models / "m.gguf").exists()


def test_refusals(hub):
    pull, _ = hub
    for name, text in [
        ("hf:org/repo/missing.gguf", "does not exist"),
        ("hf:org/repo", "hf:ORG/REPO/FILE"),
        ("hf:org/../m.gguf", "hf:ORG/REPO/FILE"),
        ("hf:org/repo/m.bin", ".gguf"),
        ("smolm2:135m", "smollm2:135m"),
    ]:
        result = pull(name)
        assert result.returncode == 1, name
        assert text in result.stderr
