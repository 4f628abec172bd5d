#include "gtest/gtest.h"

#include "src/cli/commands.h"
#include "src/cli/flags.h"

namespace baton {
namespace {

using Run = int (*)(const std::vector<std::string>&);

// A command line that is wrong whatever is on this machine, and what its one line must name.
struct WrongUse {
  Run run;
  std::vector<std::string> args;
  std::string expected;
};

TEST(UsageExitTest, EveryRoleSaysTwoForAWrongCommandLine) {
  const std::string router = "--router=127.0.0.1:1";
  const WrongUse cases[] = {
      {&RunPrefill, {"--model=m.gguf"}, "--router"},
      {&RunDecode, {router}, "--model"},
      {&RunPrefill, {router, "--model=m.gguf", "--device=cuda"}, "--device cuda"},
      {&RunDecode, {router, "--model=m.gguf", "--kv-memory=lots"}, "--kv-memory"},
      {&RunDecode, {router, "--model=m.gguf", "--kv-dtype=q8"}, "--kv-dtype q8"},
      {&RunServe, {"m.gguf", "--kv-memory=lots"}, "--kv-memory"},
      {&RunServe, {"m.gguf", "--mode=aggregated", "--prefill=2"}, "--prefill is 2"},
      {&RunServe, {}, "MODEL"},
  };
  for (const WrongUse& c : cases) {
    testing::internal::CaptureStderr();
    const int code = c.run(c.args);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, kExitUsage) << error;
    EXPECT_NE(error.find(c.expected), std::string::npos) << error;
  }
}

TEST(UsageExitTest, AModelThatIsNotThereIsAFailureNotAWrongCommandLine) {
  for (const WrongUse& c : {
           WrongUse{&RunDecode, {"--router=127.0.0.1:1", "--model=/nowhere.gguf"}, "/nowhere.gguf"},
           WrongUse{&RunServe, {"/nowhere.gguf", "--mode=aggregated", "--prefill=0"}, "/nowhere"},
       }) {
    testing::internal::CaptureStderr();
    const int code = c.run(c.args);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, kExitFailure) << error;
    EXPECT_NE(error.find(c.expected), std::string::npos) << error;
  }
}

TEST(UsageExitTest, AFolderThatCannotBeMadeIsOneLineOnStderr) {
  ASSERT_EQ(::setenv("BATON_HOME", "/dev/null/home", 1), 0);
  testing::internal::CaptureStderr();
  const int code = RunPull({"smollm2:135m"});
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kExitFailure);
  EXPECT_NE(error.find("/dev/null/home/models"), std::string::npos) << error;
  // A file is enough for `run` to come as far as its private folder.
  testing::internal::CaptureStderr();
  const int run_code = RunRun({"/dev/null", "--prompt=hi"});
  const std::string run_error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(run_code, kExitFailure);
  EXPECT_NE(run_error.find("cannot create /dev/null/home/run/"), std::string::npos) << run_error;
  ::unsetenv("BATON_HOME");
}

}  // namespace
}  // namespace baton
