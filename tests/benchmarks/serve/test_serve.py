"""Tests what the scripts of benchmarks/serve make of samples and arguments; starts no Baton."""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "serve"))
import lending  # noqa: E402
import machine  # noqa: E402
import mode_map  # noqa: E402
import overload  # noqa: E402
import routers  # noqa: E402
import speculation  # noqa: E402
import structured  # noqa: E402
import token_trace  # noqa: E402


class ArgumentsTest(unittest.TestCase):
    def refuses(self, parse, text, said):
        with self.assertRaisesRegex(argparse.ArgumentTypeError, said):
            parse(text)

    def test_counts_are_whole_numbers_of_one_or_more(self):
        self.assertEqual(machine.counts("1,16"), [1, 16])
        for text in ("0", "-1", "1.5", "", "1,,2", "many"):
            self.refuses(machine.counts, text, "is no whole number of 1 or more")

    def test_positives_are_finite_numbers_above_zero(self):
        self.assertEqual(machine.positives("1,1.5"), [1.0, 1.5])
        for text in ("0", "-1", "nan", "inf", "x", ""):
            self.refuses(machine.positives, text, "is no number above 0")

    def test_a_list_has_known_names_alone_and_keeps_their_order(self):
        parse = machine.some_of(("a", "b", "c"))
        self.assertEqual(parse("c,a"), ["a", "c"])
        self.refuses(parse, "a,d", "d is none of a, b, c")

    def test_a_program_must_be_there_and_may_be_run(self):
        self.assertEqual(machine.program(sys.executable), sys.executable)
        self.refuses(machine.program, "/no/such/program", "/no/such/program is no program")
        self.refuses(machine.program, "/", "is no program")

    def test_a_result_needs_its_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(machine.result_file(f"{folder}/x.json"), f"{folder}/x.json")
            self.refuses(machine.result_file, f"{folder}/y/x.json", "no folder")
            self.assertEqual(machine.result_folder(folder), folder)
            self.refuses(machine.result_folder, f"{folder}/y", "no folder")
            self.refuses(machine.result_folder, __file__, "no folder")


class ProcessorTimeTest(unittest.TestCase):
    def test_children_belong_to_their_process(self):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        try:
            pids = machine.pids_of(os.getpid())
            self.assertEqual(pids[0], os.getpid())
            self.assertIn(child.pid, pids)
            self.assertGreaterEqual(machine.cpu_s(os.getpid()), machine.own_cpu_s(os.getpid()))
        finally:
            child.stdin.close()
            child.wait()

    def test_a_process_that_is_not_there_has_no_time(self):
        child = subprocess.Popen(["true"])
        child.wait()
        with self.assertRaises((FileNotFoundError, ProcessLookupError)):
            machine.cpu_s(child.pid)


class SpreadTest(unittest.TestCase):
    def test_the_interval_leaves_out_one_on_each_side_of_nine(self):
        # P(at most 1 of 9 on one side) = 10 / 512 = 0.0195 <= 0.025; 2 of 9 would be 0.09.
        found = machine.spread([5, 1, 9, 2, 8, 3, 7, 4, 6])
        self.assertEqual(found, {"median": 5, "low": 2, "high": 8})

    def test_fewer_than_six_keep_all(self):
        self.assertEqual(machine.spread([3, 1, 2]), {"median": 2, "low": 1, "high": 3})

    def test_a_cell_shows_median_and_interval(self):
        ratio = {"median": 1.25, "low": 1, "high": 1.5}
        self.assertEqual(machine.show(ratio), "1.250 (1.000 .. 1.500)")


