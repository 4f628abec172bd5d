// Where spans go, by the flag and by the variables that OpenTelemetry defines.
#include "src/otlp/otlp_target.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::otlp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Environment Of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::string() : it->second;
  };
}

std::string ErrorOf(std::string_view flag, std::map<std::string, std::string> variables) {
  const auto target = ResolveOtlpTarget(flag, Of(std::move(variables)));
  return target.ok() ? "" : std::string(target.status().message());
}

// A file of authorities for https, whatever the machine has.
class OtlpTargetTest : public ::testing::Test {
 protected:
  OtlpTargetTest() : path_(testing::TempDir() + "otlp_target_test.pem") {
    std::ofstream(path_) << "pem of a test";
  }
  ~OtlpTargetTest() override { std::filesystem::remove(path_); }

  const std::string path_;
};

TEST_F(OtlpTargetTest, EachFormOfAnEndpointNamesAHostAPortAndWhetherItIsTls) {
  struct Case {
    std::string_view text;
    std::string_view address;
    bool is_tls;
  };
  for (const Case& one :
       {Case{"collector:4317", "collector:4317", false},
        Case{"http://collector:9", "collector:9", false},
        Case{"HTTP://collector:9/", "collector:9", false},
        Case{"http://collector", "collector:4317", false},
        Case{"https://collector", "collector:443", true},
        Case{"https://collector:4317", "collector:4317", true},
        Case{"http://[::1]:4317", "[::1]:4317", false}, Case{"https://[::1]", "[::1]:443", true}}) {
    const auto endpoint = ParseOtlpEndpoint(one.text);
    ASSERT_TRUE(endpoint.ok()) << one.text << ": " << endpoint.status();
    EXPECT_EQ(endpoint->address, one.address) << one.text;
    EXPECT_EQ(endpoint->is_tls, one.is_tls) << one.text;
  }
}

TEST_F(OtlpTargetTest, WhatIsNoEndpointIsRefusedByTheNameOfItsFlagOrVariable) {
  for (const char* text :
       {"collector", "grpc://c:1", "http://", "http://c:1/v1/traces", "c:1/x", "http://u:p@c:1",
        "http://c:99999", "http://c:0", "http:// c:1", "://c:1"}) {
    EXPECT_THAT(ErrorOf(text, {}), HasSubstr("--otlp-endpoint")) << text;
    EXPECT_THAT(ErrorOf("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", text}}),
                HasSubstr("OTEL_EXPORTER_OTLP_ENDPOINT"))
        << text;
  }
}

TEST_F(OtlpTargetTest, TheEnvironmentDecidesWhereTheFlagIsAbsent) {
  const std::string all = "http://all:1";
  const std::string traces = "http://traces:2";
  EXPECT_FALSE(ResolveOtlpTarget("", Of({})).value().has_value());
  EXPECT_EQ(ResolveOtlpTarget("", Of({{"OTEL_EXPORTER_OTLP_ENDPOINT", all}})).value()->address,
            "all:1");
  const std::map<std::string, std::string> both = {{"OTEL_EXPORTER_OTLP_ENDPOINT", all},
                                                   {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces}};
  EXPECT_EQ(ResolveOtlpTarget("", Of(both)).value()->address, "traces:2");
  EXPECT_EQ(ResolveOtlpTarget("flag:3", Of(both)).value()->address, "flag:3");
  for (const auto& [name, value] :
       {std::pair{"OTEL_SDK_DISABLED", "TRUE"}, std::pair{"OTEL_TRACES_EXPORTER", "none"}}) {
    auto off = both;
    off[name] = value;
    EXPECT_FALSE(ResolveOtlpTarget("", Of(off)).value().has_value()) << name;
    EXPECT_TRUE(ResolveOtlpTarget("flag:3", Of(off)).value().has_value()) << name;
  }
}

