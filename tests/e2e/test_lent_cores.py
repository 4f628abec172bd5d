"""A worker that is handed something else than its server's core budget: it says what is wrong in
one line, and computes with the threads of its own."""

import os

import pytest

from lone_worker import lines_with, not_memory


def not_sealed():
    return os.memfd_create("cores", os.MFD_ALLOW_SEALING)


@pytest.mark.parametrize(
    ("make", "value", "said"),
    [
        (not_memory, "{} 0", "core budget: descriptor {} is no memory file"),
        (not_sealed, "{} 0", "core budget: the memory file has seals"),
        (not_memory, "cores", "BATON_CORES_FD=cores is no descriptor and member"),
    ],
)
def test_a_budget_that_is_none_is_named_and_the_worker_goes_on(make, value, said):
    fd = make()
    lines = lines_with(fd, "BATON_CORES_FD", value.format(fd))
    named = [line for line in lines if "lends no cores" in line]
    assert len(named) == 1, lines
    assert said.format(fd) in named[0]
