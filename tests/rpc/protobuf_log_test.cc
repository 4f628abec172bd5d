// Lines that gRPC logs itself, in our log.
#include "src/rpc/protobuf_log.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "grpc/support/log.h"
#include "gtest/gtest.h"

#include "src/base/log.h"
#include "src/base/unique_fd.h"

namespace baton::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GrpcLogTest : public testing::Test {
 protected:
  void SetUp() override {
    const UniqueFd made(mkstemp(path_.data()));
    ASSERT_GE(made.get(), 0) << path_;
    ASSERT_TRUE(InitLog({.role = "test", .level = LogLevel::kInfo, .file = path_}).ok());
    TakeOverGrpcLog();
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // grpc_init's default; before, nothing is told
  }
  void TearDown() override {
    EXPECT_TRUE(InitLog({}).ok());
    unlink(path_.c_str());
  }
  std::string Text() const {
    FlushLog();
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static size_t CountOf(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++count;
    }
    return count;
  }
  std::string path_ = testing::TempDir() + "grpc_log_XXXXXX";
};

// One test: the process has one allowance.
TEST_F(GrpcLogTest, ErrorsAreWarningsOfBoundedNumberAndLength) {
  gpr_log(GPR_INFO, "an info line");
  EXPECT_THAT(Text(), Not(HasSubstr("an info line")));
  gpr_log(GPR_ERROR, "no address added: %s", "port 1\nport 2");
  EXPECT_THAT(Text(), HasSubstr(" W test "));
  EXPECT_THAT(Text(), HasSubstr("gRPC: no address added: port 1 port 2\n"));
  const std::string longest(kMaxGrpcErrorBytes, 'x');
  gpr_log(GPR_ERROR, "%s", std::string(100'000, 'x').c_str());
  EXPECT_THAT(Text(), HasSubstr(fmt::format("gRPC: {}...\n", longest)));
  // As where a limit of the system leaves it no thread; it ends the process next.
  gpr_log(GPR_ERROR, "assertion failed: worker->created()");
  EXPECT_THAT(Text(), HasSubstr("worker->created(); the system gives no more threads (ulimit -u"));
  for (uint32_t i = 0; i < 3 * kMaxGrpcErrors; ++i) gpr_log(GPR_ERROR, "fault %u.", i);
  const std::string text = Text();
  EXPECT_EQ(CountOf(text, "gRPC: "), kMaxGrpcErrors);
  EXPECT_THAT(text, HasSubstr(fmt::format("fault {}.", kMaxGrpcErrors - 4)));
  EXPECT_THAT(text, Not(HasSubstr(fmt::format("fault {}.", kMaxGrpcErrors - 3))));
  // A port that is given up is noticed whether or not its line is one too many.
  gpr_log(GPR_ERROR, "a peer said: Failed accept4");
  gpr_log(GPR_INFO, "Failed accept4: no error");
  EXPECT_FALSE(HasLostPort());
  EXPECT_TRUE(LostPort().ok());
  gpr_log(GPR_ERROR, "Failed accept4: %s", "Too many open files");
  EXPECT_TRUE(HasLostPort());
  EXPECT_EQ(LostPort().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::rpc
