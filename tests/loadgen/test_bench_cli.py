"""`baton bench URL` as a user runs it, against a toy server: files, exit codes, one clear error."""

import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

BATON = os.environ["BATON_BIN"]
TOY = os.environ["TOY_SERVER_BIN"]
# A load of a second and a half whose client lag does not matter here: a run may be void on a busy
# machine (exit 1), and then says so.
LOAD = ["--rate", "40", "--arrivals", "fixed", "--requests", "40", "--output", "5"]


class Toy:
    def __init__(self, *args):
        self.process = subprocess.Popen(
            [TOY, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = "http://127.0.0.1:" + self.process.stdout.readline().strip()

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture
def toy():
    server = Toy()
    yield server
    server.stop()


def bench(*args):
    return subprocess.run([BATON, "bench", *args], capture_output=True, text=True, timeout=120)


def only_void(done):
    """The run went well, or the only complaint is this machine's own lag."""
    return done.returncode == 0 or "the client's own lag" in done.stderr


def test_a_run_prints_a_table_and_writes_both_files(toy, tmp_path):
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    done = bench(toy.url, *LOAD, "--json", out, "--html", page, "--slo", "ttft=10s,goodput=90%")
    assert only_void(done), done.stderr
    assert "40 attempted, 40 ok" in done.stdout
    assert "goodput" in done.stdout
    result = json.loads(out.read_text())
    run = result["runs"][0]
    assert result["cores"] >= 1 and result["settings"]["rate"] == "40"
    assert len(run["requests"]) == 40
    assert all(len(r["gaps_us"]) == 4 and r["outcome"] == "ok" for r in run["requests"])
    assert run["requests"][3]["intended_us"] == 100000
    assert run["report"]["ttft"]["p99_us"] is None, "40 samples have no p99"
    html = page.read_text()
    assert html.count("<svg") >= 6
    assert not re.search(r"<script|<link|src=|href=|@import|url\(", html), "not self-contained"


def test_a_closed_loop_and_a_sweep_run(toy, tmp_path):
    done = bench(toy.url, "--users", "3", "--requests", "9", "--output", "4")
    assert only_void(done) and "9 attempted, 9 ok" in done.stdout, done.stderr
    out = tmp_path / "s.json"
    done = bench(toy.url, "--sweep", "20,40", "--requests", "10", "--output", "3", "--json", out)
    assert only_void(done), done.stderr
    assert [r["rate"] for r in json.loads(out.read_text())["runs"]] == [20, 40]


def test_a_trace_is_replayed_and_a_bad_line_is_named(toy, tmp_path):
    trace = tmp_path / "t.csv"
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows += "2023-11-16 18:15:46.6805900,37,4\n2023-11-16 18:15:47.6805900,39,6\n"
    trace.write_text(rows)
    out = tmp_path / "t.json"
    done = bench(toy.url, "--trace", trace, "--time-scale", "0.1", "--json", out)
    assert only_void(done), done.stderr
    requests = json.loads(out.read_text())["runs"][0]["requests"]
    assert [r["intended_us"] for r in requests] == [0, 100000]
    assert [r["want_output"] for r in requests] == [4, 6]
    trace.write_text(rows + "2023-11-16 18:15:48,x,6\n")
    done = bench(toy.url, "--trace", trace)
    assert done.returncode == 1
    assert f"{trace} line 4: 'x' is not a whole number" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_objective_out_of_reach_is_a_clear_answer(toy):
    done = bench(
        *(toy.url, "--find-max", "--slo", "ttft=1ms", "--rate", "20"),
        *("--requests", "10", "--output", "2"),
    )
    assert done.returncode == 1
    assert re.search("is not met at the lowest rate, 20 starts/s|was void 3 times", done.stderr)


def test_a_server_that_is_down_or_goes_away_is_said(tmp_path):
    done = bench("http://127.0.0.1:9", *LOAD)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "127.0.0.1:9" in done.stderr and "refused" in done.stderr
    toy, out = Toy(20000, 2000, 8), tmp_path / "p.json"
    done = bench(toy.url, "--rate", "100", "--requests", "500", "--output", "3", "--json", out)
    toy.process.kill()
    assert done.returncode == 1
    assert "the server was gone" in done.stderr
    outcomes = [r["outcome"] for r in json.loads(out.read_text())["runs"][0]["requests"]]
    assert outcomes.count("ok") >= 1 and len(outcomes) < 500


@pytest.mark.parametrize("how", ["find-max", "sweep", "compare"])
def test_runs_before_the_server_went_away_are_kept(toy, tmp_path, how):
    leaver, out = Toy(20000, 2000, 25), tmp_path / "k.json"
    load = {
        "find-max": [leaver.url, "--find-max", "--slo", "ttft=10s", "--rate", "20"],
        "sweep": [leaver.url, "--sweep", "20,40,80"],
        "compare": ["--compare", toy.url, leaver.url, "--rate", "20", "--rounds", "9"],
    }[how]
    done = bench(*load, "--requests", "10", "--output", "3", "--json", out)
    leaver.process.kill()
    assert done.returncode == 1
    # A trial that this machine's lag makes void is made again, ends the search, or is said.
    assert re.search("gone|was void 3 times|the run is void", done.stderr.splitlines()[-1])
    runs = json.loads(out.read_text())["runs"]
    assert len(runs) >= 2 and any(r["outcome"] == "ok" for r in runs[0]["requests"])


def test_each_run_asks_something_new_unless_a_seed_is_given(toy, tmp_path):
    seeds = []
    for args in ([], [], ["--seed", "7"]):
        out = tmp_path / "n.json"
        bench(toy.url, "--users", "1", "--requests", "2", "--output", "2", "--json", out, *args)
        seeds.append(json.loads(out.read_text())["settings"]["seed"])
    assert seeds[0] != seeds[1] and seeds[2] == "7"


@pytest.mark.parametrize("how", ["once", "sweep", "find-max", "compare"])
def test_the_seed_that_was_drawn_is_told(toy, how):
    load = {
        "once": [toy.url, "--rate", "40"],
        "sweep": [toy.url, "--sweep", "20,40"],
        "find-max": [toy.url, "--find-max", "--slo", "ttft=1us", "--rate", "40"],
        "compare": ["--compare", toy.url, toy.url, "--rate", "40", "--rounds", "4"],
    }[how]
    done = bench(*load, "--requests", "4", "--output", "2")
    assert len(re.findall(r"^seed [1-9][0-9]*$", done.stdout, re.M)) == 1, done.stdout


def test_a_probe_leaves_no_empty_result(tmp_path):
    out = tmp_path / "e.json"
    bench("http://127.0.0.1:9", *LOAD, "--json", out)
    assert not out.exists()


class BadStreams(http.server.BaseHTTPRequestHandler):
    """Answers with one token and then something that is no event stream."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer("application/json", b'{"data":[{"id":"bad"}]}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.num_asked += 1
        token = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
        self.answer("text/event-stream", token + self.server.rest)

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def streams_that_end_with(rest):
    """A server of one token and `rest`; `num_asked` requests have reached it."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BadStreams) as server:
        server.rest, server.num_asked = rest, 0
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    "rest, expected",
    [
        (b'data: {"choices":[\n\n', "is no JSON object"),
        (b"<html>502 Bad Gateway</html>\n\n", "is no field"),
        (b"", "ended without"),
    ],
)
def test_a_malformed_stream_is_one_clear_error(tmp_path, rest, expected):
    out = tmp_path / "m.json"
    with streams_that_end_with(rest) as server:
        done = bench(server.url, "--users", "2", "--requests", "4", "--output", "3", "--json", out)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert expected in done.stderr
    outcomes = {r["outcome"] for r in json.loads(out.read_text())["runs"][0]["requests"]}
    assert outcomes <= {"malformed", "broke_off"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_told_and_kept(tmp_path, number):
    out = tmp_path / "i.json"
    end = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    with streams_that_end_with(end) as server:
        args = [BATON, "bench", server.url, "--rate", "30", "--duration", "600s", "--output", "1"]
        run = subprocess.Popen(
            [*args, "--json", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while server.num_asked < 15:
            assert run.poll() is None, run.communicate()
            time.sleep(0.02)
        run.send_signal(number)
        run.send_signal(number)  # a wrapper passes on what the whole group gets
        printed, said = run.communicate(timeout=60)
    assert run.returncode == 1 and "cut short (interrupted)" in said
    assert "attempted" in printed
    assert len(json.loads(out.read_text())["runs"][0]["requests"]) >= 10


def test_a_full_disk_is_said_and_exits_1(toy):
    done = bench(toy.url, *LOAD, "--json", "/dev/full")
    assert done.returncode == 1
    assert "/dev/full is incomplete: No space left on device" in done.stderr
    assert "40 attempted" in done.stdout, "the table is still printed"
    done = bench(toy.url, *LOAD, "--json", "/nowhere/x.json")
    assert done.returncode == 1 and "/nowhere/x.json cannot be written" in done.stderr


@pytest.mark.parametrize(
    "args, expected",
    [
        ([], "say how to load"),
        (["--rate", "x"], "--rate: 'x'"),
        (["--rate", "1", "--users", "2"], "one of --rate, --users and --trace"),
        (["--rate", "1", "--output", "0"], "--output '0'"),
        (["--rate", "1", "--slo", "ttf=1ms"], "did you mean ttft"),
        (["--find-max"], "--find-max needs --slo"),
        (["--rate", "1", "--token-ids", "5:9"], "--api completions"),
        (["--rate", "1", "--duratoin", "3s"], "did you mean --duration"),
        (["--rate", "1", "--duration", "3"], "--duration: '3' is not a time"),
        (["--sweep", "1,x"], "--sweep: 'x'"),
        (["--sweep", "1,2", "--rate", "5"], "--rate needs no --sweep"),
        (["--rate", "1", "--think", "2s"], "--think needs --turns above 1"),
        (["--users", "1", "--arrivals", "gamma"], "--arrivals needs --rate"),
        (["--users", "1", "--burstiness", "2"], "--burstiness needs gamma gaps"),
        (["--rate", "1", "--arrivals", "fixed", "--burstiness", "2"], "--burstiness needs gamma"),
        (["--trace", "/dev/null", "--input", "9"], "--input needs no --trace"),
        (["--rate", "1", "--time-scale", "2"], "--time-scale needs --trace"),
        (["--rate", "1", "--golden-every", "2"], "--golden-every needs --golden"),
        (["--rate", "1", "--rounds", "4"], "--rounds needs --compare"),
        (["--trace", "/dev/null", "--time-scale", "1e300"], "--time-scale: '1e300'"),
    ],
)
def test_a_wrong_command_line_exits_2_with_one_line(args, expected):
    done = bench("http://127.0.0.1:9", *args)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr and done.stderr.count("\n") == 1


def test_urls_are_checked():
    for url, expected in [("localhost", "is no server"), ("https://x", "has no TLS")]:
        done = bench(url, "--rate", "1")
        assert done.returncode == 2 and expected in done.stderr


def test_golden_answers_are_checked_in_the_run(toy, tmp_path):
    golden = tmp_path / "g.jsonl"
    row = {"prompt": "count", "max_tokens": 3, "text": " w0 w1 w2"}
    golden.write_text(json.dumps(row) + "\n")
    args = [*LOAD, "--golden", golden, "--golden-every", "4"]
    done = bench(toy.url, *args)
    assert only_void(done) and "golden 10 of 10 right" in done.stdout, done.stderr
    golden.write_text(json.dumps({**row, "text": " w0 w1 w9"}) + "\n")
    done = bench(toy.url, *args)
    assert done.returncode == 1 and "10 of 10 golden prompts had a wrong answer" in done.stderr
    expected = 'the answer to "count" differs at byte 8: it is " w0 w1 w2", golden is " w0 w1 w9"'
    assert expected in done.stderr, "both texts are shown"


def test_golden_prompts_that_are_never_asked_void_the_run(toy, tmp_path):
    golden = tmp_path / "g.jsonl"
    golden.write_text(json.dumps({"prompt": "c", "max_tokens": 3, "text": " w0 w1 w2"}) + "\n")
    done = bench(toy.url, *LOAD, "--golden", golden, "--golden-every", "41")
    assert done.returncode == 1 and "none of 40 requests was an answered golden" in done.stderr


def test_the_word_model_names_the_other_command_only_as_the_first_argument():
    done = bench("--json", "model", "localhost", "--users", "1")
    assert done.returncode == 2 and "'localhost' is no server" in done.stderr
    done = bench("--threads", "2", "model")
    assert done.returncode == 2 and "MODEL is missing" in done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_rounds_before_the_environment_changed_are_kept_without_a_verdict(toy, tmp_path):
    other, out = Toy(), tmp_path / "v.json"
    load = ["--rate", "20", "--requests", "8", "--output", "2", "--rounds", "4", "--json", out]
    run = subprocess.Popen(
        [BATON, "bench", "--compare", toy.url, other.url, *load],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(1.5)
    os.sched_setaffinity(run.pid, {min(os.sched_getaffinity(0))})
    printed, said = run.communicate(timeout=60)
    other.stop()
    assert run.returncode == 1 and "the environment changed" in said, said
    assert "verdict" not in printed
    result = json.loads(out.read_text())
    assert "comparison" not in result
    assert len(result["runs"]) >= 8
    assert all(len(run["requests"]) == 8 for run in result["runs"])
