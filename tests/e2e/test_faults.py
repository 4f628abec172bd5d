"""Processes killed, frozen and cut off while requests run: the answers are those of a quiet run.

The short form of scripts/chaos.sh; both use fault_scenarios.py.
"""

import collections
import subprocess

import pytest

from baton_server import BIN, PATIENT, START_LIMIT_S, Server, wait_until
from fault_scenarios import (
    CUT_REQUEST,
    ProxyCut,
    abort_storm,
    any_token,
    cut_at_index,
    cut_link,
    damaged_link,
    exceed_memory,
    freeze_worker,
    in_decode,
    in_prefill,
    kill_router,
    kill_worker,
    only,
    reuse_ports,
)
from fault_work import Load, Work, audit_ledger, fill_pool, pool_args, wait_clean
from memory_group import MemoryGroup
from roles_cluster import RolesCluster

NUM_BLOCKS = 96
WIDTH = 12


def check(result):
    print(result)
    assert result["problems"] == []


@pytest.fixture(scope="module")
def cluster():
    """Two prefill and two decode workers under `serve`."""
    args = ("--prefill", "2", "--decode", "2", *PATIENT, *pool_args(NUM_BLOCKS))
    with Server(*args) as running:
        yield running
        # After all that was done to it: every block can be had, and no block has a lost owner.
        wait_clean(running)
        fill_pool(running, num_decode=2)
        code, ledger = audit_ledger(running)
        assert code == 0 and ledger["clean"], ledger


@pytest.fixture(scope="module")
def work(cluster):
    made = Work(seed=5, num=12, max_prompt=300, max_tokens=32).record(cluster)
    ends = [end for _, _, _, finish in made.expected for end in finish.values()]
    assert "stop" in ends and "length" in ends, "the mix has answers of both ends"
    return made


def test_a_killed_decode_worker_changes_no_answer(cluster, work):
    result = kill_worker(cluster, work, in_decode("decode-0"), only("decode-0"), WIDTH)
    check(result)
    assert result["resumed"] > 0 and result["interrupted"] > 0, "it was killed in the middle"


def test_a_killed_prefill_worker_changes_no_answer():
    """Without a prefix cache each prompt is computed again, so that the kill meets one."""
    args = ["--prefill", "2", "--decode", "2", *pool_args(NUM_BLOCKS), "--prefix-cache", "off"]
    with Server(*PATIENT, *args) as cluster:
        work = Work(seed=8, num=12, max_prompt=300, max_tokens=8)
        for fields in work.requests[::3]:  # long enough to be met
            fields.update(prompt_token_ids=list(range(1000, 1300)))
        work.record(cluster)
        result = kill_worker(cluster, work, in_prefill("prefill-0"), only("prefill-0"), WIDTH)
        check(result)
        assert result["interrupted"] > 0, "it was killed in the middle of a prompt"


def test_a_frozen_worker_is_fenced_and_comes_back(cluster, work):
    result = freeze_worker(cluster, work, in_decode("decode-0"), only("decode-0"), 3.5, WIDTH)
    check(result)
    assert result["resumed"] > 0, "it was frozen in the middle"


def test_aborts_touch_nobody_else(cluster, work):
    check(abort_storm(cluster, work, num_aborts=60, num_clients=4, width=8))


def test_a_killed_router_breaks_streams_visibly_and_holds_nothing(cluster, work):
    check(kill_router(cluster, work, num_streams=4, width=WIDTH))


@pytest.fixture(scope="module")
def roles():
    """A cluster over tcp, with a fault proxy before each decode worker and pools of 24 blocks."""
    args = ["--transport", "tcp", *pool_args(24)]
    with RolesCluster(2, 2, args, proxied=True, role_args={"router": PATIENT}) as running:
        yield running
        wait_clean(running)
        fill_pool(running, num_decode=2)


@pytest.fixture(scope="module")
def small_work(roles):
    return Work(seed=6, num=12, max_prompt=200, max_tokens=12).record(roles)


def test_flipped_and_late_bytes_reach_no_answer(roles, small_work):
    for proxy in roles.proxies.values():
        proxy.faults.flips_per_mib = 1.0
        proxy.faults.late_share = 0.02
        proxy.faults.hold_share = 0.02
        proxy.faults.late_s = 0.4
    seen = collections.Counter()

    def all_has_happened():
        result = damaged_link(roles, small_work, width=6, rounds=2)
        check(result)
        seen.update({key: result[key] for key in ("flips", "late", "held", "refused")})
        return len(+seen) == 4

    # Links that were late rest for a while, and carry less. A refused slice is one whose damage was
    # noticed by its checksum, and that was asked for again.
    wait_until(all_has_happened, 300, "each damage has met a hand-off")
    for proxy in roles.proxies.values():
        proxy.faults.flips_per_mib = proxy.faults.late_share = proxy.faults.hold_share = 0.0


def test_a_one_way_partition_changes_no_answer(roles, small_work):
    cut = ProxyCut(roles, "decode-0")

    def a_hand_off_has_met_it():
        result = cut_link(roles, small_work, any_token, cut, cut_s=4.0, width=6)
        check(result)
        return result["waited"] + result["resumed"] > 0

    # A fast machine may end a round's hand-offs to this worker before the cut, and a link that was
    # late a test ago rests for a while.
    wait_until(a_hand_off_has_met_it, 300, "a hand-off has met the cut")


def test_a_second_process_with_a_living_workers_id_disturbs_nobody(roles, small_work):
    args = list(roles.roles["decode-0"].args)
    for flag in ("--listen", "--kv-listen", "--admin"):
        args[args.index(flag) + 1] = "127.0.0.1:0"
    second = subprocess.Popen(
        [BIN, "decode", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with Load(roles, small_work, width=4) as load:
        try:
            _, error = second.communicate(timeout=START_LIMIT_S + 30)
        finally:
            second.kill()
    assert second.returncode == 1
    assert "the worker id decode-0 is taken by another process that lives" in error
    assert load.num_done > 0 and load.problems == []
    wait_clean(roles)


@pytest.mark.parametrize("victim", ["decode-0", "prefill-0"])
def test_ports_are_reused_by_the_next_life(roles, small_work, victim):
    check(reuse_ports(roles, small_work, victim))


@pytest.mark.parametrize("victim", ["decode-1", "prefill-1"])
def test_a_worker_that_exceeds_its_memory_limit_changes_no_answer(roles, small_work, victim):
    if why_not := MemoryGroup.why_not():
        pytest.skip(why_not)
    check(exceed_memory(roles, small_work, victim))


def test_an_answer_survives_the_loss_of_its_decode_worker_at_any_token(roles):
    work = Work(seed=1, num=0)
    work.requests = [CUT_REQUEST]
    work.record(roles)
    for index in range(1, 64, 21):  # scripts/chaos.sh takes every one
        result = cut_at_index(roles, work, index)
        check(result)
        assert result["resumed"] == 1, f"killed at token {index}, but it was not resumed"
