// The tables in kvcache/README.md are the ones that run.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#include "kvcache/handoff.h"

namespace baton {
namespace {

std::string Readme() {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) + "/kvcache/README.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(KvcacheReadmeTest, ShowsTheTablesOfBothStateMachines) {
  const std::string readme = Readme();
  ASSERT_FALSE(readme.empty()) << "kvcache/README.md is not to be found";
  EXPECT_NE(readme.find(SourceTableText()), std::string::npos) << "replace P's table by:\n"
                                                               << SourceTableText();
  EXPECT_NE(readme.find(DestTableText()), std::string::npos) << "replace D's table by:\n"
                                                             << DestTableText();
}

}  // namespace
}  // namespace baton
