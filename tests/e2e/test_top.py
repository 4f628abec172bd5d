"""`baton top` beside a running cluster."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request

import pytest

from baton_server import BIN, MODEL, complete, metric, pool_flags, wait_until


def top(*args):
    return subprocess.run([BIN, "top", *args], capture_output=True, text=True, timeout=60)


def test_one_frame_names_every_worker_and_link(server):
    process = subprocess.Popen(
        [BIN, "top", "--admin", server.router["admin"]], stdout=subprocess.PIPE, text=True
    )
    complete(server, prompt="A long story: " * 20, max_tokens=40)
    frame, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "\x1b" not in frame, "a pipe gets no escapes"
    for row in server.topology():
        if row["role"] != "router":
            assert row["worker_id"] in frame
    with urllib.request.urlopen(f"http://{server.router['admin']}/v1/topology") as answer:
        topology = json.load(answer)
    links = [link for row in topology["processes"] for link in row.get("links", [])]
    assert links and all(link["to"] in frame and link["transport"] in frame for link in links)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is not lent")
def test_workers_lend_each_other_their_cores(server):
    workers = [row for row in server.topology() if row["role"] != "router"]

    def all_have_lent():
        # The prompt is computed on decode's core too, the tokens on prefill's.
        complete(server, prompt="A long story: " * 20, max_tokens=20)
        return all(metric(w, "baton_lent_core_seconds_total") > 0 for w in workers)

    wait_until(all_have_lent, 10, "time of lent cores")
    assert " lent" in top("--once", "--admin", server.router["admin"]).stdout


def test_topo_has_a_cell_for_each_pair_of_workers(server):
    complete(server, prompt="A long story: " * 40, max_tokens=2)
    command = [BIN, "topo", "--admin", server.router["admin"]]

    def links_with_a_speed():
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        links = json.loads(done.stdout)["links"]
        return any(link["bytes_per_s"] for link in links) and links

    links = wait_until(links_with_a_speed, 10, "the speed of a link is told")
    workers = [row for row in server.topology() if row["role"] != "router"]
    pairs = {(p["worker_id"], d["worker_id"])
             for p in workers if p["role"] == "prefill"
             for d in workers if d["role"] == "decode"}  # fmt: skip
    assert {(link["from"], link["to"]) for link in links} == pairs
    table = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert all(link["from"] in table and link["to"] in table for link in links)
    assert re.search(r"\d [MG]B/s", table)


def test_nobody_there_and_the_wrong_port_are_one_line(server):
    nobody = top("--admin", "127.0.0.1:1")
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr
    worker = next(row for row in server.topology() if row["role"] == "decode")
    wrong = top("--once", "--admin", worker["admin"])
    assert wrong.returncode == 1
    assert "not the admin port of a router" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_topo_says_why_a_link_is_down(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of another cluster")
    args = ["--router", server.router["grpc"], "--model", MODEL, "--worker-id", "prefill-9"]
    args += ["--cluster-secret-file", str(secret), "--threads", "1", *pool_flags(MODEL)]
    topo = [BIN, "topo", "--admin", server.router["admin"]]

    def reason():
        done = subprocess.run([*topo, "--json"], capture_output=True, text=True, timeout=60)
        links = json.loads(done.stdout)["links"]
        return next((link.get("why") for link in links if link["from"] == "prefill-9"), None)

    with open(tmp_path / "prefill.log", "w") as log:
        prefill = subprocess.Popen([BIN, "prefill", *args], stdout=log, stderr=log)
    try:
        why = wait_until(reason, 60, "the router knows why nothing connects")
        rows = server.get("/v1/topology")[2]["processes"]
        admin = next(row["admin"] for row in rows if row["worker_id"] == "prefill-9")
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"http://{admin}/readyz", timeout=60)
        text = subprocess.run(topo, capture_output=True, text=True, timeout=60).stdout
    finally:
        prefill.terminate()
        assert prefill.wait(60) == 0
    assert why == "decode-0 has another cluster secret"
    assert refusal.value.code == 503, "it can serve nothing"
    assert why in refusal.value.read().decode()
    assert f"prefill-9 -> decode-0: {why}\n" in text