class LendingTest(unittest.TestCase):
    def test_ratios_are_of_the_rounds_and_above_one_is_better(self):
        turns = [
            {"mode": "split", "round": 0, "stream1": 20.0, "ttft128": 50.0},
            {"mode": "aggregated", "round": 0, "stream1": 10.0, "ttft128": 100.0},
            # The second round had the other order.
            {"mode": "aggregated", "round": 1, "stream1": 40.0, "ttft128": 30.0},
            {"mode": "split", "round": 1, "stream1": 40.0, "ttft128": 10.0},
        ]
        found = lending.summary(turns, ["split", "aggregated"])
        self.assertEqual(list(found), ["stream1", "ttft128"])
        self.assertEqual(found["stream1"]["median"], {"split": 30.0, "aggregated": 25.0})
        self.assertEqual(
            found["stream1"]["to_aggregated"], {"split": {"median": 1.5, "low": 1, "high": 2}}
        )
        self.assertEqual(found["ttft128"]["to_aggregated"]["split"]["median"], 2.5)


class SpeculationTest(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self):
        def turn(mode, k, rate, guessed=0, right=0):
            row = {"tokens_per_s": rate, "speculated": guessed, "accepted": right}
            return {"mode": mode, "round": k, "rows": {"free4": row}}

        rounds = [turn("off", 0, 100.0), turn("ngram", 0, 90.0, 8, 2), turn("auto", 0, 100.0)]
        rounds += [turn("off", 1, 50.0), turn("ngram", 1, 50.0, 2, 2), turn("auto", 1, 60.0)]
        row = speculation.summary_of(rounds)["free4"]
        self.assertEqual(row["median"], {"off": 75.0, "ngram": 70.0, "auto": 80.0})
        self.assertAlmostEqual(row["to_off"]["ngram"]["median"], 0.95)
        self.assertAlmostEqual(row["to_off"]["auto"]["median"], 1.1)
        self.assertAlmostEqual(row["right"], 0.4)


