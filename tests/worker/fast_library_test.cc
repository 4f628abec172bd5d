// By whom a worker multiplies many rows: the flags, the kind of device, and what is found.
#include "src/worker/fast_library.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/cublaslt/loopback_library.h"

namespace baton::worker {

namespace cublaslt_test = kernels::cublaslt_test;
using device::DeviceKind;
using model::FastMode;

namespace {

using cublaslt_test::LoopbackPath;
using ::testing::HasSubstr;

class FastLibraryTest : public ::testing::Test {
 protected:
  ~FastLibraryTest() override { unsetenv("BATON_CUBLASLT_LIBRARY"); }
  static void PutIntoEnvironment(const std::string& path) {
    setenv("BATON_CUBLASLT_LIBRARY", path.c_str(), 1);
  }
  static std::string PathOf(const StatusOr<FastMode>& mode) {
    EXPECT_TRUE(mode.ok()) << mode.status();
    return mode.ok() && mode->library != nullptr ? mode->library->path : "";
  }

  WorkerConfig config_;
};

TEST_F(FastLibraryTest, AGpuTakesWhatItFindsAndNothingIsNoError) {
  config_.plan_folder = "/plans";
  PutIntoEnvironment(LoopbackPath());
  const auto mode = FindFastMode(config_, DeviceKind::kCuda);
  EXPECT_EQ(PathOf(mode), LoopbackPath());
  EXPECT_EQ(mode->plan_folder, "/plans");
  unsetenv("BATON_CUBLASLT_LIBRARY");
  EXPECT_TRUE(FindFastMode(config_, DeviceKind::kCuda).ok());
}

TEST_F(FastLibraryTest, DeterministicIsOurOwnKernelsAlone) {
  PutIntoEnvironment(LoopbackPath());
  config_.deterministic = true;
  EXPECT_EQ(PathOf(FindFastMode(config_, DeviceKind::kCuda)), "");
}

TEST_F(FastLibraryTest, TheRunnerTakesOnlyWhatTheFlagNames) {
  PutIntoEnvironment(LoopbackPath());
  EXPECT_EQ(PathOf(FindFastMode(config_, DeviceKind::kSimt)), "");
  config_.cublaslt_library = LoopbackPath();
  EXPECT_EQ(PathOf(FindFastMode(config_, DeviceKind::kSimt)), LoopbackPath());
}

TEST_F(FastLibraryTest, ALibraryThatIsNamedAndCannotBeLoadedIsAnError) {
  config_.cublaslt_library = "/nowhere.so";
  for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kSimt}) {
    const auto mode = FindFastMode(config_, kind);
    EXPECT_EQ(mode.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(std::string(mode.status().message()), HasSubstr("--cublaslt-library: "));
  }
  config_.cublaslt_library = "";
  PutIntoEnvironment("/nowhere.so");
  const auto mode = FindFastMode(config_, DeviceKind::kCuda);
  EXPECT_EQ(mode.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(mode.status().message()), HasSubstr("BATON_CUBLASLT_LIBRARY: "));
  EXPECT_TRUE(FindFastMode(config_, DeviceKind::kSimt).ok()) << "nobody looks for it there";
}

}  // namespace
}  // namespace baton::worker
