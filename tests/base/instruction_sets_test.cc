#include "src/base/instruction_sets.h"

#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr std::string_view kOfAvx2[] = {"avx2", "fma", "f16c", "bmi", "bmi2"};
constexpr std::string_view kOfAvx512[] = {"avx512f", "avx512bw", "avx512vl", "avx512dq",
                                          "avx512vnni"};

// A processor that has every feature but this one.
std::string_view hidden;
bool HasAllButHidden(std::string_view name) { return name != hidden; }

// Some virtual machines show AVX2 and hide the others. In xxh3_avx2.cc, gcc 12 makes 35 mulx.
TEST(InstructionSetsTest, EachFeatureThatIsHiddenIsMissed) {
  hidden = "";
  EXPECT_EQ(MissingForAvx2(HasAllButHidden), "");
  EXPECT_EQ(MissingForAvx512(HasAllButHidden), "");
  for (const std::string_view name : kOfAvx2) {
    hidden = name;
    EXPECT_EQ(MissingForAvx2(HasAllButHidden), name);
    EXPECT_EQ(MissingForAvx512(HasAllButHidden), name);
  }
  for (const std::string_view name : kOfAvx512) {
    hidden = name;
    EXPECT_EQ(MissingForAvx2(HasAllButHidden), "") << name;
    EXPECT_EQ(MissingForAvx512(HasAllButHidden), name);
  }
}

// The name by which the kernel lists a feature.
std::string NameOfKernel(std::string_view name) {
  if (name == "bmi") return "bmi1";
  return name == "avx512vnni" ? "avx512_vnni" : std::string(name);
}

TEST(InstructionSetsTest, ThisProcessorHasWhatTheKernelLists) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t begin = text.find("\nflags");
  if (begin == std::string::npos) GTEST_SKIP() << "the kernel lists no flags";
  const std::string flags = text.substr(begin, text.find('\n', begin + 1) - begin) + " ";
  const auto check = [&flags](std::string_view name) {
    if (flags.find(" " + NameOfKernel(name) + " ") == std::string::npos) return;
    EXPECT_TRUE(ThisProcessorHas(name)) << name;
  };
  for (const std::string_view name : kOfAvx2) check(name);
  for (const std::string_view name : kOfAvx512) check(name);
  EXPECT_FALSE(ThisProcessorHas("avx3"));
  EXPECT_EQ(RunsAvx2(), MissingForAvx2().empty());
  EXPECT_EQ(RunsAvx512(), MissingForAvx512().empty());
}

}  // namespace
}  // namespace baton
