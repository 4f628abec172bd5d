// Runs a suite of kernel cases under every mutant of every primitive that it meets, and says which
// mutants it does not notice. One operating-system thread.
#ifndef BATON_TESTS_KERNELS_SIMT_MUTATION_H_
#define BATON_TESTS_KERNELS_SIMT_MUTATION_H_

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/mutant.h"
#include "kernels/simt/run_options.h"

namespace baton::kernels::simt_test {

// Launches the kernels and compares; false when a launch failed or a result is wrong.
using Suite = std::function<bool()>;

// A mutant that changes nothing that can be seen, and why.
struct Equivalent {
  std::string text;  // of the source line, without indentation
  simt::Mutation mutation;
  std::string proof;
};

// The results of the mutants of one suite.
struct MutationResult {
  uint32_t num_mutants = 0;
  uint32_t num_noticed = 0;
  uint32_t num_equivalent = 0;
  std::vector<std::string> survivors;  // neither noticed nor listed
  std::vector<std::string> stale;      // listed as equivalent, but noticed or never met
};

// The given line of a source file, without indentation; "" when there is none. `path` is from the
// build folder; tests run there or in the repository's root.
inline std::string SourceLine(const std::string& path, int line) {
  std::string text;
  std::string from_root = path;
  while (from_root.starts_with("../")) from_root.erase(0, 3);
  std::FILE* file = std::fopen(from_root.c_str(), "r");
  if (file == nullptr) file = std::fopen(path.c_str(), "r");
  if (file != nullptr) {
    char buffer[512];
    for (int i = 0; i < line && std::fgets(buffer, sizeof(buffer), file) != nullptr; ++i) {
      if (i == line - 1) text = buffer;
    }
    std::fclose(file);
  }
  const size_t first = text.find_first_not_of(' ');
  const size_t end = text.find_last_not_of(" \n");
  return first == std::string::npos ? "" : text.substr(first, end + 1 - first);
}

// True when some order notices the mutant.
inline bool IsNoticed(const simt::Mutant& mutant, const Suite& suite) {
  simt::ScopedMutant scope(mutant);
  for (simt::RunOptions options : simt::AllOrders(4)) {
    options.locate_code = false;
    simt::ScopedRunOptions run(options);
    if (!suite()) return true;
  }
  return false;
}

inline MutationResult RunMutants(const Suite& suite, const std::vector<Equivalent>& equivalents) {
  std::vector<simt::Mutant> mutants;
  {
    simt::MutantRecorder recorder;
    for (const simt::RunOptions& options : simt::AllOrders(1)) {
      simt::ScopedRunOptions run(options);
      if (!suite()) return {.survivors = {"the suite fails without a mutant"}};
    }
    mutants = recorder.Found();
  }
  MutationResult result;
  std::map<const Equivalent*, bool> used;
  for (const simt::Mutant& mutant : mutants) {
    ++result.num_mutants;
    const std::string line = SourceLine(mutant.file, mutant.line);
    const std::string name = fmt::format("{}:{}: {}: {}", mutant.file, mutant.line,
                                         simt::MutationName(mutant.mutation), line);
    const Equivalent* listed = nullptr;
    for (const Equivalent& equivalent : equivalents) {
      if (equivalent.text == line && equivalent.mutation == mutant.mutation) listed = &equivalent;
    }
    const bool noticed = IsNoticed(mutant, suite);
    result.num_noticed += noticed ? 1 : 0;
    if (listed != nullptr) {
      used[listed] = true;
      if (noticed) result.stale.push_back(name);
      result.num_equivalent += noticed ? 0 : 1;
    } else if (!noticed) {
      result.survivors.push_back(name);
    }
  }
  for (const Equivalent& equivalent : equivalents) {
    if (!used[&equivalent]) result.stale.push_back("never met: " + equivalent.text);
  }
  std::printf("mutants %u, noticed %u, equivalent %u, survivors %zu\n", result.num_mutants,
              result.num_noticed, result.num_equivalent, result.survivors.size());
  return result;
}

// Every mutant that is not equivalent is noticed, and there are at least so many.
inline void ExpectAllNoticed(const Suite& suite, uint32_t min_mutants,
                             const std::vector<Equivalent>& equivalents = {}) {
  const MutationResult result = RunMutants(suite, equivalents);
  EXPECT_GE(result.num_mutants, min_mutants);
  EXPECT_THAT(result.survivors, testing::IsEmpty());
  EXPECT_THAT(result.stale, testing::IsEmpty());
}

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_MUTATION_H_
