#include "src/http/site_rules.h"

#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// "name" or "name:port", "-" for what is no host.
std::string HostText(std::string_view text) {
  const std::optional<SiteHost> host = SiteHost::Parse(text);
  if (!host) return "-";
  return host->port ? fmt::format("{}:{}", host->name, *host->port) : host->name;
}

TEST(SiteHostTest, OneHostHasOneForm) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"localhost", "localhost"},
      {"LocalHost.:8080", "localhost:8080"},
      {"127.0.0.1:80", "127.0.0.1:80"},
      {"[::1]", "::1"},
      {"[0:0:0:0:0:0:0:1]:7", "::1:7"},
      {"::1", "::1"},
      {"a_b.example:", "a_b.example"},
      {"", "-"},
      {":80", "-"},
      {"a:b", "-"},
      {"a:65536", "-"},
      {"[::1", "-"},
      {"[::1]x", "-"},
      {"[a]", "-"},
      {"a/b", "-"},
      {"a b", "-"},
      {"user@a", "-"},
  };
  for (const auto& [text, form] : cases) EXPECT_EQ(HostText(text), form) << text;
}

TEST(SiteHostTest, LoopbackIsAllOf127AndNothingThatLooksLikeIt) {
  for (const char* text : {"localhost", "LOCALHOST.", "127.0.0.1", "127.255.3.4:1", "[::1]:80",
                           "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(SiteHost::Parse(text)->IsLoopback()) << text;
  }
  for (const char* text : {"0.0.0.0", "128.0.0.1", "127.0.0.1.evil.example", "localhost.evil",
                           "evil-localhost", "127.1", "[::2]", "[::ffff:10.0.0.1]"}) {
    EXPECT_FALSE(SiteHost::Parse(text)->IsLoopback()) << text;
  }
}

TEST(SiteOriginTest, PagesOfTheServerItself) {
  const auto is_of = [](std::string_view origin, std::string_view host) {
    const std::optional<SiteOrigin> parsed = SiteOrigin::Parse(origin);
    return parsed && parsed->IsOf(*SiteHost::Parse(host));
  };
  EXPECT_TRUE(is_of("http://localhost:8080", "localhost:8080"));
  EXPECT_TRUE(is_of("https://localhost:8080", "LOCALHOST.:8080")) << "a proxy ended TLS";
  EXPECT_TRUE(is_of("http://a.example", "a.example:80"));
  EXPECT_TRUE(is_of("https://a.example", "a.example"));
  EXPECT_TRUE(is_of("https://a.example", "a.example:443"));
  EXPECT_TRUE(is_of("http://[::1]:8080", "[::1]:8080"));
  EXPECT_FALSE(is_of("http://localhost:3000", "localhost:8080"));
  EXPECT_FALSE(is_of("http://localhost", "localhost:8080"));
  EXPECT_FALSE(is_of("http://127.0.0.1:8080", "localhost:8080"));
  EXPECT_FALSE(is_of("null", "localhost"));
  EXPECT_FALSE(is_of("http://localhost:8080/", "localhost:8080")) << "no browser writes it so";
  EXPECT_FALSE(is_of("http://localhost:8080@evil.example", "localhost:8080"));
}

// The verdict of the rules on a request, as "403 code", "204" or "pass".
struct Asked {
  std::string method = "POST";
  HttpHeaders headers;
  std::string authority = "";
};
std::string Verdict(const SiteRules& rules, const Asked& asked, bool on_loopback = true) {
  const SiteVerdict verdict = JudgeSite(rules, {.method = asked.method,
                                                .authority = asked.authority,
                                                .headers = &asked.headers,
                                                .on_loopback = on_loopback,
                                                .own_host = "bound.example"});
  if (verdict.refusal) return fmt::format("{} {}", verdict.refusal->status, verdict.refusal->code);
  return verdict.is_preflight ? "204" : "pass";
}

SiteRules Rules(SiteCheck check = SiteCheck::kPosts) {
  SiteRules rules;
  rules.check = check;
  rules.hosts = *ParseAllowedHosts("proxy.example, 10.0.0.7:8080");
  rules.origins = *ParseCorsOrigins("https://chat.example:8443,http://127.0.0.1:3000");
  return rules;
}

constexpr const char* kForeignHost = "403 host_not_allowed";
constexpr const char* kForeignOrigin = "403 origin_not_allowed";

TEST(SiteRulesTest, OnLoopbackOnlyOwnNamesAreAnswered) {
  const std::pair<const char*, const char*> cases[] = {
      {"localhost", "pass"},
      {"LOCALHOST:9", "pass"},
      {"127.9.9.9:8080", "pass"},
      {"[::1]:8080", "pass"},
      {"Proxy.Example.:1", "pass"},
      {"10.0.0.7:8080", "pass"},
      {"bound.example", "pass"},
      {"10.0.0.7:8081", kForeignHost},
      {"10.0.0.7", kForeignHost},
      {"evil.example:8080", kForeignHost},
      {"0.0.0.0:8080", kForeignHost},
      {"a.proxy.example", kForeignHost},
      {"", kForeignHost},
      {"[::2]", kForeignHost},
  };
  for (const auto& [host, verdict] : cases) {
    for (const char* method : {"GET", "POST", "OPTIONS"}) {
      EXPECT_EQ(Verdict(Rules(), {method, {{"Host", host}}}), verdict) << host << " " << method;
    }
  }
  const Asked foreign{"GET", {{"Host", "evil.example"}}};
  EXPECT_EQ(Verdict(Rules(), foreign, /*on_loopback=*/false), "pass");
  EXPECT_EQ(Verdict(SiteRules{}, foreign), "pass") << "rules that are off";
  EXPECT_EQ(Verdict(Rules(), {"GET", {}}), "pass") << "HTTP/1.0 without a Host is no browser";
  const Asked absolute{"GET", {{"Host", "localhost"}}, "evil.example"};
  EXPECT_EQ(Verdict(Rules(), absolute), kForeignHost);
}

TEST(SiteRulesTest, PostsOfForeignPagesAreRefusedAndReadsAreNot) {
  const auto verdict = [](std::string method, std::string origin) {
    return Verdict(Rules(), {std::move(method), {{"Host", "localhost:8080"}, {"Origin", origin}}});
  };
  for (const char* origin : {"https://evil.example", "null", "http://localhost:3000", "",
                             "http://127.0.0.1:8080", "chrome-extension://abcdef"}) {
    EXPECT_EQ(verdict("POST", origin), kForeignOrigin) << origin;
    EXPECT_EQ(verdict("GET", origin), "pass") << origin;
    EXPECT_EQ(verdict("OPTIONS", origin), "pass") << origin;
  }
  EXPECT_EQ(verdict("POST", "http://localhost:8080"), "pass");
  EXPECT_EQ(verdict("POST", "https://chat.example:8443"), "pass");
  EXPECT_EQ(verdict("POST", "http://chat.example:8443"), kForeignOrigin) << "another scheme";
  EXPECT_EQ(verdict("POST", "https://chat.example"), kForeignOrigin) << "another port";
  const HttpHeaders twice = {{"Host", "localhost:8080"},
                             {"Origin", "http://localhost:8080"},
                             {"Origin", "https://evil.example"}};
  EXPECT_EQ(Verdict(Rules(), {"POST", twice}), kForeignOrigin);
  const HttpHeaders elsewhere = {{"Host", "api.example"}, {"Origin", "https://evil.example"}};
  EXPECT_EQ(Verdict(Rules(), {"POST", elsewhere}, /*on_loopback=*/false), kForeignOrigin);
}

// It carries no key, so nothing after this check could say what is wrong.
TEST(SiteRulesTest, APreflightOfAForeignPageIsRefused) {
  const auto verdict = [](std::string origin) {
    return Verdict(Rules(), {"OPTIONS",
                             {{"Host", "localhost:8080"},
                              {"Origin", std::move(origin)},
                              {"Access-Control-Request-Method", "POST"}}});
  };
  EXPECT_EQ(verdict("https://evil.example"), kForeignOrigin);
  EXPECT_EQ(verdict("null"), kForeignOrigin);
  EXPECT_EQ(verdict("http://localhost:8080"), "pass");
}

TEST(SiteRulesTest, AnAdminPortRefusesForeignPagesWhateverTheyDo) {
  for (const char* method : {"GET", "HEAD", "OPTIONS", "PUT", "POST"}) {
    const HttpHeaders headers = {{"Host", "localhost"}, {"Origin", "https://evil.example"}};
    EXPECT_EQ(Verdict(Rules(SiteCheck::kAllMethods), {method, headers}), kForeignOrigin) << method;
  }
}

TEST(SiteRulesTest, PreflightOfAnAllowedPageNamesWhatItAskedFor) {
  const HttpHeaders headers = {{"Host", "localhost"},
                               {"Origin", "https://chat.example:8443"},
                               {"Access-Control-Request-Method", "POST"},
                               {"Access-Control-Request-Headers",
                                "authorization, x-stainless-lang,bad name, x-stainless-lang"},
                               {"Access-Control-Request-Private-Network", "true"}};
  const SiteVerdict verdict =
      JudgeSite(Rules(), {.method = "OPTIONS", .headers = &headers, .on_loopback = true});
  EXPECT_TRUE(verdict.is_preflight);
  const auto field = [&](const char* name) {
    return std::string(verdict.fields.Find(name).value_or("<absent>"));
  };
  EXPECT_EQ(field("Access-Control-Allow-Origin"), "https://chat.example:8443");
  EXPECT_THAT(field("Access-Control-Allow-Headers"),
              AllOf(HasSubstr("Authorization"), HasSubstr("Content-Type"),
                    HasSubstr("X-Request-Id"), HasSubstr("Idempotency-Key")));
  EXPECT_TRUE(field("Access-Control-Allow-Headers").ends_with("traceparent, x-stainless-lang"));
  EXPECT_THAT(field("Access-Control-Allow-Methods"), HasSubstr("POST"));
  EXPECT_EQ(field("Access-Control-Max-Age"), "600");
  EXPECT_EQ(field("Access-Control-Allow-Private-Network"), "true");
  EXPECT_EQ(field("Vary"), "Origin");
}

TEST(SiteRulesTest, AnAllowedPageReadsTheRequestIdsOfBothApis) {
  const HttpHeaders headers = {{"Host", "localhost"}, {"Origin", "https://chat.example:8443"}};
  const SiteVerdict verdict =
      JudgeSite(Rules(), {.method = "POST", .headers = &headers, .on_loopback = true});
  const std::string exposed(
      verdict.fields.Find("Access-Control-Expose-Headers").value_or("<absent>"));
  EXPECT_THAT(exposed, HasSubstr("X-Request-Id, "));
  EXPECT_THAT(exposed, HasSubstr(" request-id, ")) << "Anthropic's client reads this one";
}

// Seconds of one event loop, were the work quadratic.
TEST(SiteRulesTest, APreflightOfThousandsOfFieldsIsCutOff) {
  std::string asked(30'000, ',');
  for (int i = 0; i < 5000; ++i) asked += fmt::format("x-{},", i);
  const HttpHeaders headers = {{"Host", "localhost"},
                               {"Origin", "https://chat.example:8443"},
                               {"Access-Control-Request-Method", "POST"},
                               {"Access-Control-Request-Headers", asked}};
  const SiteVerdict verdict =
      JudgeSite(Rules(), {.method = "OPTIONS", .headers = &headers, .on_loopback = true});
  const std::string fields(verdict.fields.Find("Access-Control-Allow-Headers").value_or(""));
  EXPECT_TRUE(fields.ends_with("traceparent, x-0" + fields.substr(fields.find(", x-1,"))));
  EXPECT_TRUE(fields.ends_with(", x-62, x-63"));
  EXPECT_EQ(fields.find(",,"), std::string::npos);
}

TEST(SiteRulesTest, APortThatIsTheDefaultMayBeLeftOut) {
  SiteRules rules;
  rules.check = SiteCheck::kPosts;
  rules.hosts = *ParseAllowedHosts("tls.example:443,plain.example:80,other.example:8080");
  const auto verdict = [&](const char* host) { return Verdict(rules, {"GET", {{"Host", host}}}); };
  for (const char* host : {"tls.example", "tls.example:443", "plain.example", "plain.example:80",
                           "plain.example:", "other.example:8080"}) {
    EXPECT_EQ(verdict(host), "pass") << host;
  }
  for (const char* host : {"tls.example:80", "plain.example:443", "tls.example:8443",
                           "other.example", "other.example:80"}) {
    EXPECT_EQ(verdict(host), kForeignHost) << host;
  }
}

TEST(SiteRulesTest, AnswersVaryOnlyWhereOriginsAreAllowed) {
  const HttpHeaders headers = {{"Host", "localhost"}};
  const SiteRequest get{.method = "GET", .headers = &headers, .on_loopback = true};
  EXPECT_EQ(JudgeSite(Rules(), get).fields.Find("Vary"), "Origin");
  SiteRules none;
  none.check = SiteCheck::kPosts;
  EXPECT_TRUE(JudgeSite(none, get).fields.fields().empty());
}

TEST(SiteRulesTest, ListsNameTheElementThatIsWrong) {
  EXPECT_TRUE(ParseAllowedHosts("")->empty());
  EXPECT_TRUE(ParseCorsOrigins("")->empty());
  for (const char* list : {"*", "a.example,*", "https://a.example", "a.example,,b", "a b"}) {
    const Status status = ParseAllowedHosts(list).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--allowed-hosts: '")) << list;
  }
  for (const char* list : {"*", "null", "a.example", "https://a.example/", "https://*.a.example",
                           "https://a.example b"}) {
    const Status status = ParseCorsOrigins(list).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--cors-origins: '")) << list;
  }
  EXPECT_EQ(ParseCorsOrigins("https://A.example:443")->front(),
            *SiteOrigin::Parse("https://a.example"));
}

}  // namespace
}  // namespace baton::http