TEST_F(OtlpTargetTest, HeadersTimeoutAndResourceAreThoseOfTheEnvironment) {
  const auto target = ResolveOtlpTarget(
      "c:1", Of({{"OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a%3Db, x-team = blue"},
                 {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1500"},
                 {"OTEL_SERVICE_NAME", "front"},
                 {"OTEL_RESOURCE_ATTRIBUTES", "service.name=other,k8s.pod.name=p%2C1"}}));
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_THAT((*target)->headers,
              ElementsAre(Pair("authorization", "Bearer a=b"), Pair("x-team", "blue")));
  EXPECT_EQ((*target)->timeout_us, 1'500'000);
  EXPECT_EQ((*target)->service_name, "front");
  EXPECT_THAT((*target)->resource_attributes, ElementsAre(Pair("k8s.pod.name", "p,1")));
}

TEST_F(OtlpTargetTest, WhatCannotBeUsedIsNamed) {
  EXPECT_THAT(ErrorOf("c:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "novalue"}}), HasSubstr("HEADERS"));
  EXPECT_THAT(ErrorOf("c:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "a=x%0Ay"}}), HasSubstr("'a'"));
  EXPECT_THAT(ErrorOf("c:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "grpc-status=0"}}),
              HasSubstr("'grpc-status'"));
  for (const char* timeout : {"0", "-1", "60001", "1s", "1e3"}) {
    EXPECT_THAT(ErrorOf("c:1", {{"OTEL_EXPORTER_OTLP_TIMEOUT", timeout}}), HasSubstr("[1, 60000]"));
  }
  EXPECT_THAT(ErrorOf("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                           {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}}),
              HasSubstr("http/protobuf"));
  EXPECT_THAT(ErrorOf("https://c", {{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"}}),
              HasSubstr("/no/such/file"));
  EXPECT_THAT(ErrorOf("https://c", {{"OTEL_EXPORTER_OTLP_CLIENT_KEY", path_},
                                    {"OTEL_EXPORTER_OTLP_CERTIFICATE", path_}}),
              HasSubstr("go together"));
}

TEST_F(OtlpTargetTest, TlsTakesTheFilesThatAreNamed) {
  const auto own =
      ResolveOtlpTarget("https://c", Of({{"OTEL_EXPORTER_OTLP_CERTIFICATE", path_},
                                         {"OTEL_EXPORTER_OTLP_CLIENT_KEY", path_},
                                         {"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", path_}}));
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)->ca_pem, "pem of a test");
  EXPECT_EQ((*own)->client_key_pem, "pem of a test");
  const auto system = ResolveOtlpTarget("https://c", Of({{"SSL_CERT_FILE", path_}}));
  ASSERT_TRUE(system.ok()) << system.status();
  EXPECT_EQ((*system)->ca_pem, "pem of a test");
}

TEST_F(OtlpTargetTest, AnEnvironmentForOtherProgramsKeepsNoProcessFromStarting) {
  const Environment wrong = Of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1/v1/traces"}});
  EXPECT_FALSE(OtlpTargetAtStart("", wrong).value().has_value());
  EXPECT_FALSE(OtlpTargetAtStart("nonsense", wrong).ok());
  EXPECT_EQ(OtlpTargetAtStart("c:1", wrong).value()->address, "c:1") << "the flag has its place";
  const auto variables = {std::pair{"OTEL_RESOURCE_ATTRIBUTES", "team"},
                          std::pair{"OTEL_EXPORTER_OTLP_HEADERS", "novalue"},
                          std::pair{"OTEL_EXPORTER_OTLP_TIMEOUT", "1s"}};
  for (const auto& [name, value] : variables) {
    const auto target = OtlpTargetAtStart("c:1", Of({{name, value}}));
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_FALSE(target->has_value()) << name;
    EXPECT_FALSE(OtlpTargetAtStart("nonsense", Of({{name, value}})).ok());
  }
}

TEST_F(OtlpTargetTest, SamplersAreThoseOfTheSpecification) {
  const struct {
    const char* name;
    const char* argument;
    bool asks_parent;
    double share;
  } cases[] = {{"", "", true, 1},
               {"", "0.25", true, 1},
               {"always_on", "", false, 1},
               {"always_off", "0.5", false, 0},
               {"traceidratio", "0.25", false, 0.25},
               {"traceidratio", "", false, 1},
               {"traceidratio", "2", false, 1},
               {"traceidratio", "-0.1", false, 1},
               {"traceidratio", "nan", false, 1},
               {"traceidratio", "half", false, 1},
               {"parentbased_always_on", "", true, 1},
               {"parentbased_always_off", "", true, 0},
               {"parentbased_traceidratio", "0", true, 0},
               {"parentbased_jaeger_remote", "0", true, 1},
               {"xray", "", true, 1},
               {"ALWAYS_OFF", "", true, 1}};
  for (const auto& c : cases) {
    const auto target = ResolveOtlpTarget(
        "h:1", Of({{"OTEL_TRACES_SAMPLER", c.name}, {"OTEL_TRACES_SAMPLER_ARG", c.argument}}));
    ASSERT_TRUE(target.ok() && target->has_value()) << c.name;
    EXPECT_EQ((*target)->sampler.asks_parent, c.asks_parent) << c.name;
    EXPECT_EQ((*target)->sampler.share, c.share) << c.name << " " << c.argument;
  }
}

}  // namespace
}  // namespace baton::otlp
