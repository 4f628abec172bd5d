"""Processes, faults, drains and bad starts, seen from outside."""

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from baton_server import (
    BIN,
    MODEL,
    PATIENCE_S,
    START_LIMIT_S,
    TINY,
    Server,
    complete,
    free_port,
    http_json,
    in_parallel,
    metric,
    metrics_text,
    pool_flags,
    wait_until,
)
from fault_work import stop_amid


def baton(*args, timeout=60):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=timeout)


def open_stream(server, max_tokens):
    """A raw streaming request whose first bytes have arrived."""
    host, port = server.router["http"].split(":")
    connection = socket.create_connection((host, int(port)), 300)
    fields = {"prompt": "Count: 1, 2, 3,", "max_tokens": max_tokens, "ignore_eos": True}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({**fields, **options}).encode()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    while b"data:" not in connection.recv(4096):
        pass
    return connection


def test_topology_lists_three_live_processes(server):
    rows = server.topology()
    assert sorted(r["role"] for r in rows) == ["decode", "prefill", "router"]
    for row in rows:
        os.kill(row["pid"], 0)
    assert len({r["pid"] for r in rows}) == 3
    _, _, public = server.get("/v1/topology")
    assert {p["worker_id"] for p in public["processes"]} == {r["worker_id"] for r in rows}
    for process in public["processes"]:
        if process["role"] != "router":
            assert process["ready"] is True
            assert process["kv_blocks"]["free"] > 0


def test_a_run_folder_serves_one_server(server):
    before = server.topology()
    secret = os.path.join(server.dir, "cluster-secret")
    with open(secret) as file:
        held = file.read()
    second = baton("serve", MODEL, "--run-dir", server.dir, "--http", "127.0.0.1:0")
    assert second.returncode == 1
    assert server.dir in second.stderr and "another" in second.stderr
    assert server.topology() == before
    with open(secret) as file:
        assert file.read() == held


def test_a_client_killed_mid_stream_leaves_no_block(server):
    before = metric(server.router, "baton_generation_tokens_total")
    connection = open_stream(server, 4000)
    wait_until(lambda: not server.ledger_is_clean(), 15, "blocks are held for it")
    connection.close()
    wait_until(server.ledger_is_clean, 15, "blocks are free after the client left")
    num_tokens = metric(server.router, "baton_generation_tokens_total") - before
    assert num_tokens < 4000, "it ended because its client left"


def status_of(url):
    try:
        return urllib.request.urlopen(url, timeout=PATIENCE_S).status
    except urllib.error.HTTPError as error:
        return error.code


def test_admin_ports(server):
    for row in server.topology():
        for path, wanted in [
            ("/livez", 200),
            ("/readyz", 200),
            ("/startupz", 200),
            ("/nothing", 404),
        ]:
            url = f"http://{row['admin']}{path}"
            # A process that gets no processor for a while is not ready then.
            wait_until(lambda u=url, w=wanted: status_of(u) == w, 5, (row["role"], path))
        assert "baton_" in metrics_text(row)


def test_steps_are_measured_against_the_machine(server):
    rows = {row["role"]: row for row in server.workers()}
    before = metric(rows["prefill"], "baton_step_seconds_count", 'phase="prefill"')
    fields = {"prompt": "one two three " * 40, "max_tokens": 8, "ignore_eos": True}
    server.post("/v1/completions", fields)
    after = metric(rows["prefill"], "baton_step_seconds_count", 'phase="prefill"')
    assert after > before
    assert metric(rows["decode"], "baton_step_seconds_count", 'phase="decode"') >= 7

    def ratios():
        """Both, once both are told: 10 s after the last step they are 0 again."""
        server.post("/v1/completions", fields)
        names = {"prefill": "baton_mfu_ratio", "decode": "baton_mbu_ratio"}
        found = [metric(rows[role], name) for role, name in names.items()]
        return found if all(found) else None

    # Caches and neighbours on the machine move both sides: a share, but not an exact one.
    assert all(0 < ratio < 1.5 for ratio in wait_until(ratios, 60, "shares of the machine"))
    wait_until(lambda: metric(rows["decode"], "baton_mbu_ratio") == 0, 15, "nothing runs any more")


NUM_TOKENS = 200


