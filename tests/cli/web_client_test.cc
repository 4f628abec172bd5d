#include "src/cli/web_client.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;

TEST(SameOriginTest, SchemeHostAndPortDecide) {
  const struct {
    const char* one;
    const char* other;
    bool is_same;
  } cases[] = {
      {"https://hub/a", "https://hub/b?c", true},
      {"https://hub/a", "https://HUB:443/b", true},
      {"http://hub", "http://hub:80/", true},
      {"https://hub?a", "https://hub#b", true},
      {"HTTPS://hub/", "https://hub/", true},
      {"https://hub/", "http://hub/", false},
      {"https://hub/", "https://hub:8443/", false},
      {"http://127.0.0.1:1/", "http://127.0.0.1:2/", false},
      {"http://127.0.0.1:1/", "http://localhost:1/", false},
      {"https://hub/", "https://cdn.hub/", false},
      {"https://hub/", "https://user@hub/", false},
      {"https://hub/", "https://hub@evil/", false},
      {"https://hub/", "ftp://hub/", false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(IsSameOrigin(c.one, c.other), c.is_same) << c.one << " " << c.other;
  }
}

TEST(NoProxyTest, EntriesMayHavePortsAndBrackets) {
  const struct {
    const char* list;
    const char* url;
    const char* meant;
  } cases[] = {
      {"hub:8080", "http://hub:8080/a", "hub"},
      {"hub:8080", "http://hub/a", ""},
      {"hub:443", "https://hub/a", "hub"},
      {"hub:80,other", "https://hub/a", "other"},
      {"a.example, .b.example:443", "https://x.b.example", "a.example,.b.example"},
      {"[::1]:8080", "http://[::1]:8080/", "::1"},
      {"[::1]:8080", "http://[::1]:8081/", ""},
      {"[::1] ::2", "http://[::1]:8081/", "::1,::2"},
      {"10.0.0.0/8,*", "http://hub", "10.0.0.0/8,*"},
      {"fd00::/8", "http://hub", "fd00::/8"},
      {"hub:http", "http://hub", "hub:http"},
      {"", "http://hub", ""},
  };
  for (const auto& c : cases) EXPECT_EQ(NoProxyFor(c.list, c.url), c.meant) << c.list;
}

// Sets variables for one test, and takes them away after it.
class HubTokenTest : public ::testing::Test {
 protected:
  HubTokenTest() {
    std::filesystem::create_directories(folder_);
    for (const char* name : {"HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT"}) ::unsetenv(name);
    ::setenv("HF_HOME", folder_.c_str(), 1);
  }
  ~HubTokenTest() override {
    for (const char* name : {"HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HOME"}) {
      ::unsetenv(name);
    }
    std::filesystem::remove_all(folder_);
  }
  const std::string folder_ = ::testing::TempDir() + "baton_hub_token";
};

TEST_F(HubTokenTest, BlanksAreTakenOffAndEmptyIsNone) {
  for (const char* text : {"hf_abc", "hf_abc\n", "hf_abc\r\n", " \thf_abc  "}) {
    ::setenv("HF_TOKEN", text, 1);
    EXPECT_EQ(*HubToken(), "hf_abc");
  }
  std::ofstream(folder_ + "/token") << "hf_file\n";
  for (const char* text : {"", "\n", "  \r\n"}) {
    ::setenv("HF_TOKEN", text, 1);
    EXPECT_EQ(*HubToken(), "");
  }
  ::unsetenv("HF_TOKEN");
  EXPECT_EQ(*HubToken(), "hf_file");
  std::ofstream(folder_ + "/other") << "hf_other";
  ::setenv("HF_TOKEN_PATH", (folder_ + "/other").c_str(), 1);
  EXPECT_EQ(*HubToken(), "hf_other");
  ::setenv("HF_TOKEN_PATH", (folder_ + "/nowhere").c_str(), 1);
  EXPECT_EQ(*HubToken(), "");
}

TEST_F(HubTokenTest, OtherBytesAreRefusedWithoutTheToken) {
  for (const char* text : {"hf_se\ncret", "hf_se\r\nX-A: cret", "hf_se cret",
                           "hf_se\x01"
                           "cret",
                           "hf_se\x7f"
                           "cret",
                           "hf_se\xc3\xa4"
                           "cret"}) {
    ::setenv("HF_TOKEN", text, 1);
    const Status status = HubToken().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("HF_TOKEN"));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("hf_se")));
  }
}

TEST_F(HubTokenTest, TheEndpointIsAUrlOrRefused) {
  EXPECT_EQ(*HubEndpoint(), "https://huggingface.co");
  ::setenv("HF_ENDPOINT", " http://mirror:8080/hub//\n", 1);
  EXPECT_EQ(*HubEndpoint(), "http://mirror:8080/hub");
  ::setenv("HF_ENDPOINT", "mirror:8080", 1);
  EXPECT_THAT(std::string(HubEndpoint().status().message()), HasSubstr("HF_ENDPOINT"));
}

}  // namespace
}  // namespace baton::cli
