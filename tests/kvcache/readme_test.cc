// The tables and diagrams in kvcache/README.md are the ones that run.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#include "kvcache/handoff.h"

namespace baton::kv {
namespace {

std::string Readme() {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) + "/kvcache/README.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(KvcacheReadmeTest, ShowsTheTablesAndDiagramsOfAllThreeStateMachines) {
  const std::string readme = Readme();
  ASSERT_FALSE(readme.empty()) << "kvcache/README.md is not to be found";
  const auto expect = [&](const std::string& text, const char* what) {
    EXPECT_NE(readme.find(text), std::string::npos) << "replace " << what << " by:\n" << text;
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
