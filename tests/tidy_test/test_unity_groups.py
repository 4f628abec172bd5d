"""scripts/cmake/unity_groups.py keeps sources apart that would not mean the same as one file."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/cmake"))

import unity_groups  # noqa: E402


def source(inside, outside="", using=""):
    own = f"namespace {{\n{inside}\n}}  // namespace\n"
    return f"namespace baton::x {{\n{using}\n{own}{outside}\n}}\n"


class UnityGroupsTest(unittest.TestCase):
    def share(self, one, two, headers=()):
        """Whether the texts of two sources come into one group."""
        with tempfile.TemporaryDirectory() as folder:
            root, unity_groups.ROOT = unity_groups.ROOT, Path(folder)
            self.addCleanup(setattr, unity_groups, "ROOT", root)
            files = {"one.cc": one, "two.cc": two, **dict(headers)}
            for name, text in files.items():
                (Path(folder) / name).write_text(text)
            paths = [Path(folder) / name for name in ("one.cc", "two.cc")]
            return unity_groups.groups_of([unity_groups.Source(path) for path in paths]) == [0, 0]

    def test_sources_without_a_common_name_share_a_group(self):
        self.assertTrue(self.share(source("int A() { return 1; }"), source("int B();")))

    def test_what_both_declare_for_themselves_keeps_them_apart(self):
        for text in (
            "constexpr size_t kWordBytes = 8;",
            "constexpr std::array<std::string_view, 2> kWordBytes = {\n    kA, kB};",
            "bool kWordBytes(char c) {\n  return c == 1;\n}",
            "struct kWordBytes {\n  int a;\n};",
            "enum kOther { kA, kWordBytes };",
            "template <class T>\nT kWordBytes(T t) {\n  return t;\n}",
            "int First() {\n  return 1;\n}\n\nint kWordBytes() {\n  return 1;\n}",
        ):
            with self.subTest(text):
                self.assertFalse(self.share(source(text), source("constexpr int kWordBytes = 4;")))

    def test_an_alias_may_be_that_of_both_but_stands_for_one_thing(self):
        json = source("", using="using nlohmann::json;")
        self.assertTrue(self.share(json, json))
        self.assertFalse(self.share(json, source("", using="using other::json;")))
        alias = source("namespace http = boost::http;")
        self.assertFalse(self.share(alias, source("", "int http();")))

    def test_a_name_that_a_header_of_the_other_declares_keeps_them_apart(self):
        one = source("std::string Quoted(int i) {\n  return {};\n}")
        two = '#include "text.h"\n' + source("")
        declares = "namespace baton::{} {{\nstd::string Quoted(std::string_view text);\n}}\n"
        self.assertFalse(self.share(one, two, {"text.h": declares.format("x")}.items()))
        unity_groups.included_by.cache_clear()
        # A namespace that neither source is in: its names are found by a qualifier alone.
        self.assertTrue(self.share(one, two, {"text.h": declares.format("y")}.items()))

    def test_a_macro_and_a_word_in_a_comment(self):
        self.assertFalse(self.share("#define LIMIT 3\n", source("constexpr int LIMIT = 2;")))
        self.assertTrue(self.share(source("int A();  // Not B."), source("int B() { return 1; }")))


if __name__ == "__main__":
    unittest.main()
