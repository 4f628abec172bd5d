#include "gtest/gtest.h"

#include "src/cli/http_client.h"

namespace baton::cli {
namespace {

TEST(HttpUrlTest, Parses) {
  const struct {
    std::string text;
    bool tls;
    std::string host;
    std::string port;
    std::string target;
  } cases[] = {
      {"http://a", false, "a", "80", "/"},
      {"https://a.b/c?d=e", true, "a.b", "443", "/c?d=e"},
      {"http://127.0.0.1:8080/", false, "127.0.0.1", "8080", "/"},
      {"http://[::1]:90/x", false, "::1", "90", "/x"},
      {"http://[::1]/x", false, "::1", "80", "/x"},
  };
  for (const auto& c : cases) {
    const StatusOr<HttpUrl> url = ParseHttpUrl(c.text);
    ASSERT_TRUE(url.ok()) << c.text << ": " << url.status();
    EXPECT_EQ(url->tls, c.tls);
    EXPECT_EQ(url->host, c.host);
    EXPECT_EQ(url->port, c.port);
    EXPECT_EQ(url->target, c.target);
  }
  EXPECT_EQ(ParseHttpUrl("http://[::1]/x")->ToString(), "http://[::1]:80/x");
}

TEST(HttpUrlTest, TheBasePathIsWhatStandsBeforeTheVersion) {
  for (const auto& [text, base] : {std::pair("http://a", ""),
                                   {"http://a/", ""},
                                   {"http://a/v1", ""},
                                   {"http://a/v1/", ""},
                                   {"http://a/team/v1", "/team"},
                                   {"http://a/team/", "/team"}}) {
    EXPECT_EQ(BasePathOf(*ParseHttpUrl(text)), base) << text;
  }
}

TEST(HttpUrlTest, RefusesWhatIsNoUrl) {
  for (const char* text : {"", "a", "ftp://a", "http://", "http://:80", "http://a:0",
                           "http://a:65536", "http://a:b", "//a"}) {
    EXPECT_FALSE(ParseHttpUrl(text).ok()) << text;
  }
}

TEST(ParseServerTest, TakesWhatPeopleWrite) {
  for (const char* text : {"127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:8080/",
                           "127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1/"}) {
    const StatusOr<HttpUrl> url = ParseServer(text);
    ASSERT_TRUE(url.ok()) << text << url.status();
    EXPECT_EQ(url->host, "127.0.0.1") << text;
    EXPECT_EQ(url->port, "8080") << text;
    EXPECT_EQ(BasePathOf(*url), "") << text;
  }
  EXPECT_EQ(ParseServer("[::1]:80")->host, "::1");
  EXPECT_TRUE(ParseServer("https://models.example/v1")->tls);
}

TEST(ParseServerTest, RefusesTheRestAndShowsTheForm) {
  for (const char* text :
       {"", "8080", "localhost", ":8080", "ftp://h:1", "h:0", "::1:80", "h:99999"}) {
    const StatusOr<HttpUrl> url = ParseServer(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_NE(std::string(url.status().message()).find(std::string("'") + text + "'"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace baton::cli
