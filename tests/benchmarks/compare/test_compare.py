"""Tests what benchmarks/compare makes of the load client's samples, its tables and its picture."""

import os
import sys
import tempfile
import types
import unittest
import xml.dom.minidom
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "compare"))
import run  # noqa: E402
import servers  # noqa: E402
import tables  # noqa: E402


def request(intended_ms, want_input, first_ms=None, gaps_ms=()):
    record = {"intended_us": intended_ms * 1000, "want_input": want_input, "end_us": 9_000_000}
    if first_ms is not None:
        record["first_token_us"] = first_ms * 1000
        record["gaps_us"] = [gap * 1000 for gap in gaps_ms]
    return record


def load(requests):
    report = {"attempted": len(requests), "ok": len(requests), "output_tokens_per_s": 10.0}
    report.update(golden_asked=0, golden_wrong=0)
    return {
        "report": report,
        "requests": requests,
        "start_lag_us": [10.0] * 100,
        "read_lag_us": [40.0] * 98 + [9000.0] * 2,
    }


def result(**changes):
    """A whole result with numbers that are easy to find again."""
    numbers = {"itl_ms": [20.0, 30.0], "ttft_ms": [100.0], "long_ttft_ms": [5000.0]}
    slow = {"itl_ms": [400.0, 900.0], "ttft_ms": [300.0], "long_ttft_ms": [8000.0]}
    sides = {"baton": [numbers], "baton aggregated": [numbers], "llama.cpp": [slow]}
    rates = {"baton": [90.0, 110.0], "baton aggregated": [95.0, 95.0], "llama.cpp": [45.0, 50.0]}
    forward = run.pair_ratio({n: rates[n] for n in ("baton", "llama.cpp")}, "baton")
    return {
        **{"model": "m<1>.gguf", "cpu": "cpu", "cores": 2, "threads": 2, "rounds": 2},
        **{"commit": "abc", "quick": False, "void": [], "limits": {"int16": 3e11, "read": 2e10}},
        "forward": [
            {
                **{"case": "pp128", "limit": "int16", **forward},
                "share_of_limit": {"baton": 0.314, "llama.cpp": 0.15},
            }
        ],
        "streams": [{"streams": 4, **run.pair_ratio(rates, "baton"), "runs": sides}],
        "burst": {"runs": {**sides, "llama.cpp -b 64": [slow]}},
        **changes,
    }


class BurstTest(unittest.TestCase):
    def test_counts_gaps_that_touch_the_window(self):
        # The window is 1000 ms (first long prompt due) to 3000 ms (last one's first token).
        numbers = run.burst_numbers(
            load(
                [
                    # Tokens at 800, 990, 1010, 2900, 3100, 3300: the gaps that end at 990 and begin
                    # at 3100 lie outside.
                    request(0, 32, 800, [190, 20, 1890, 200, 200]),
                    request(0, 32),  # never answered: no gap
                    request(1000, run.BURST["long_tokens"], 2000, [5]),
                    request(1600, run.BURST["long_tokens"], 3000, [5]),
                ]
            )
        )
        self.assertEqual(numbers["itl_ms"], [20, 1890, 200])
        self.assertEqual(numbers["long_ttft_ms"], [1000, 1400])
        self.assertEqual(numbers["window_s"], 2)

    def test_a_long_prompt_without_an_answer_keeps_the_window_open(self):
        numbers = run.burst_numbers(
            load([request(0, 32, 10, [8000]), request(1000, run.BURST["long_tokens"])])
        )
        self.assertEqual(numbers["window_s"], 8)
        self.assertEqual(numbers["itl_ms"], [8000])

    def test_the_larger_lag_is_kept(self):
        self.assertEqual(run.lag_ms(load([])), 9)


