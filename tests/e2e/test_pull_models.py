"""What `pull`, `list` and `rm` say of models that are not whole, or are none."""

import re

import pytest

from test_pull_shared import CONTENT, LIMIT_S, NAME, PARTS, baton, folder, hub, run, start, wait_for

__all__ = ["folder", "hub"]  # fixtures


def test_a_download_that_broke_off_is_listed_and_goes_on_or_is_removed(hub, tmp_path, folder):
    hub.hold_at = 300_000
    pull = start(tmp_path, hub.url)
    assert hub.held.wait(LIMIT_S)
    wait_for("bytes", lambda: (folder / "m.gguf.part").stat().st_size > 0)
    removed = baton(tmp_path, hub.url, "rm", NAME)
    assert removed.returncode == 1 and "downloading" in removed.stderr
    pull.kill()
    pull.communicate(timeout=LIMIT_S)
    listed = baton(tmp_path, hub.url, "list").stdout
    told = rf"org--repo/m.gguf .*incomplete, .* KiB of 1 MiB; `baton pull {NAME}` goes on.*"
    assert re.fullmatch(told, listed.strip()), listed
    served = baton(tmp_path, hub.url, "inspect", "org--repo/m.gguf")
    assert served.returncode == 1 and "incomplete" in served.stderr
    removed = baton(tmp_path, hub.url, "rm", NAME)
    assert removed.returncode == 0, removed.stderr
    assert not folder.exists()
    assert baton(tmp_path, hub.url, "list").stdout.startswith("no models")


def test_the_missing_part_of_a_split_model_is_told(hub, tmp_path, folder):
    hub.files.update(PARTS)
    assert run(tmp_path, hub.url, "hf:org/repo/big-00001-of-00003.gguf").returncode == 0
    (folder / "big-00003-of-00003.gguf").rename(folder / "big-00003-of-00003.gguf.part")
    listed = baton(tmp_path, hub.url, "list").stdout
    assert "incomplete, 2 of 3 parts and 97.7 KiB; " in listed, listed
    assert "`baton pull hf:org/repo/big-00001-of-00003.gguf` goes on" in listed
    assert baton(tmp_path, hub.url, "rm", "hf:org/repo").returncode == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    "content", [b"<!doctype html>", b'{"error":"gone"}', b"version https://x", b"GGU", b""]
)
def test_a_text_in_place_of_a_model_is_refused_by_name(hub, tmp_path, folder, content):
    hub.files["org/repo/m.gguf"] = content
    hub.names_sha256 = False
    result = run(tmp_path, hub.url)
    assert result.returncode == 1 and "m.gguf at the hub is no GGUF file" in result.stderr
    assert content[:7].decode().replace('"', '\\"') in result.stderr
    assert not folder.exists()
    # One of an older release does not count as there.
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(content)
    hub.files["org/repo/m.gguf"] = CONTENT
    result = run(tmp_path, hub.url)
    assert result.returncode == 0 and "fetching it again" in result.stderr, result.stderr
    assert (folder / "m.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [bytes(range(200, 256)) * 1000, b"named by its digest " * 1000],
    ids=["bytes", "text"],
)
def test_a_file_of_the_digest_that_the_hub_names_is_kept_as_it_is(hub, tmp_path, folder, content):
    hub.files["org/repo/m.gguf"] = content
    for _ in range(2):
        result = run(tmp_path, hub.url)
        assert result.returncode == 0, result.stderr
        assert (folder / "m.gguf").read_bytes() == content
    assert "the hub was not asked" in result.stderr


def test_bytes_without_a_digest_are_taken_for_a_model(hub, tmp_path, folder):
    hub.files["org/repo/m.gguf"] = bytes(range(256)) * 1000
    hub.names_sha256 = False
    result = run(tmp_path, hub.url)
    assert result.returncode == 0 and "names no sha256" in result.stderr, result.stderr
    assert (folder / "m.gguf").read_bytes() == bytes(range(256)) * 1000


def test_a_file_that_was_not_checked_is_fetched_anew_when_the_hub_names_another(
    hub, tmp_path, folder
):
    hub.files["org/repo/m.gguf"] = bytes(range(256)) * 1000
    hub.names_sha256 = False
    assert run(tmp_path, hub.url).returncode == 0
    hub.files["org/repo/m.gguf"] = CONTENT
    hub.names_sha256 = True
    result = run(tmp_path, hub.url)
    assert result.returncode == 0 and "fetching it again" in result.stderr, result.stderr
    assert (folder / "m.gguf").read_bytes() == CONTENT


def test_a_hub_that_redirects_in_a_circle_is_named(hub, tmp_path, folder):
    hub.is_circle = True
    result = run(tmp_path, hub.url)
    assert result.returncode == 1 and not folder.exists()
    assert "redirects in a circle: 5 redirects" in result.stderr
    assert hub.url in result.stderr and "secret" not in result.stderr


def test_a_chain_of_redirects_that_is_too_long_is_no_circle(hub, tmp_path, folder):
    hub.is_chain = True
    result = run(tmp_path, hub.url)
    assert result.returncode == 1 and not folder.exists()
    assert "redirects too often: 5 redirects were followed and the next came, to " in result.stderr
    assert "xxxxxx; see" in result.stderr and "circle" not in result.stderr
    assert hub.url in result.stderr and "secret" not in result.stderr


@pytest.mark.parametrize("name", [NAME, "hf:org/repo", "hf:org/repo:Q4_0"])
def test_a_wrong_served_name_costs_no_download(hub, tmp_path, name):
    hub.files["org/repo/m-Q4_0.gguf"] = CONTENT
    if not name.endswith("Q4_0"):
        del hub.files["org/repo/m-Q4_0.gguf"]
    result = baton(tmp_path, hub.url, "serve", name, "--served-model-name", "other=a")
    assert result.returncode == 2 and "other" in result.stderr, result.stderr
    assert [path for path in hub.gets() if not path.startswith("/api/")] == []


def test_control_characters_of_a_name_do_not_reach_the_terminal(hub, tmp_path, folder):
    folder.mkdir(parents=True)
    (folder / "a\x1b[31m\nb\u202e.gguf").write_bytes(CONTENT)
    (folder / "schön.gguf").write_bytes(CONTENT)
    result = baton(tmp_path, hub.url, "list")
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and "\x1b" not in result.stdout and "\u202e" not in result.stdout
    assert lines[0].startswith('"org--repo/a\\x1b[31m\\nb\\xe2\\x80\\xae.gguf"'), lines
    assert lines[1].startswith("org--repo/schön.gguf ")
