"""The marks of these tests."""


def pytest_configure(config):
    config.addinivalue_line("markers", "long: for the full tier alone (tests/README.md)")