class OverloadTest(unittest.TestCase):
    def answer(self, due, status, ended, arrivals=(), sent=None):
        answer = overload.Answer(due, due if sent is None else sent)
        answer.status, answer.ended, answer.arrivals = status, ended, list(arrivals)
        return answer

    def test_times_count_from_the_intended_start(self):
        answers = [
            self.answer(1.0, 200, 2.0, [1.5, 1.6, 2.0], sent=1.002),
            self.answer(20.0, 200, 24.0, [21.0, 24.0]),
            self.answer(30.0, 429, 30.1),
            self.answer(59.0, 200, 61.0, [60.0]),  # too late to count
            self.answer(59.5, 0, None),
        ]
        row = overload.row_of(answers, 60.0, {"per_s": 0.1, "itl_p99_ms": 1000.0})
        self.assertAlmostEqual(row["first15_per_s"], 1 / 15)
        self.assertAlmostEqual(row["offered_to_capacity"], 5 / 60 / 0.1)
        self.assertAlmostEqual(row["all_to_capacity"], 2 / 60 / 0.1)
        self.assertEqual((row["served"], row["refused"], row["lost"], row["failed"]), (3, 1, 1, 0))
        self.assertAlmostEqual(row["refusal_age_p99_s"], 0.1)
        self.assertAlmostEqual(row["ttft_p50_ms"], 1000)
        self.assertAlmostEqual(row["itl_p99_to_capacity"], 3)
        self.assertAlmostEqual(row["lag_p99_ms"], 2)
        self.assertFalse(row["void"])
        self.assertEqual(row["requests"][0], [1.0, 1.5, 2.0, 200, 3])

    def test_a_late_client_makes_the_row_void(self):
        answers = [self.answer(1.0, 200, 2.0, [1.5], sent=1.1)]
        self.assertTrue(overload.row_of(answers, 60.0, {"per_s": 1, "itl_p99_ms": 1})["void"])

    def test_a_peer_has_a_name_and_a_plain_address(self):
        self.assertEqual(overload.peer_of("a=http://h:80"), ("a", "http://h:80"))
        for text in ("http://h:80", "a=h:80", "a=https://h:80", "a=http://h", "a=http://h:80/v1"):
            with self.assertRaises(argparse.ArgumentTypeError):
                overload.peer_of(text)

    def test_a_record_of_the_client_says_how_it_ended(self):
        record = {"intended_us": 1_000_000, "sent_us": 1_000_500, "end_us": 2_000_000}
        whole = {**record, "outcome": "ok", "first_token_us": 1_500_000, "gaps_us": [100, 200]}
        answer = overload.answer_of(whole)
        self.assertEqual((answer.due, answer.sent, answer.ended), (1.0, 1.0005, 2.0))
        self.assertEqual((answer.status, answer.arrivals), (200, [1.5, 1.5001, 1.5003]))
        refused = {**record, "outcome": "http_error", "error": "status 429: the queue is full"}
        answer = overload.answer_of(refused)
        self.assertEqual((answer.status, answer.arrivals), (429, []))
        for outcome in ("timed_out", "broke_off", "server_error", "unfinished"):
            answer = overload.answer_of({**record, "outcome": outcome, "error": "status 429: no"})
            self.assertEqual(answer.status, 0, outcome)

    def client(self, folder, text):
        """A program in the place of `baton`, whose answer is `text`."""
        program = Path(folder, "baton")
        program.write_text(
            "#!/usr/bin/env python3\nimport json, sys, time\n"
            "flag = lambda name: sys.argv[sys.argv.index(name) + 1]\n" + text
        )
        program.chmod(0o755)
        return types.SimpleNamespace(baton=str(program), prompt=64, tokens=24, seed=3, seconds=0.3)

    def test_the_client_is_asked_for_the_load_and_its_cores_are_counted(self):
        said = """
until = time.process_time() + 0.2  # works for so long, then waits
while time.process_time() < until:
    pass
time.sleep(0.2)
asked = {name: flag(name) for name in ("--rate", "--duration", "--seed", "--input", "--output")}
assert sys.argv[1:3] == ["bench", "http://127.0.0.1:80"] and flag("--model") == "m"
record = {"intended_us": 0, "sent_us": 0, "end_us": 1, "outcome": "ok"}
run = {"report": {"cut_short": ""}, "requests": [record]}
assert asked == {"--rate": "12.5", "--duration": "0.3s", "--seed": "3", "--input": "64",
                 "--output": "24"}, asked
open(flag("--json"), "w").write(json.dumps({"runs": [run]}))
"""
        with tempfile.TemporaryDirectory() as folder:
            args = self.client(folder, said)
            pids = {"router-0": os.getpid()}
            answers, cores = overload.open_loop(("127.0.0.1", 80), args, "m", pids, 12.5)
        self.assertEqual([a.status for a in answers], [200])
        self.assertEqual(set(cores), {"client", "router-0", "machine"})
        self.assertGreater(cores["client"], 0)
        self.assertGreaterEqual(cores["machine"], cores["client"])

    def test_the_capacity_is_the_best_number_of_clients_measured_again(self):
        said = """
open(sys.argv[0] + ".seeds", "a").write(flag("--seed") + " ")
users, end = int(flag("--users")), float(flag("--duration").rstrip("s"))
per_s = {1: 4, 2: 8, 3: 6}[users] - (2 if end > 6.5 else 0)  # luck does not last
record = {"outcome": "ok", "first_token_us": 0, "gaps_us": [1000]}
ends = [5.0 + (i + 1) / per_s for i in range(int((end - 5) * per_s))]
requests = [{**record, "intended_us": 0, "sent_us": 0, "end_us": int(at * 1e6)} for at in ends]
run = {"report": {"cut_short": ""}, "requests": requests}
open(flag("--json"), "w").write(json.dumps({"runs": [run]}))
"""
        with tempfile.TemporaryDirectory() as folder:
            args = self.client(folder, said)
            args.streams, args.closed_seconds, args.seconds = [1, 2, 3], 1.0, 2.0
            closed = []
            server = types.SimpleNamespace(
                name="x",
                model=None,
                open=lambda: ("127.0.0.1", 80),
                close=lambda: closed.append(True),
            )
            found = overload.measure_capacity(server, args)
            seeds = Path(args.baton + ".seeds").read_text().split()
        self.assertEqual(len(set(seeds)), 4, "no prompt is asked for twice")
        self.assertEqual([loop["per_s"] for loop in found["closed"]], [4, 8, 6])
        capacity = found["capacity"]
        self.assertEqual((capacity["clients"], capacity["per_s"]), (2, 6))
        self.assertAlmostEqual(capacity["itl_p99_ms"], 1.0)
        self.assertEqual(closed, [True])

    def test_a_client_that_ends_early_has_the_cores_of_its_time(self):
        client = subprocess.Popen(["true"])
        cores = overload.cores_of({"client": client.pid}, client, 30)
        self.assertEqual(cores["client"], 0)

    def test_a_run_that_failed_or_broke_off_is_no_result(self):
        cut = """
run = {"report": {"cut_short": "the server was gone"}, "requests": []}
open(flag("--json"), "w").write(json.dumps({"runs": [run]}))
"""
        for text, words in (("sys.exit('no server there')", "no server there"), (cut, "was gone")):
            with tempfile.TemporaryDirectory() as folder:
                args = self.client(folder, text)
                with self.assertRaisesRegex(SystemExit, words):
                    overload.open_loop(("127.0.0.1", 80), args, None, {}, 1.0)


