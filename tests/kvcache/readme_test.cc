// The tables and diagrams in kvcache/HANDOFF.md are the ones that run.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#include "kvcache/handoff.h"

namespace baton::kv {
namespace {

std::string Page() {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) + "/kvcache/HANDOFF.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(KvcacheReadmeTest, ShowsTheTablesAndDiagramsOfAllThreeStateMachines) {
  const std::string page = Page();
  ASSERT_FALSE(page.empty()) << "kvcache/HANDOFF.md is not to be found";
  const auto expect = [&](const std::string& text, const char* what) {
    EXPECT_NE(page.find(text), std::string::npos) << "replace " << what << " by:\n" << text;
  };
  const auto fenced = [](const std::string& text) { return "```mermaid\n" + text + "```\n"; };
  expect(fenced(SourceDiagramText()), "P's diagram");
  expect(SourceTableText(), "P's table");
  expect(fenced(DestDiagramText()), "D's diagram");
  expect(DestTableText(), "D's table");
  expect(fenced(RequestDiagramText()), "the request's diagram");
  expect(RequestTableText(), "the request's table");
}

}  // namespace
}  // namespace baton::kv
