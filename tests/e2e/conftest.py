"""Fixtures that all end-to-end tests share."""

import os

import pytest

# Its assertions say their values too.
pytest.register_assert_rewrite("same_bits")

from baton_server import Server  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "long: for the full tier alone (tests/README.md)")


@pytest.fixture(scope="session", autouse=True)
def no_sanitizer_reports(tmp_path_factory):
    """In a sanitizer build any report fails the run.

    Workers write to log files that a passed test removes. Nobody sees the exit status of a worker
    that is killed or replaced. The reports therefore go to a folder of their own.
    """
    folder = tmp_path_factory.mktemp("sanitizer")
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        os.environ[name] = f"{os.environ.get(name, '')}:log_path={folder / 'report'}"
    yield
    reports = [path.read_text(errors="replace") for path in sorted(folder.iterdir())]
    assert not reports, "\n".join(reports)


@pytest.fixture(scope="session")
def server():
    """One disaggregated server over the automatic transport, for tests that only read from it."""
    with Server() as running:
        yield running
