// `baton doctor` on the machine that runs the tests.
#include <sys/socket.h>

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kvcache/transport/socket_io.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "tests/patience.h"

namespace baton::cli {

using kv::BoundTcpAddress;
using kv::ListenOn;
using kv::ResolveTcp;

namespace {

// Ports that nobody else has, so that the result does not hang on what runs beside the test.
std::vector<std::string> WithFreePorts(std::vector<std::string> args) {
  for (const char* flag : {"--http", "--grpc", "--admin"}) {
    args.push_back(std::string(flag) + "=127.0.0.1:0");
  }
  return args;
}

struct Outcome {
  int code;
  nlohmann::json root;
};

Outcome RunJson(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  std::vector<std::string> all = args;
  all.push_back("--json");
  const int code = RunDoctor(all);
  return {code, nlohmann::json::parse(testing::internal::GetCapturedStdout())};
}

nlohmann::json Find(const nlohmann::json& root, const std::string& id) {
  for (const auto& check : root["checks"]) {
    if (check["id"] == id) return check;
  }
  return nullptr;
}

TEST(DoctorCommandTest, AtLeast25ChecksInLessThanFiveSeconds) {
  const Outcome outcome = RunJson(WithFreePorts({"--workers=1", "--kv-memory=64MiB"}));
  EXPECT_GE(outcome.root["checks"].size(), 25u);
  EXPECT_LT(outcome.root["elapsed_ms"], 5000 * kPatienceFactor);
  EXPECT_EQ(outcome.code, outcome.root["counts"]["problem"] == 0 ? kExitOk : kExitFailure);
  EXPECT_EQ(Find(outcome.root, "kv_pool")["verdict"], "ok");
  EXPECT_EQ(Find(outcome.root, "tls")["verdict"], "not applicable");
}

TEST(DoctorCommandTest, APortInUseAndAMissingModelAreProblems) {
  const StatusOr<UniqueFd> taken = ListenOn(ResolveTcp("127.0.0.1:0")->front(), "127.0.0.1:0");
  ASSERT_TRUE(taken.ok());
  const std::string bound = BoundTcpAddress(taken->get());
  const Outcome outcome =
      RunJson({"--http=" + bound, "--grpc=127.0.0.1:0", "--admin=127.0.0.1:0",
               "--model=/nowhere.gguf", "--tls-cert=/nowhere.crt", "--tls-key=/nowhere.key",
               "--tls-ca=/nowhere.ca", "--cluster-secret-file=/nowhere.secret"});
  EXPECT_EQ(outcome.code, kExitFailure);
  const nlohmann::json http = Find(outcome.root, "port_http");
  EXPECT_EQ(http["verdict"], "problem");
  EXPECT_NE(http["value"].get<std::string>().find(bound), std::string::npos) << http;
  EXPECT_EQ(Find(outcome.root, "port_grpc")["verdict"], "ok");
  for (const char* id : {"models", "tls", "cluster_secret"}) {
    const nlohmann::json check = Find(outcome.root, id);
    EXPECT_EQ(check["verdict"], "problem") << check;
    EXPECT_NE(check["value"].get<std::string>().find("/nowhere"), std::string::npos) << check;
  }
}

TEST(DoctorCommandTest, WrongCommandLines) {
  const std::vector<std::vector<std::string>> wrong = {{"--fix-plan", "--json"},
                                                       {"--fix-plan", "--ledger"},
                                                       {"--kv-memory=lots"},
                                                       {"--tls-cert=x"},
                                                       {"--workers=0"},
                                                       {"--http=8080"},
                                                       {"now"}};
  for (const std::vector<std::string>& args : wrong) {
    testing::internal::CaptureStderr();
    const int code = RunDoctor(args);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, kExitUsage) << args[0] << ": " << error;
    EXPECT_TRUE(error.starts_with("baton doctor: ")) << error;
  }
}

}  // namespace
}  // namespace baton::cli
