"""Each rule must find a planted violation and accept the clean twin beside it."""

import tempfile
import unittest
from pathlib import Path

import cpp_scan
import include_rules
import limit_rules
import namespace_rules
import path_rules
import size_rules
import text_rules
import tidy
import unused_rules
from tree import Tree

GUARD = "#ifndef BATON_X_H_\n#define BATON_X_H_\n{}\n#endif  // BATON_X_H_\n"
THREADS = "# Threads\n\n## Threads\n\n| name | process |\n|---|---|\n| `engine` | decode |\n"


def findings(rule, files):
    """The findings of `rule` in a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return list(rule(Tree(folder)))


def names(rule, files):
    return [finding.name for finding in findings(rule, files)]


class IncludeTest(unittest.TestCase):
    def include(self, path, included, system=False):
        text = f"#include <{included}>\n" if system else f'#include "{included}"\n'
        files = {path: text, "scheduler/README.md": "x"}
        if "/" in included and not system:
            files[included] = ""
        return names(include_rules.check_includes, files)

    def test_direction(self):
        for path, included in (
            ("src/base/a.h", "src/http/b.h"),
            ("kernels/a.cc", "scheduler/b.h"),
            ("kernels/a.cc", "kvcache/block_pool.h"),
            ("kvcache/kv_arena.cc", "src/device/b.h"),
            ("kvcache/a.cc", "kvcache/transport/b.h"),
            ("scheduler/a.cc", "kvcache/kv_arena.h"),
            ("src/router/a.cc", "src/worker/b.h"),
            ("src/router/a.cc", "src/device/b.h"),
            ("src/text/a.cc", "src/model/b.h"),
            ("src/engine/a.cc", "baton/v1/worker.pb.h"),
            ("src/sim/a.cc", "baton/v1/worker.grpc.pb.h"),
            ("src/sim/a.cc", "src/worker/session_service.h"),
        ):
            self.assertEqual(self.include(path, included)[:1], [included], path)
        for path, included in (
            ("src/http/a.h", "src/base/b.h"),
            ("kernels/a.cc", "kvcache/kv_view.h"),
            ("src/worker/a.cc", "kernels/ops.h"),
            ("src/cli/a.cc", "src/router/b.h"),
            ("tests/kvcache/a.cc", "kvcache/transport/b.h"),
            ("src/router/a.cc", "baton/v1/worker.pb.h"),
            ("src/sim/a.cc", "baton/v1/worker.pb.h"),
            ("src/sim/a.cc", "src/worker/request_codec.h"),
        ):
            self.assertEqual(self.include(path, included), [], path)

    def test_purity(self):
        for path, included in (
            ("scheduler/a.cc", "mutex"),
            ("kvcache/a.h", "condition_variable"),
            ("scheduler/a.h", "chrono"),
            ("kvcache/a.cc", "thread"),
            ("src/engine/a.cc", "grpcpp/grpcpp.h"),
            ("src/sim/a.cc", "grpcpp/grpcpp.h"),
            ("src/base/b.cc", "cuda_runtime.h"),
            ("src/http/a.cc", "spdlog/spdlog.h"),
        ):
            self.assertEqual(self.include(path, included, system=True), [included], path)
        for header in ("src/base/clock.h", "src/base/mutex.h"):
            self.assertEqual(self.include("scheduler/a.cc", header), [header])
            self.assertEqual(self.include("kvcache/a.cc", header), [header])
        self.assertEqual(self.include("kvcache/transport/a.cc", "thread", system=True), [])
        self.assertEqual(self.include("src/worker/a.cc", "grpcpp/grpcpp.h", system=True), [])

    def test_from_the_root_and_existing(self):
        self.assertEqual(self.include("src/base/a.cc", "b.h"), ["b.h"])
        missing = {"src/base/a.cc": '#include "src/base/gone.h"\n'}
        self.assertEqual(names(include_rules.check_includes, missing), ["src/base/gone.h"])
        product = {"src/base/a.cc": '#include "tests/b.h"\n', "tests/b.h": ""}
        self.assertEqual(names(include_rules.check_includes, product), ["tests/b.h"])

    def test_guard(self):
        self.assertEqual(
            len(findings(include_rules.check_guards, {"src/a.h": "#pragma once\n"})), 1
        )
        self.assertEqual(findings(include_rules.check_guards, {"src/a_body.h": "int x;\n"}), [])
        self.assertEqual(findings(include_rules.check_guards, {"src/a.h": GUARD.format("")}), [])


class LimitTest(unittest.TestCase):
    HEADER = (
        "inline constexpr uint32_t kMaxChoices = 128;\n"
        "inline constexpr size_t kMaxBodyBytes = size_t{8} << 20;\n"
        "inline constexpr uint32_t kMaxBlocks = (1u << 18) - 1024;\n"
        "inline constexpr int64_t kMaxMs =\n    int64_t{24} * 3600 * 1'000;\n"
        "inline constexpr float kMaxBias = 100.0f;\n"
        "inline constexpr uint32_t kMaxTokens = kMaxBlocks;\n"
    )
    ROWS = (
        ("a.proto", r"n above ([\d,]+)", "kMaxChoices"),
        ("a.proto", r"body of (\d+) MiB, ids of ([\d,]+)", "kMaxBodyBytes/m kMaxTokens"),
    )

    PAGE_ROWS = ((r"`n` above ([\d,]+)", "kMaxChoices"),)

    def names(self, text, header=HEADER, path="a.proto"):
        def rule(tree):
            return limit_rules.check_limits(tree, self.ROWS, self.PAGE_ROWS)

        return names(rule, {"src/base/limits.h": header, path: text})

    def test_constants_are_computed(self):
        self.assertEqual(
            limit_rules.read_limits(self.HEADER),
            {
                "kMaxChoices": 128,
                "kMaxBodyBytes": 8 << 20,
                "kMaxBlocks": 261120,
                "kMaxMs": 86_400_000,
                "kMaxBias": 100.0,
                "kMaxTokens": 261120,
            },
        )

    def test_numbers_in_texts_are_the_limits(self):
        good = "n above 128 is refused, a body of 8 MiB, ids of 261,120\n"
        self.assertEqual(self.names(good), [])
        self.assertEqual(self.names(good.replace("128", "12")), ["kMaxChoices"])
        self.assertEqual(self.names(good.replace("8 MiB", "16 MiB")), ["kMaxBodyBytes"])
        self.assertEqual(self.names(good + "n above 64"), ["kMaxChoices"])
        self.assertEqual(self.names(good.replace("ids of", "ids:")), ["kMaxBodyBytes/m kMaxTokens"])

    def test_a_changed_constant_is_found_in_the_texts(self):
        good = "n above 128 is refused, a body of 8 MiB, ids of 261,120\n"
        header = self.HEADER.replace("= 128", "= 256")
        self.assertEqual(self.names(good, header), ["kMaxChoices"])

    def test_pages_may_move_a_sentence_and_not_change_its_number(self):
        self.assertEqual(self.names("nothing", path="src/api/README.md"), [])
        self.assertEqual(self.names("`n` above 128", path="src/api/NEW.md"), [])
        self.assertEqual(self.names("`n` above 12", path="src/api/NEW.md"), ["kMaxChoices"])


class CycleTest(unittest.TestCase):
    def cycles(self, *includes):
        files = {}
        for path, included in includes:
            files[path] = files.get(path, "") + f'#include "{included}"\n'
            files.setdefault(included, "")
        return names(include_rules.check_cycles, files)

    def test_no_files_in_a_circle(self):
        a, b, c = "src/text/a.h", "src/text/b.h", "src/text/c.h"
        self.assertEqual(self.cycles((a, b), (b, c), (a, c)), [])
        self.assertEqual(self.cycles((a, b), (b, c), (c, a)), ["files"])
        self.assertEqual(self.cycles((a, a)), ["files"])

    def test_no_components_in_a_circle(self):
        down = ("kernels/a.h", "kvcache/view.h")
        self.assertEqual(self.cycles(down), [])
        up = ("kvcache/transport/t.cc", "kernels/b.h")
        self.assertEqual(self.cycles(down, up), ["components"])


class UnusedTest(unittest.TestCase):
    HEADER = """