class StubServer:
    """Answers every second request with 429 and the others with two tokens."""

    def __init__(self):
        self.bodies = []

    async def answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(routers.LENGTH.search(head)[1])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        if len(self.bodies) % 2 == 0:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\n\r\n")
        else:
            token = b'data: {"choices":[{"finish_reason":null}]}\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + 2 * token + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    def run(self, loop):
        """What `loop(where)` gives while this server runs."""

        async def both():
            server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
            async with server:
                return await loop(server.sockets[0].getsockname())

        return asyncio.run(both())


# A llama-server that answers chats of four tokens, role first and usage last.
LLAMA_SERVER = """#!/usr/bin/env python3
import http.server, json, sys
said = {"--version": "version: 4711 (abc)", "--help": "--flash-attn [on|off|auto]"}
if sys.argv[1] in said:
    print(said[sys.argv[1]])
    sys.exit()
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(json.dumps({"data": [{"id": "m"}]}).encode())
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["response_format"]["type"] == "json_schema" and body["model"] == "m"
        deltas = [{"role": "assistant", "content": None}]
        deltas += [{"content": c} for c in "[{}]"] + [{}]
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks.append({"choices": [], "usage": {"completion_tokens": 4}})
        self.answer(b"".join(b"data: %s\\n\\n" % json.dumps(c).encode() for c in chunks))
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class StructuredTest(unittest.TestCase):
    def test_events_with_text_are_tokens_and_so_is_each_of_a_completion(self):
        for choice, is_token in (
            ({"delta": {"content": "a"}}, True),
            ({"delta": {"role": "assistant", "content": ""}}, False),
            ({"delta": {"role": "assistant", "content": None}}, False),
            ({"delta": {}, "finish_reason": "stop"}, False),
            ({"text": ""}, True),
        ):
            self.assertEqual(structured.has_token(choice), is_token, choice)

    def test_a_peer_has_a_name_of_its_own_and_a_plain_address(self):
        parsed = structured.peer_of("vllm=http://127.0.0.1:8000/")
        self.assertEqual(parsed, ("vllm", "http://127.0.0.1:8000/"))
        for text in (
            *("vllm=127.0.0.1:8000", "=http://h:1", "v=http://h", "v=http://h:1/v1", "v"),
            *("baton=http://h:1", "llama.cpp=http://h:1", "v=http://h:x"),
        ):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "is not NAME=http"):
                structured.peer_of(text)

    def test_ratios_are_of_the_rounds(self):
        rounds = [
            {"baton 1": 30.0, "x 1": 10.0, "baton 4": 8.0, "x 4": 8.0},
            {"baton 1": 10.0, "x 1": 10.0, "baton 4": 6.0, "x 4": 12.0},
        ]
        found = structured.peer_ratios(rounds, ["x"])
        self.assertEqual(found["baton / x, 1 streams"], {"median": 2.0, "low": 1.0, "high": 3.0})
        self.assertEqual(found["baton / x, 4 streams"], {"median": 0.75, "low": 0.5, "high": 1.0})

    def test_rows_of_logits_keep_the_median_of_each_number_of_threads(self):
        row = {"echo": {"logprobs": 30.0, "plain": 10.0}}
        result = {"summary": {}, "rounds": [row]}
        times = {"prompt_log/2000": {"1": [9.0, 1.0, 5.0], "2": [3.0]}}
        parts = {"tool_us_a_token": {}, "rows_of_logits": times, "lm_head_512_ms": [2.56]}
        structured.add_parts(result, parts)
        medians = result["summary"]["rows_of_logits"]
        self.assertEqual(medians, {"prompt_log/2000": {"1": 5.0, "2": 3.0}})
        self.assertEqual(result["summary"]["lm_head_ms"], 10.0)
        self.assertEqual(result["summary"]["echo_to_plain_and_head"]["median"], 1.5)

    def test_llama_server_is_started_asked_and_stopped(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "llama-server")
            program.write_text(LLAMA_SERVER)
            program.chmod(0o755)
            args = types.SimpleNamespace(llama_cpp=folder, model="m.gguf", threads=2, rounds=2)
            args.peer, args.vllm, args.max_tokens = [], None, 4
            started = []
            structured.start_peers(args, started)
            (baton,) = started  # in the place of Baton: it answers the same
            try:
                found = structured.beside_peers(args, baton.server)
            finally:
                baton.stop()
        about = found["servers"]["llama.cpp"]
        self.assertEqual(about["version"], "version: 4711 (abc)")
        self.assertEqual(about["flags"][:2], ["-m", "m.gguf"])
        self.assertEqual(about["flags"][about["flags"].index("-fa") + 1], "on")
        self.assertEqual(len(found["rounds"]), 2)
        self.assertEqual(set(found["rounds"][0]), {f"{n} {k}" for n in ("baton", "llama.cpp")
                                                   for k in (1, 4)})  # fmt: skip
        self.assertTrue(all(rate > 0 for row in found["rounds"] for rate in row.values()))
        self.assertNotEqual(baton.server.process.returncode, None)

    def test_no_peer_is_no_row(self):
        args = types.SimpleNamespace(llama_cpp=None, vllm=None, peer=[])
        self.assertIsNone(structured.beside_peers(args, None))


class ModeMapTest(unittest.TestCase):
    SHAPE = types.SimpleNamespace(prompt=3, tokens=2)

    def test_tokens_are_seen_in_the_forms_of_all_servers(self):
        for line in (b'{"finish_reason":null}', b'{"finish_reason": null}'):
            self.assertTrue(mode_map.TOKEN.search(line))
        self.assertFalse(mode_map.TOKEN.search(b'{"finish_reason":"length"}'))

    def answer(self, due, status, ended):
        answer = overload.Answer(due, due)
        answer.status, answer.ended = status, ended
        return answer

    def test_a_request_without_an_answer_counts_as_the_limit(self):
        answers = [self.answer(1.0, 200, 3.0), self.answer(2.0, 200, 6.0)]
        self.assertAlmostEqual(mode_map.score(answers), 2 / 6)
        answers += [self.answer(3.0, 429, 3.1), self.answer(4.0, 0, 124.0)]
        self.assertAlmostEqual(mode_map.score(answers), 2 / (6 + 2 * overload.TIMEOUT_S))
        self.assertEqual(mode_map.score([self.answer(1.0, 503, 1.1)]), 0)

    def test_the_ratio_is_to_the_better_static_mode_of_the_round(self):
        def found(disagg, aggregated, adaptive, **routes):
            rows = {"disagg": disagg, "aggregated": aggregated, "adaptive": adaptive}
            return {mode: {"score": score, "routes": routes} for mode, score in rows.items()}

        rounds = [found(2.0, 1.0, 1.0, pair=3), found(1.0, 4.0, 8.0, pair=1, prefill_queue=4)]
        summary = mode_map.summary_of([*rounds, found(0.0, 0.0, 0.0)])
        self.assertEqual(summary["ratio"], {"median": 1.0, "low": 0.5, "high": 2.0})
        self.assertEqual(summary["better"], "aggregated")
        self.assertEqual(summary["pair_share"], 0.5)
        self.assertIsNone(mode_map.summary_of([found(1.0, 1.0, 1.0)])["pair_share"])

    def test_an_open_loop_asks_for_the_shape_at_the_intended_times(self):
        stub = StubServer()
        answers = stub.run(lambda where: mode_map.open_loop(where, self.SHAPE, 200.0, 4, seed=7))
        self.assertEqual(sorted(a.status for a in answers), [200, 200, 429, 429])
        self.assertEqual([len(a.arrivals) for a in answers if a.status == 200], [2, 2])
        for earlier, later in zip(answers, answers[1:]):
            self.assertLess(earlier.due, later.due)
        for answer in answers:
            self.assertLessEqual(answer.due, answer.sent)
            self.assertLessEqual(answer.sent, answer.ended)
        self.assertEqual({len(body["prompt"]) for body in stub.bodies}, {3})
        self.assertEqual({body["max_tokens"] for body in stub.bodies}, {2})

    def test_a_closed_loop_counts_answers_alone(self):
        stub = StubServer()
        per_s = stub.run(lambda where: mode_map.closed_loop(where, self.SHAPE, 2, 6, seed=7))
        self.assertEqual(len(stub.bodies), 6)
        self.assertGreater(per_s, 0)


class RoutersTest(unittest.TestCase):
    def read(self, end):
        """The client's words on a stream of two tokens that `end(socket)` ends."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            client = routers.Client(0, "openai", 1)
            stream = [ours, 0, b""]
            theirs.sendall(routers.STREAM_HEAD + routers.event(0) + routers.event(1))
            client.read(stream)
            self.assertEqual(len(client.arrivals[0]), 2)
            end(theirs)
            with self.assertRaises(SystemExit) as caught:
                client.read(stream)
            return str(caught.exception)

    def test_a_stream_that_is_cut_is_seen(self):
        self.assertEqual(self.read(socket.socket.close), "stream 0 was cut after 2 tokens")

    def test_a_stream_that_ends_early_is_seen(self):
        said = self.read(lambda theirs: theirs.sendall(routers.LAST_EVENTS))
        self.assertEqual(said, "stream 0 ended after 2 tokens")

    def test_only_tokens_that_left_in_the_window_count(self):
        departures = [[1000, 2000, 3000], [0, 1999, 2001]]
        arrivals = [[1500, 2250, 9000], [0, 2999, 2101]]
        self.assertEqual(routers.added_ms(departures, arrivals, 2000, 3000), [0.25, 0.1])

    def test_times_are_stored_as_the_toy_workers_store_them(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/times"
            routers.save(path, [[5, 6], []])
            first, second = routers.load(path, 2)
            self.assertEqual(list(first[:3]) + [first[-1]], [5, 6, 0, 0])
            self.assertEqual(sum(second), 0)
            self.assertEqual(Path(path).stat().st_size, 2 * routers.NUM_TOKENS * 8)
            with self.assertRaisesRegex(SystemExit, "has 600 times, not 3 x 300"):
                routers.load(path, 3)

    def test_a_toy_stream_has_one_event_a_token_and_an_end(self):
        self.assertEqual(len(routers.TOKEN.findall(routers.event(27))), 1)
        self.assertIn(b'"text":"b"', routers.event(27))
        self.assertEqual(routers.TOKEN.findall(routers.LAST_EVENTS), [])
        size, rest = routers.event(0).split(b"\r\n", 1)
        self.assertEqual(int(size, 16), len(rest) - 2)

    def test_the_summary_compares_turns_of_one_round(self):
        def turn(router, number, p50):
            row = dict.fromkeys(routers.NUMBERS, 1.0) | {"added_p50_ms": p50}
            return {"router": router, "round": number, "streams": 200, **row}

        turns = [turn("baton", 0, 1.0), turn("smg", 0, 2.0), turn("smg", 1, 8.0)]
        found = routers.summary([*turns, turn("baton", 1, 2.0)])["200"]
        self.assertEqual(found["median"]["smg"]["added_p50_ms"], 5.0)
        self.assertEqual(found["baton_to"]["smg"]["added_p50_ms"]["median"], 0.375)
        self.assertEqual(list(found["baton_to"]), ["smg"])


STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000300           3       100           epoll_wait
 40.00    0.000200           4        50        50 futex
------ ----------- ----------- --------- --------- ----------------
100.00    0.000500           3       150        50 total
"""


class TokenTraceTest(unittest.TestCase):
    def test_the_table_of_strace_has_calls_with_and_without_errors(self):
        self.assertEqual(token_trace.parse_strace(STRACE), {"epoll_wait": 100, "futex": 50})
        self.assertEqual(token_trace.parse_strace(""), {})

    def test_perf_knows_only_how_many(self):
        text = "# started on Sun\n\n29,,raw_syscalls:sys_enter,1158999,100.00,,\n"
        self.assertEqual(token_trace.parse_perf(text), {"all": 29})
        self.assertEqual(token_trace.parse_perf("<not counted>,,raw_syscalls:sys_enter,,"), {})

    def test_threads_of_one_kind_are_added_and_new_ones_begin_at_zero(self):
        before = {"1": ("router", (5, 1, 10.0, 2.0)), "2": ("kernel-1", (7, 0, 1.0, 0.0))}
        after = {
            "1": ("router", (9, 1, 30.0, 3.0)),
            "2": ("kernel-1", (8, 0, 2.0, 0.0)),
            "3": ("kernel-12", (2, 1, 4.0, 0.5)),
        }
        found = token_trace.difference(before, after)
        self.assertEqual(
            found,
            {
                "router": {"wakeups": 4, "preempted": 0, "cpu_us": 20.0, "waited_us": 1.0},
                "kernel": {"wakeups": 3, "preempted": 1, "cpu_us": 5.0, "waited_us": 0.5},
            },
        )

    def test_the_summary_adds_workers_of_a_role_and_takes_the_median_of_turns(self):
        def turn(wakeups, calls):
            row = dict.fromkeys(token_trace.COUNTERS, 1.0) | {"wakeups": wakeups}
            row["syscalls"] = calls
            head = {"mode": "split", "streams": 1, "tokens_per_s": 10.0, "tokens_a_step": 1.0}
            return {**head, "processes": {"decode-0": row, "decode-1": row}}

        turns = [turn(1.0, {"futex": 2, "read": 1}), turn(3.0, {"futex": 4}), turn(2.0, {})]
        found = token_trace.summary(turns)["split, 1 streams"]
        self.assertEqual(found["processes"]["decode"]["wakeups"], 4.0)
        self.assertEqual(found["processes"]["decode"]["syscalls"], 6)
        self.assertNotIn("syscalls", token_trace.role_rows(turn(1.0, None))["decode"])

    def test_the_counters_of_a_process_that_runs_are_read(self):
        found = token_trace.thread_counters("self")
        self.assertTrue(found)
        for _, numbers in found.values():
            self.assertEqual(len(numbers), len(token_trace.COUNTERS))


if __name__ == "__main__":
    unittest.main()
