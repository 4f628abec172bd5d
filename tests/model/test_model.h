// Where tests find model files.
#ifndef BATON_TESTS_MODEL_TEST_MODEL_H_
#define BATON_TESTS_MODEL_TEST_MODEL_H_

#include <cstdlib>
#include <string>

namespace baton::model {

// The demo model: BATON_TEST_MODEL, else the file that scripts/test.sh fetches. Tests that need it
// or the second one fail when it is missing; nothing is skipped.
inline std::string DemoModelPath() {
  if (const char* path = std::getenv("BATON_TEST_MODEL"); path != nullptr) return path;
  const char* home = std::getenv("BATON_HOME");
  const char* user = std::getenv("HOME");
  const std::string base = home != nullptr
                               ? std::string(home)
                               : std::string(user == nullptr ? "" : user) + "/.cache/baton";
  return base + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

// The second demo model, gemma3:270m, in the folder of the first.
inline std::string Gemma3Path() {
  const std::string demo = DemoModelPath();
  return demo.substr(0, demo.rfind('/') + 1) + "gemma-3-270m-q4_k_m.gguf";
}

// A file of tests/golden.
inline std::string GoldenPath(const std::string& name) {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/golden/" + name;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_TEST_MODEL_H_