enum class Kind { kFast, kSlow };
#define BATON_TWICE(x) x x
class Queue {
 public:
  bool IsFull() const { return size_ == kMax; }
 private:
  static constexpr int kMax = 3;
  int size_ = 0;
};
Queue MakeQueue(int num_items);
inline constexpr int kLimit = 7;
"""

    def unused(self, source, line='#include "src/base/b.h"\n', path="src/base/a.cc"):
        files = {path: line + source, "src/base/b.h": GUARD.format(self.HEADER)}
        return names(unused_rules.check_unused_includes, files)

    def test_an_include_without_a_used_name(self):
        for source in ("int num_items = 3;", "// Queue\n", 'const char* kName = "kLimit";'):
            self.assertEqual(self.unused(source), ["src/base/b.h"], source)
        for source in (
            "Queue* queue;",
            "auto kind = Kind::kSlow;",
            "int a = kLimit;",
            "auto a = MakeQueue(1);",
            "bool a = b->IsFull();",
            "BATON_TWICE(int a;)",
            "#define MAKE \\\n  MakeQueue(2)\n",
        ):
            self.assertEqual(self.unused(source), [], source)

    def test_who_may_include_without_a_name(self):
        kept = '#include "src/base/b.h"  // IWYU pragma: keep\n'
        self.assertEqual(self.unused("", kept), [])
        self.assertEqual(self.unused("", path="src/base/b.cc"), [])
        self.assertEqual(self.unused("", path="tests/base/b_test.cc"), [])

    def test_an_exporting_header_has_the_names_of_the_other(self):
        export = GUARD.format('#include "src/base/b.h"  // IWYU pragma: export\n')
        for source, expected in (("int a = kLimit;", []), ("int a;", ["src/base/all.h"])):
            files = {
                "src/base/a.cc": '#include "src/base/all.h"\n' + source,
                "src/base/all.h": export,
                "src/base/b.h": GUARD.format(self.HEADER),
            }
            self.assertEqual(names(unused_rules.check_unused_includes, files), expected, source)

    def test_a_using_declaration_without_a_use(self):
        for source, expected in (
            ("using std::string;\n", ["string"]),
            ("using std::string;\nstring a;\n", []),
            ("using std::string;  // string\n", ["string"]),
        ):
            found = names(unused_rules.check_unused_usings, {"src/base/a.cc": source})
            self.assertEqual(found, expected, source)


class NamespaceTest(unittest.TestCase):
    def names(self, path, text):
        return names(namespace_rules.check_namespaces, {path: text})

    def block(self, namespace, inside="int x;"):
        return f"namespace {namespace} {{\n{inside}\n}}  // namespace {namespace}\n"

    def test_a_folder_has_one_namespace(self):
        for path, own, foreign in (
            ("src/router/a.h", "baton::router", "baton"),
            ("src/router/a.cc", "baton::router", "baton::api"),
            ("kvcache/transport/nccl/a.h", "baton::kv::nccl", "baton::nccl"),
            ("src/base/a.h", "baton", "baton::kv"),
            ("tests/text/a_test.cc", "baton::text", "baton"),
            ("tests/nccl/a.h", "baton::kv::nccl_test", "baton::nccl_test"),
            ("tests/benchmarks/router/a.cc", "baton::router", "baton::loadgen"),
            ("src/loadgen/a.h", "baton::loadgen", "baton::loadgenerator"),
            ("tests/loadgen/a_test.cc", "baton::loadgen", "baton"),
        ):
            self.assertEqual(self.names(path, self.block(own)), [], path)
            self.assertEqual(self.names(path, self.block(foreign)), [foreign], path)

    def test_a_class_of_another_folder_may_be_declared_ahead(self):
        ahead = "class BlockPool;\nstruct KvView;\ntemplate <typename T>\nclass Table;"
        self.assertEqual(self.names("scheduler/a.h", self.block("baton::kv", ahead)), [])
        defined = "class BlockPool {};"
        found = self.names("scheduler/a.h", self.block("baton::kv", defined))
        self.assertEqual(found, ["baton::kv"])

    def test_headers_take_no_names_for_everybody(self):
        for line in ("using namespace kv;", "using kv::BlockPool;", "using namespace std;"):
            self.assertEqual(self.names("scheduler/a.h", line + "\n"), [line])
            self.assertEqual(self.names("scheduler/a.cc", line + "\n"), [])
        for line in ("using Ids = std::vector<int>;", "  using Base::Base;"):
            self.assertEqual(self.names("scheduler/a.h", line + "\n"), [])


class ScanTest(unittest.TestCase):
    def only(self, text):
        found = cpp_scan.Scan(text).functions
        self.assertEqual(len(found), 1, found)
        return found[0]

    def test_lines_and_names(self):
        function = self.only("namespace a {\nint Foo::Bar(int x)\n    const {\n  return x;\n}\n}\n")
        self.assertEqual((function.name, function.first_line, function.last_line), ("Bar", 2, 5))

    def test_constructor_initialisers_are_not_bodies(self):
        text = "Foo::Foo(int a) : a_{a}, b_(std::max(a, 1)), c_{1, 2} {\n  if (a) { b_ = 2; }\n}\n"
        function = self.only(text)
        self.assertEqual(
            (function.name, function.num_parameters, function.max_nesting), ("Foo", 1, 1)
        )

    def test_parameters(self):
        for text, count in (
            ("void F();", 0),
            ("void F(void) {}", 0),
            ("void F(int a, int b) {}", 2),
            ("void F(std::map<int, int> a, std::function<void(int, int)> b);", 2),
            ("template <class A, class B> A F(A a, B b, int c = G(1, 2)) {}", 3),
            ("bool operator()(int a, int b) const { return a < b; }", 2),
            ('TEST(A, B) { F("a,b", {1, 2, 3}); }', 2),
        ):
            self.assertEqual(self.only(text).num_parameters, count, text)

    def test_nesting(self):
        deep = "if (a) { for (;;) { while (b) { switch (c) { case 1: d(); } } } }"
        self.assertEqual(self.only("void F() { " + deep + " }").max_nesting, 4)
        chain = "if (a) { x(); } else if (b) { y(); } else { z(); }"
        self.assertEqual(self.only("void F() { " + chain + " }").max_nesting, 1)
        values = "Foo x{1, {2, 3}}; auto y = Bar{.a = {1}}; return {1, 2};"
        self.assertEqual(self.only("Foo F() { " + values + " }").max_nesting, 0)
        lambda_body = "if (a) { Run([&](int i) mutable { if (i) { b(); } }); }"
        self.assertEqual(self.only("void F() { " + lambda_body + " }").max_nesting, 1)

    def test_types_and_literals(self):
        text = (
            '// A.\nclass A { struct B { int c; }; };\nenum class E : int { kX };\n'
            'struct alignas(64) D { int e; };\nstruct Fwd;\nauto s = "class X {";\n'
            'const char* r = R"(struct Y { )";\nchar q = \'{\';\nint sep = 1\'000;\n'
        )
        self.assertEqual({t.name for t in cpp_scan.Scan(text).types}, {"A", "B", "E", "D"})


class SizeTest(unittest.TestCase):
    def test_files(self):
        self.assertEqual(len(findings(size_rules.check_file_sizes, {"src/a.h": "\n" * 251})), 1)
        self.assertEqual(findings(size_rules.check_file_sizes, {"src/a.h": "\n" * 250}), [])
        self.assertEqual(findings(size_rules.check_file_sizes, {"kernels/ops.h": "\n" * 500}), [])
        self.assertEqual(len(findings(size_rules.check_file_sizes, {"tests/a.cc": "\n" * 801})), 1)

    def test_columns(self):
        self.assertEqual(len(findings(size_rules.check_columns, {"src/a.cc": "x" * 101})), 1)
        self.assertEqual(findings(size_rules.check_columns, {"src/a.cc": "é" * 100}), [])

    def test_functions(self):
        long = "void F() {\n" + "  x();\n" * 69 + "}\n"
        self.assertEqual(
            [f.rule for f in findings(size_rules.check_functions, {"src/a.cc": long})],
            ["function_size"],
        )
        self.assertEqual(findings(size_rules.check_functions, {"kernels/a.cc": long}), [])
        shorter = "void F() {\n" + "  x();\n" * 68 + "}\n"
        self.assertEqual(findings(size_rules.check_functions, {"src/a.cc": shorter}), [])
        six = "void F(int a, int b, int c, int d, int e, int f);\n"
        self.assertEqual(
            [f.rule for f in findings(size_rules.check_functions, {"src/a.cc": six})],
            ["parameters"],
        )
        deep = "void F() { if (a) { if (b) { if (c) { if (d) { x(); } } } } }\n"
        self.assertEqual(
            [f.rule for f in findings(size_rules.check_functions, {"src/a.cc": deep})], ["nesting"]
        )
        self.assertEqual(findings(size_rules.check_functions, {"kernels/a.cc": deep}), [])

    def test_type_sentences(self):
        self.assertEqual(
            names(size_rules.check_documented_types, {"src/a.cc": "\nclass A { };\n"}), ["A"]
        )
        good = "// Does it.\ntemplate <class T>\nclass A { };\n"
        self.assertEqual(findings(size_rules.check_documented_types, {"src/a.cc": good}), [])

    def test_share_of_tests(self):
        files = {"src/a.cc": "x\n" * 71, "tests/a.cc": "x\n" * 29}
        self.assertEqual(len(findings(size_rules.check_test_share, files)), 1)
        files["tests/a.cc"] += "x\n" * 2
        self.assertEqual(findings(size_rules.check_test_share, files), [])


class TextTest(unittest.TestCase):
    def test_names(self):
        for name in ("BlockManager", "StringUtil", "RequestContext", "SocketHelper"):
            self.assertEqual(
                names(text_rules.check_names, {"src/a.cc": f"class {name} {{}};"}), [name]
            )
        self.assertEqual(names(text_rules.check_names, {"src/a.cc": "grpc::ServerContext c;"}), [])
        self.assertEqual(len(findings(text_rules.check_names, {"src/http_util.h": ""})), 1)

    def test_threads(self):
        def threads(text, path="src/a.cc"):
            return names(text_rules.check_threads, {"src/THREADS.md": THREADS, path: text})

        self.assertEqual(threads('Thread t("engine", [] {});'), [])
        self.assertEqual(
            threads('thread_ = Thread("engine", [] {}); Thread x("rogue", f);'), ["rogue"]
        )
        self.assertEqual(
            threads('std::vector<Thread> v; v.emplace_back("pool", f); Thread("engine");'), ["pool"]
        )
        self.assertEqual(
            threads('Thread("engine"); vector<Thread> v; v.emplace_back(fmt::format("k-{}", 1));'),
            ["k-N"],
        )
        self.assertEqual(threads('Thread("engine"); std::thread t(f);'), ["std::thread"])
        self.assertEqual(
            threads('Thread("engine"); int n = std::thread::hardware_concurrency();'), []
        )
        self.assertEqual(threads('// Thread("engine") is no start'), ["engine"])
        self.assertEqual(threads('Thread("test-x", f);', "tests/a.cc"), ["engine"])

    def test_mutexes(self):
        def mutexes(text, path="src/a.cc"):
            return names(text_rules.check_mutexes, {path: text})

        for raw in (
            "std::mutex",
            "std::shared_mutex",
            "std::lock_guard",
            "std::unique_lock",
            "std::scoped_lock",
            "std::condition_variable",
            "std::condition_variable_any",
            "absl::MutexLock",
            "pthread_mutex_lock",
        ):
            for path in ("src/a.cc", "kernels/a.h", "benchmarks/a.cc", "kvcache/transport/a.h"):
                self.assertEqual(mutexes(f"{raw} x;", path), [raw], path)
            self.assertEqual(mutexes(f"{raw} x;", "tests/a.cc"), [])
            self.assertEqual(mutexes(f"{raw} x;", "src/base/mutex.h"), [])
            self.assertEqual(mutexes(f"int x;  // as {raw}"), [])
        self.assertEqual(mutexes("Mutex m; MutexLock l(m); std::once_flag o; CondVar c;"), [])

    def test_text(self):
        hosts = ["pypi" + ".org", "static.crates" + ".io"]
        bad = [
            "see " + "/ho" + "me/me/x",
            "/wo" + "rk/y",
            "https://" + hosts[0] + "/x",
            hosts[1],
            "fixes " + "#12",
            "iss" + "ue 7",
            "GH" + "-5",
        ]
        for line in bad:
            self.assertEqual(len(findings(text_rules.check_text, {"a.md": line})), 1, line)
        for line in (
            "color: #123;",
            "https://huggingface.co/x",
            "build/home/x",
            "&#39;",
            "$HOME/work/x",
            "an issue with 3 parts",
            "## 5 things",
            "%s:%#: %v",
            "${X}/root/y",
        ):
            self.assertEqual(findings(text_rules.check_text, {"a.md": line}), [], line)

    def test_openings(self):
        # Here % stands for the marks of a comment.
        for path, text in (
            ("a.h", "#include <map>\n% Of one item.\nint x;\n"),
            ("a.cc", "int x;  % What it is.\n"),
            ("a.cc", "% One.\n\n%/ Those that are left.\n"),
            ("a.py", "x = 1\n    % The same again.\n"),
            ("CMakeLists.txt", "% Likewise.\n"),
            ("a.proto", "int32 x = 1;  % Who asks.\n"),
        ):
            self.assertEqual(len(self.openings(path, text)), 1, text)
        for path, text in (
            ("a.h", "% The times of what\n% Of gives.\n"),
            ("a.cc", "% Offsets. What counts stands below.\n"),
            ("a.py", "% The words after\n% What is one sentence.\n"),
        ):
            self.assertEqual(self.openings(path, text), [], text)

    def openings(self, path, text):
        mark = "#" if path.endswith((".py", ".txt")) else "//"
        return findings(text_rules.check_openings, {path: text.replace("%", mark)})

    def test_libm(self):
        for text in ("y = std::exp(x);", "y = expf(x);", "y = sinf(x);"):
            self.assertEqual(len(findings(text_rules.check_libm, {"kernels/a.cc": text})), 1, text)
        self.assertEqual(
            findings(text_rules.check_libm, {"kernels/a.cc": "// std::exp(x)\nMyExp(x);"}), []
        )
        self.assertEqual(findings(text_rules.check_libm, {"src/model/rope.cc": "std::sin(x);"}), [])
        self.assertEqual(
            len(findings(text_rules.check_libm, {"src/model/sampler.cc": "std::log(x);"})), 1
        )

    def test_cpu_features(self):
        question = '__builtin_cpu_supports("avx2")'
        files = {
            "src/a.cc": f"// {question}\nif ({question}) f();",
            text_rules.FEATURES_SOURCE: f'{question} "fma"',
            text_rules.FLAGS_SOURCE: '"-mavx2;-mfma;-mbmi2" -mvzeroupper',
        }
        self.assertEqual(
            names(text_rules.check_cpu_features, files), ["__builtin_cpu_supports", "bmi2"]
        )

    def test_readmes(self):
        self.assertEqual(len(findings(text_rules.check_readmes, {"scheduler/a.h": ""})), 1)
        both = {"scheduler/a.h": "", "scheduler/README.md": ""}
        self.assertEqual(findings(text_rules.check_readmes, both), [])


class PathTest(unittest.TestCase):
    FILES = {
        "src/api/schema.h": "",
        "src/api/README.md": "# src/api\n\n## Adding a parameter (hf/x)\n\n```\n# no title\n```\n",
        "kvcache/HANDOFF.md": "# Hand-off\n",
        "scripts/test.sh": "",
        "benchmarks/results/gpu_check_model.json": "",
    }
    SCRIPT = "scripts/" + "tests.sh"  # in two, since this file is checked too

    def missing(self, path, text):
        return names(path_rules.check_paths, {**self.FILES, path: text})

    def test_a_comment_names_files_that_exist(self):
        for path, text, token in (
            ("src/api/a.cc", "// See src/api/shema.h.\n", "src/api/shema.h"),
            ("src/api/a.h", "int a;  // as in (kvcache/HANDOF.md)\n", "kvcache/HANDOF.md"),
            ("src/api/a.cc", "// api/shema.h says why\n", "api/shema.h"),
            ("src/api/a.cc", "// NOTES.md says why\n", "NOTES.md"),
            ("src/api/a.cu", "// src/apis, the folder\n", "src/apis"),
            ("tests/a.py", f"x = 1  # {self.SCRIPT}\n", self.SCRIPT),
            ("tests/a.py", f'"""Runs {self.SCRIPT}."""\n', self.SCRIPT),
            ("scripts/b.sh", f"# {self.SCRIPT}\n", self.SCRIPT),
            ("CMakeLists.txt", "# kvcache/README.md\n", "kvcache/README.md"),
            ("src/api/a.cc", "// src/api/shema_*.h\n", "src/api/shema_*.h"),
            ("src/api/a.proto", "// ../../kvcache/README.md\n", "../../kvcache/README.md"),
        ):
            self.assertEqual(self.missing(path, text), [token], text)
        for path, text in (
            ("src/api/a.cc", "// See src/api/schema.h, src/api/ and src/api/schema.*: there.\n"),
            ("src/api/a.cc", "// api/schema.h; README.md; kvcache/HANDOFF.md's states\n"),
            ("src/api/a.cc", "// doc/xxhash_spec.md, gguf.md, read/write, sys/mman.h and 1/256\n"),
            ("src/api/a.cc", "// https://x.org/src/api/none.h and build/src/api/none.h\n"),
            ("src/api/a.cc", 'const char* kPath = "src/api/none.h";\n'),
            ("src/api/a.cc", "// benchmarks/results/gpu_check_STAGE.json, baton/v1/a.pb.h\n"),
            ("tests/a.py", 'x = "scripts/none.sh"\n'),
        ):
            self.assertEqual(self.missing(path, text), [], text)

    def test_a_page_names_files_and_sections_that_exist(self):
        for text, token in (
            ("`src/api/none.h`", "src/api/none.h"),
            (f"`{self.SCRIPT} -R a`", self.SCRIPT),
            (f"    {self.SCRIPT} --long    # in a block", self.SCRIPT),
            ("src/api/none.h has it.", "src/api/none.h"),
            ("[x](../src/none.md)", "../src/none.md"),
            ("[x](README.md)", "README.md"),
            ("[x](../src/api/README.md#adding)", "../src/api/README.md#adding"),
            ("[x](../src/api/README.md#no-title)", "../src/api/README.md#no-title"),
            ("[x](#here)", "#here"),
        ):
            self.assertEqual(self.missing("kvcache/NOTES.md", text + "\n"), [token], text)
        for text in (
            "`src/api/schema.h` and `HANDOFF.md`, but src/api is src/none in prose",
            "[x](../src/api/README.md#adding-a-parameter-hfx)",
            "# Here\n\n[x](#here) [y](../scripts) [z](https://x.org/none.md)",
        ):
            self.assertEqual(self.missing("kvcache/NOTES.md", text + "\n"), [], text)

    def test_a_quoted_section_is_in_its_page(self):
        wrong = 'kvcache/HANDOFF.md, "No such"'
        self.assertEqual(self.missing("src/api/a.h", f"\nint a;  // {wrong}\n"), [wrong])
        self.assertEqual(self.missing("src/README.md", f"x ({wrong})\n"), [wrong])
        self.assertEqual(self.missing("src/api/a.h", '// README.md ("Adding a parameter")\n'), [])
        self.assertEqual(self.missing("src/api/a.h", '// README.md, "Nothing"\n') != [], True)
        self.assertEqual(self.missing("src/api/a.h", f"const char* k = R({wrong});\n"), [])

    def test_page_sizes(self):
        def long(path, lines):
            return len(findings(path_rules.check_page_sizes, {path: "x\n" * lines}))

        self.assertEqual((long("README.md", 150), long("README.md", 151)), (0, 1))
        self.assertEqual((long("src/README.md", 110), long("src/README.md", 111)), (0, 1))
        self.assertEqual(long("src/NOTES.md", 1000), 0)


class AllowListTest(unittest.TestCase):
    def run_on(self, files, allow_text):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(text)
            return [f.key for f in tidy.run(folder, allow_text)[1]]

    def test_an_exception_needs_a_reason_and_a_use(self):
        files = {"tests/a_test.cc": "x" * 101 + "\n", "src/THREADS.md": "# Threads\n"}
        self.assertEqual(self.run_on(files, ""), ["columns tests/a_test.cc"])
        self.assertEqual(
            self.run_on(files, "columns tests/a_test.cc -- a table of long rows\n"), []
        )
        self.assertIn(
            "allow_list tests/tidy_test/allow_list.txt:columns tests/b.cc",
            self.run_on(files, "columns tests/b.cc -- a reason of words\n"),
        )
        self.assertEqual(len(self.run_on(files, "columns tests/a_test.cc -- no\n")), 1)


if __name__ == "__main__":
    unittest.main()