def test_lost_workers_come_back_and_their_requests_go_on():
    with Server() as server:
        first = {p["worker_id"]: p for p in server.topology()}
        for role in ("decode", "prefill"):
            stream = open_stream(server, NUM_TOKENS)
            # With a second token the hand-off is over.
            decode = wait_until(
                lambda: stop_amid(server, lambda row: 2 <= row["num_tokens"] < NUM_TOKENS - 50),
                60,
                "tokens flow",
            )
            victim = next(p for p in server.topology() if p["role"] == role)
            os.kill(victim["pid"], signal.SIGKILL)
            if role == "prefill":
                os.kill(decode["pid"], signal.SIGCONT)
            data = b""
            while b"[DONE]" not in data and (piece := stream.recv(65536)):
                data += piece
            assert b"[DONE]" in data and b'"error":' not in data, data[-500:]
            assert b'"finish_reason":"length"' in data
            assert b'"completion_tokens":%d' % NUM_TOKENS in data, "tokens went on after the loss"
            # Once the KV has crossed, nobody needs the prefill worker.
            resumes = rb'"resumes":[1-9]' if role == "decode" else rb'"resumes":0'
            assert re.search(resumes, data), data[-500:]
            stream.close()
            wait_until(
                lambda: any(
                    p["role"] == role and p["pid"] != victim["pid"] for p in server.topology()
                ),
                20,
                f"{role} is back",
            )
            wait_until(lambda: http_json(server.http + "/health")[0] == 200, 20, "healthy again")

            def disaggregated():
                status, _, answer = server.post(
                    "/v1/completions", {"prompt": "Hi", "max_tokens": 3}
                )
                return status == 200 and answer["timings"]["path"] == "disagg"

            wait_until(disaggregated, 20, "disaggregated again")
            now = {p["worker_id"]: p for p in server.topology()}
            assert (
                now[victim["worker_id"]]["incarnation"] != first[victim["worker_id"]]["incarnation"]
            )
        wait_until(server.ledger_is_clean, 15, "no block is held after the faults")
        assert server.stop() == 0