class StartTest(unittest.TestCase):
    def comparison(self, folder):
        names = {"baton": "baton", "llama_cpp": folder, "threads": 2, "quick": True, "isa": "auto"}
        comparison = run.Comparison(types.SimpleNamespace(**names), "m.gguf")
        comparison.servers = []
        return comparison

    def test_a_missing_program_is_said_before_anything_is_started(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(run, "Server") as server:
            comparison = self.comparison(folder)
            with self.assertRaisesRegex(SystemExit, "has no llama-server"):
                comparison.start()
            server.assert_not_called()

    def test_servers_before_one_that_fails_are_known_and_so_stopped(self):
        def made(name, argv, port):
            if name.startswith("llama"):
                raise OSError("no such program")
            return name

        with (
            mock.patch.object(run, "llama_argv", return_value=[]),
            mock.patch.object(run, "Server", side_effect=made),
        ):
            comparison = self.comparison("nowhere")
            with self.assertRaises(OSError):
                comparison.start()
            self.assertEqual(comparison.servers, ["baton", "baton aggregated"])


class VoidTest(unittest.TestCase):
    def reasons(self, name, **changes):
        report = {"attempted": 8, "ok": 8, "void": [], "cut_short": "", **changes}
        return run.void_reasons(name, report)

    def test_a_server_that_failed_a_request_is_not_compared(self):
        self.assertEqual(self.reasons("baton"), [])
        self.assertEqual(self.reasons("llama.cpp", ok=7), ["1 of 8 requests failed"])
        self.assertEqual(self.reasons("baton", cut_short="gone"), ["gone"])

    def test_only_wrong_golden_answers_of_llama_cpp_are_forgiven(self):
        wrong = "2 of 8 golden prompts had a wrong answer"
        none = "none of 8 requests was an answered golden prompt"
        self.assertEqual(self.reasons("llama.cpp -b 64", void=[wrong, none]), [none])
        self.assertEqual(self.reasons("baton", void=[wrong]), [wrong])


class RatioTest(unittest.TestCase):
    def test_is_of_the_rounds_not_of_the_medians(self):
        ratio = run.pair_ratio({"baton": [10, 40, 90], "llama.cpp": [10, 20, 30]}, "baton")
        self.assertEqual(ratio["ratio"], {"llama.cpp": [2, 1, 3]})
        self.assertEqual(ratio["median"], {"baton": 40, "llama.cpp": 20})


    def test_of_times_is_above_one_where_the_first_is_faster(self):
        ratio = run.times_faster({"baton": [10, 10, 40], "llama.cpp": [20, 40, 20]}, "baton")
        self.assertEqual(ratio["ratio"], {"llama.cpp": [2, 0.5, 4]})
        self.assertEqual(ratio["median"], {"baton": 10, "llama.cpp": 20})


class MemoryTest(unittest.TestCase):
    def test_is_of_all_processes_of_the_server(self):
        server = object.__new__(servers.Server)
        texts = {1: "Rss:  9000 kB\nPss:  2048 kB\n", 2: "Pss:  1024 kB\nPss_Anon: 9 kB\n"}
        with (
            mock.patch.object(servers.Server, "pids", return_value=[1, 2]),
            mock.patch.object(servers, "smaps", side_effect=texts.get),
        ):
            self.assertEqual(server.pss_mib(), 3)

    def test_a_process_is_the_first_of_its_own(self):
        server = object.__new__(servers.Server)
        server.process = types.SimpleNamespace(pid=os.getpid())
        self.assertEqual(server.pids()[0], os.getpid())
        self.assertGreater(server.pss_mib(), 1)


class TablesTest(unittest.TestCase):
    def test_have_every_number_beside_its_limit(self):
        text = "\n".join(tables.markdown(result(), "p.svg"))
        self.assertIn("| pp128 | 100 | 48 | 2.10 | 2.00 to 2.20 | 31 % of int16 |", text)
        self.assertIn("| llama.cpp | 4 | 48 | 2.10 | 2.00 to 2.20 | 300 ms | 650.0 ms |", text)
        self.assertIn("| baton | 2 | 20.0 ms | - | 30 ms | 5000 ms |", text)
        self.assertIn("int16 300.0 Gop/s, reading 20.0 GB/s.", text)
        self.assertNotIn("quoted", text)
        for line in text.splitlines():
            if line.startswith("|"):
                self.assertIn(line.count("|"), (6, 7, 8), line)

    def test_have_start_ttft_and_memory_where_the_run_had_them(self):
        self.assertEqual(tables.start_table(result()), [])
        times = run.times_faster({"baton": [500, 500], "llama.cpp": [250, 1000]}, "baton")
        start = {**times, "pss_mib": {"baton": 400, "llama.cpp": 300}}
        lines = tables.start_table(result(start=start, ttft=[{"tokens": 128, **times}]))
        self.assertIn("| ttft of 128 tokens, ms | 500 | 625 | 1.25 | 0.50 to 2.00 |", lines)
        self.assertIn("| memory after 16 users, MiB (PSS) | 400 | 300 | 0.75 | |", lines)
        for line in lines[:-1]:
            self.assertEqual(line.count("|"), 6, line)

    def test_print_a_p99_from_a_thousand_samples_on(self):
        def row(gaps):
            runs = {"baton": [{"itl_ms": gaps, "long_ttft_ms": [5000.0]}]}
            return tables.burst_table({"burst": {"runs": runs}})[-1]

        self.assertEqual(
            row([20.0] * 989 + [30.0] * 10),
            "| baton | 999 | 20.0 ms | - | 30 ms | 5000 ms |",
        )
        self.assertEqual(
            row([20.0] * 989 + [30.0] * 10 + [90.0]),
            "| baton | 1000 | 20.0 ms | 30.0 ms | 90 ms | 5000 ms |",
        )

    def test_three_rows_of_a_whole_result_are_the_headline(self):
        whole = result()
        whole["forward"][0]["case"] = "pp512"
        whole["streams"][0]["streams"] = 16
        for runs in whole["burst"]["runs"].values():
            runs[0]["itl_ms"] = runs[0]["itl_ms"] * 500
        whole["burst"]["runs"]["llama.cpp -b 64"] = [{"itl_ms": [70.0] * 999}]
        text = "\n".join(tables.headline(whole))
        self.assertIn("tokens | 100 tokens/s | the same | 48 tokens/s |", text)
        self.assertIn("| 16 users at a time | 100 tokens/s | 95 tokens/s | 48 tokens/s |", text)
        self.assertIn("p99 | 30.0 ms | 30.0 ms | - (`llama.cpp -b 64`) |", text)
        self.assertIn("commit abc", text)

    def test_say_what_must_not_be_quoted(self):
        self.assertIn("not to be quoted", tables.foot(result(quick=True)))
        self.assertIn("1 of its parts are void", tables.foot(result(void=["x"])))

    def test_the_picture_is_xml_with_a_bar_or_line_for_each_server(self):
        svg = xml.dom.minidom.parseString(tables.picture(result()))
        colours = [node.getAttribute("fill") for node in svg.getElementsByTagName("rect")]
        # Forward and streams, and the legend.
        self.assertEqual([colours.count(c) for c in tables.COLOURS], [3, 2, 2, 1])
        lines = [n for n in svg.getElementsByTagName("path") if n.getAttribute("class") == "line"]
        self.assertEqual(len(lines), 4)
        self.assertIn("m<1>.gguf", svg.getElementsByTagName("title")[0].firstChild.data)


if __name__ == "__main__":
    unittest.main()