def test_interrupt_while_the_model_loads_ends_at_once(tmp_path):
    command = [BIN, "serve", MODEL, "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"]
    command += ["--admin=127.0.0.1:0", f"--run-dir={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "decode-0.log").exists(), 20, "the workers begin to load")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "did not end cleanly" not in errors


def read_to_the_end(stream):
    data = b""
    while b"[DONE]" not in data:
        piece = stream.recv(65536)
        assert piece, "the running stream was cut"
        data += piece


def test_sigterm_drains(server):
    with Server() as other:
        stream = open_stream(other, 300)
        other.process.send_signal(signal.SIGTERM)
        wait_until(lambda: http_json(other.http + "/health")[0] == 503, 10, "it is not ready")
        read_to_the_end(stream)
        assert other.process.wait(PATIENCE_S) == 0
        for row in other.topology() if os.path.exists(other.dir + "/topology.json") else []:
            with pytest.raises(ProcessLookupError):
                os.kill(row["pid"], 0)


def test_a_terminal_that_closes_drains():
    with Server() as other:
        stream = open_stream(other, 300)
        for _ in range(2):  # of its shell, and of the kernel
            other.process.send_signal(signal.SIGHUP)
        for row in other.topology():  # whoever hangs up each process of the server
            os.kill(row["pid"], signal.SIGHUP)
        read_to_the_end(stream)
        assert other.process.wait(PATIENCE_S) == 0


def test_a_stream_beyond_the_drain_timeout_is_ended_and_the_exit_is_clean():
    with Server("--drain-timeout", "1") as other:
        stream = open_stream(other, 8000)
        other.process.send_signal(signal.SIGTERM)
        data = b""
        while piece := stream.recv(65536):
            data += piece
        assert b'"code":"draining"' in data and b"[DONE]" not in data
        assert other.process.wait(PATIENCE_S) == 0, other.output()


def all_links_up(server, wanted):
    processes = server.get("/v1/topology")[2]["processes"]
    return (
        sum(link["up"] for p in processes for link in p.get("links", [])) == wanted or wanted == 0
    )


@pytest.mark.parametrize("prefill,decode", [("0", "1"), ("2", "2")])
def test_other_pool_sizes(prefill, decode):
    with Server("--prefill", prefill, "--decode", decode, model=TINY) as server:
        wait_until(
            lambda: all_links_up(server, int(prefill) * int(decode)), 30, "every pair is linked"
        )
        answers = in_parallel(
            [
                lambda i=i: complete(server, prompt=f"Number {i} is", max_tokens=6, temperature=0)
                for i in range(8)
            ],
            8,
        )
        wanted = {"local"} if prefill == "0" else {"disagg"}
        assert {a.timings.path for a in answers} == wanted
        if prefill == "2":
            assert len({a.timings.decode_worker for a in answers}) == 2
        wait_until(server.ledger_is_clean, 15, "clean")


def test_the_log_level_reaches_every_process():
    with Server("--log-level", "error", model=TINY) as server:
        complete(server, prompt="Count:", max_tokens=2)
        for row in server.topology():
            log = os.path.join(server.dir, row["worker_id"] + ".log")
            assert os.path.getsize(log) == 0, open(log).read()


def test_bad_usage_names_the_nearest():
    for args, text, code in [
        (["serve", "m", "--kv-memroy", "1G"], "--kv-memory", 2),
        (["sevre"], "serve", 2),
        (["serve", "smollm2:135n"], "smollm2:135m", 1),
        (["serve", "m", "--isa", "avx3"], "avx2", 2),
        (["serve", "m", "--threads", "-1"], "[0, 1024]", 2),
    ]:
        result = baton(*args)
        assert result.returncode == code, result
        assert text in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_given_secret_is_read_once_and_its_copy_goes(tmp_path):
    given = tmp_path / "secret"
    given.write_text("a secret of some length")
    with Server("--cluster-secret-file", str(given), model=TINY) as server:
        given.unlink()
        copy = Path(server.dir) / "cluster-secret"
        assert copy.read_text() == "a secret of some length" and copy.stat().st_mode & 0o77 == 0
        wait_until(
            lambda: complete(server, prompt="Hi", max_tokens=2).timings.path == "disagg",
            20,
            "the workers pair",
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert not copy.exists(), "no secret of the user outlives the server"


def test_what_is_printed_to_a_closed_descriptor_goes_nowhere(tmp_path):
    def shell(redirection):
        return subprocess.run(
            ["sh", "-c", f'exec "$0" version {redirection}', BIN], capture_output=True, text=True
        )

    version = shell("")
    assert (version.returncode, version.stderr) == (0, "") and version.stdout
    closed = shell(">&-")
    assert closed.returncode == 1 and "cannot write the output" in closed.stderr
    silent = shell("<&- 2>&-")
    assert (silent.returncode, silent.stdout) == (0, version.stdout)


def test_a_server_does_its_work_whether_or_not_its_output_can_be_written(tmp_path):
    argv = [BIN, "serve", TINY, *(f"--{name}=127.0.0.1:0" for name in ("http", "grpc", "admin"))]
    argv += ["--decode=2", f"--run-dir={tmp_path}", *pool_flags(TINY)]

    def topology():
        processes = json.loads((tmp_path / "topology.json").read_text())["processes"]
        return {p["worker_id"]: p for p in processes}

    def served(first_pid):
        """Once the worker that was killed is back and the server answers."""
        pid = topology().get("decode-1", {}).get("pid")
        url = f"http://{topology()['router-0']['http']}/v1/completions"
        answers = http_json(url, {"prompt": "Hi", "max_tokens": 2})[0] == 200
        return pid not in (None, first_pid) and answers

    unread, written = os.pipe()
    os.close(unread)
    with open(written, "w") as closed, open("/dev/full", "w") as full:
        for out in (closed, full):
            # The server tells its parent process through this pipe that it is ready.
            reports, report_fd = os.pipe()
            server = subprocess.Popen(
                argv,
                stdout=out,
                stderr=out,
                pass_fds=(report_fd,),
                env={**os.environ, "BATON_REPORT_FD": str(report_fd)},
            )
            os.close(report_fd)
            with open(reports, "rb") as report:
                assert select.select([report], [], [], START_LIMIT_S)[0], "it is ready"
                assert b"http" in report.readline()
            try:
                # The death of a child is said too.
                victim = topology()["decode-1"]["pid"]
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: served(victim), START_LIMIT_S, "whole again")
                server.send_signal(signal.SIGINT)
                assert server.wait(PATIENCE_S) == 0
            finally:
                server.kill()
    help_text = subprocess.run(
        ["sh", "-c", 'exec "$0" serve --help > /dev/full', BIN], capture_output=True, text=True
    )
    assert help_text.returncode == 1
    assert "cannot write the output" in help_text.stderr


def test_bad_config_file(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text("thraeds: 2\n")
    result = baton("serve", MODEL, "--config", str(path))
    assert result.returncode == 2 and "threads" in result.stderr and "thraeds" in result.stderr


def test_bad_models(tmp_path):
    whole = os.path.expanduser(os.environ.get("BATON_HOME", "~/.cache/baton"))
    source = os.path.join(whole, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    cut = tmp_path / "cut.gguf"
    with open(source, "rb") as file:
        cut.write_bytes(file.read(5_000_000))
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model at all" * 100)
    for path in (cut, junk, tmp_path / "missing.gguf"):
        result = baton(
            "serve",
            str(path),
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        )
        assert result.returncode == 1
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        inspected = baton("inspect", str(path))
        assert inspected.returncode == 1 and len(inspected.stderr.strip().splitlines()) == 1
    assert baton("inspect", source).returncode == 0


def test_port_in_use(server):
    result = baton(
        "serve",
        MODEL,
        "--http",
        server.router["http"],
        "--grpc",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    )
    assert result.returncode == 1
    assert server.router["http"] in result.stderr


@pytest.mark.parametrize("flag", ["--listen", "--kv-listen", "--admin"])
def test_a_worker_names_the_flag_whose_port_is_in_use(server, flag):
    taken = server.router["http"]
    args = ["decode", "--router", "127.0.0.1:1", "--model", TINY, "--transport", "tcp"]
    result = baton(*args, flag, taken)
    assert result.returncode == 1, result.stderr
    line = result.stderr.splitlines()[-1]
    assert f"{flag}" in line.split(":")[1] and taken in line and "in use" in line, line


def run_router_with_files(most, held):
    """A router that may have `most` open files and inherits `held` of them."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(os.devnull, "rb")) for _ in range(held)]
        return subprocess.run(
            [BIN, "router", *[f"{flag}=127.0.0.1:0" for flag in ("--http", "--grpc", "--admin")]],
            capture_output=True,
            text=True,
            timeout=60,
            pass_fds=[file.fileno() for file in files],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
        )


def test_a_process_that_the_system_gives_nothing_names_the_limit():
    result = run_router_with_files(most=32, held=16)  # an event loop alone takes three
    assert result.returncode == 1, result
    line = result.stderr.splitlines()[-1]
    assert line.startswith("baton: the system gives no more open files (ulimit -n): "), line
    assert line.endswith("; raise the limit"), line


def test_a_process_that_may_have_too_few_files_names_the_limit():
    """gRPC aborts a process that has no descriptor for its own threads."""
    result = run_router_with_files(most=16, held=0)
    assert result.returncode == 1, result
    assert result.stderr == (
        "baton router: this process may have 16 open files (ulimit -n) and needs 32 or more;"
        " raise the limit\n"
    )


def test_a_process_whose_grpc_port_is_lost_ends_and_says_why():
    """gRPC listens no more after a connection for which there was no descriptor."""
    most, port = 64, free_port("127.0.0.1")
    addresses = [f"--grpc=127.0.0.1:{port}", "--http=127.0.0.1:0", "--admin=127.0.0.1:0"]
    with subprocess.Popen(
        [BIN, "router", *addresses, "--drain-timeout", "0"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
    ) as router:
        clients = []

        def connects():
            with contextlib.suppress(OSError):
                clients.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            return len(clients) > most or router.poll() is not None

        try:
            wait_until(connects, PATIENCE_S, "more connections than it may have files open")
            _, text = router.communicate(timeout=PATIENCE_S)
        finally:
            router.kill()
            for client in clients:
                client.close()
    assert router.returncode == 1, text
    line = text.splitlines()[-1]
    assert line.startswith("baton router: the gRPC port takes no connections any more"), text


def test_kv_memory_too_small():
    result = baton(
        "serve",
        MODEL,
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--kv-memory",
        "10MiB",
    )
    assert result.returncode == 1
    assert "--kv-memory" in result.stderr or "--max-context" in result.stderr


def source_model():
    home = os.path.expanduser(os.environ.get("BATON_HOME", "~/.cache/baton"))
    return os.path.join(home, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tmp_path, number):
    process = subprocess.Popen(
        [BIN, "run", TINY, *pool_flags(TINY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "BATON_HOME": str(tmp_path)},
    )

    def processes():
        try:
            (topology,) = tmp_path.glob("run/*/topology.json")
            return json.loads(topology.read_text())["processes"]
        except (ValueError, FileNotFoundError):  # not there yet
            return []

    wait_until(lambda: len(processes()) == 3, 60, "the private server runs")
    children = [p["pid"] for p in processes()]
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 128 + number
    assert list((tmp_path / "run").iterdir()) == []
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    process.communicate()


def test_no_question_starts_no_server(tmp_path):
    result = subprocess.run(
        [BIN, "run", source_model()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "BATON_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2 and "no question; give --prompt" in result.stderr, result
    assert list(tmp_path.iterdir()) == []


def test_quick_answer_in_one_command():
    result = baton("run", MODEL, "Why is the sky blue?", "--max-tokens", "40", timeout=120)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.strip().splitlines()
    assert "light" in result.stdout.lower()
    assert "path=disagg" in lines[-1]


def test_a_proxy_of_the_environment_is_not_for_the_cluster():
    proxy = "http://127.0.0.1:1"
    env = {"http_proxy": proxy, "https_proxy": proxy, "grpc_proxy": proxy}
    with Server(model=TINY, env=env) as server:
        assert complete(server, prompt="Hi", max_tokens=2).timings.path == "disagg"


def test_who_is_started_with_nohup_outlives_the_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup(1) does
    try:
        server = Server("--mode", "aggregated", model=TINY)
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        server.process.send_signal(signal.SIGHUP)
        assert complete(server, prompt="Hi", max_tokens=2).timings.path == "local"
        assert server.get("/health")[0] == 200
        assert server.stop() == 0
