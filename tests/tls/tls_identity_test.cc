// The files of --tls-*: what stops a process at its start, in which words, and what a replacement
// of the files does to one that runs.
#include "src/tls/tls_identity.h"

#include <openssl/ssl.h>
#include <sys/stat.h>

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/tls/tls_watch.h"
#include "tests/tls/test_certs.h"

namespace baton::tls::test {
namespace {

using testing::HasSubstr;

class TlsIdentityTest : public testing::Test {
 protected:
  // The message of a refusal; one line.
  std::string Refusal(const TlsFiles& files) {
    const auto loaded = TlsIdentity::Load(files);
    EXPECT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
    const std::string message(loaded.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }

  TempFolder folder_;
  TestAuthority authority_;
};

TEST_F(TlsIdentityTest, GoodFilesLoad) {
  const auto loaded = TlsIdentity::Load(authority_.Issue(folder_, "a"));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  // No extended key usage allows everything.
  EXPECT_TRUE(TlsIdentity::Load(authority_.Issue(folder_, "b", {.usage = ""})).ok());
}

TEST_F(TlsIdentityTest, AllThreeFlagsOrNone) {
  EXPECT_TRUE(CheckTlsFlags({}).ok());
  EXPECT_TRUE(CheckTlsFlags({"c", "k", "a"}).ok());
  EXPECT_EQ(CheckTlsFlags({"c", "k", ""}).message(),
            "--tls-ca is missing: --tls-cert, --tls-key and --tls-ca go together");
  EXPECT_EQ(CheckTlsFlags({"", "", "a"}).message(),
            "--tls-cert and --tls-key are missing: --tls-cert, --tls-key and --tls-ca go together");
}

TEST_F(TlsIdentityTest, EveryBadFileIsNamedWithItsFlag) {
  const TlsFiles good = authority_.Issue(folder_, "good");
  const TlsFiles other = authority_.Issue(folder_, "other");
  const TestAuthority stranger;
  const TlsFiles foreign = stranger.Issue(folder_, "foreign");
  const std::string garbage = folder_.path() + "/garbage";
  ReplaceText(garbage, "no certificate at all");
  const std::string torn = folder_.path() + "/torn";
  const std::string text = TextOf(good.cert);
  ReplaceText(torn, text + text.substr(0, text.size() / 2));
  const std::string fifo = folder_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string nowhere = folder_.path() + "/nowhere";
  const auto with = [&good](const std::function<void(TlsFiles*)>& change) {
    TlsFiles files = good;
    change(&files);
    return files;
  };
  struct Case {
    TlsFiles files;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {with([&](TlsFiles* f) { f->cert = nowhere; }), {"--tls-cert " + nowhere}},
      {with([&](TlsFiles* f) { f->key = nowhere; }), {"--tls-key " + nowhere}},
      {with([&](TlsFiles* f) { f->ca = nowhere; }), {"--tls-ca " + nowhere}},
      {with([&](TlsFiles* f) { f->cert = fifo; }), {"--tls-cert " + fifo}},
      {with([&](TlsFiles* f) { f->cert = folder_.path(); }), {"--tls-cert " + folder_.path()}},
      {with([&](TlsFiles* f) { f->cert = garbage; }), {garbage, "no PEM certificate"}},
      {with([&](TlsFiles* f) { f->ca = garbage; }), {garbage, "no PEM certificate"}},
      {with([&](TlsFiles* f) { f->key = garbage; }), {garbage, "no PEM private key"}},
      {with([&](TlsFiles* f) { f->cert = torn; }), {torn, "certificate 2 is damaged"}},
      {with([&](TlsFiles* f) { f->key = other.key; }), {other.key, "is not the key of", good.cert}},
      {with([&](TlsFiles* f) { f->ca = foreign.ca; }), {good.cert, "does not verify", foreign.ca}},
      {authority_.Issue(folder_, "old", {.end_s = -60}), {"old.crt expired on "}},
      {authority_.Issue(folder_, "new", {.begin_s = 3600}), {"new.crt is not valid before "}},
      {authority_.Issue(folder_, "client", {.usage = "clientAuth"}), {"as a server", "serverAuth"}},
      {authority_.Issue(folder_, "server", {.usage = "serverAuth"}), {"as a client", "clientAuth"}},
      {authority_.Issue(folder_, "locked", {.passphrase = "words"}), {"wants a passphrase"}},
  };
  for (const Case& test_case : cases) {
    const std::string message = Refusal(test_case.files);
    for (const std::string& word : test_case.words) EXPECT_THAT(message, HasSubstr(word));
  }
}

TEST_F(TlsIdentityTest, AReplacementCountsForNewConnectionsAndABadOneDoesNot) {
  const TlsFiles files = authority_.Issue(folder_, "a");
  auto watch = TlsWatch::Create(files);
  ASSERT_TRUE(watch.ok()) << watch.status();
  SSL_CTX* const first = (*watch)->Current(1).ssl_context();
  int64_t now_us = 1 + TlsWatch::kLookIntervalUs;
  EXPECT_EQ((*watch)->Current(now_us).ssl_context(), first);
  // Only half of a replacement: the key does not fit.
  const TlsFiles next = authority_.Issue(folder_, "b");
  ReplaceText(files.cert, TextOf(next.cert));
  EXPECT_EQ((*watch)->Current(now_us).ssl_context(), first) << "looked again too early";
  now_us += TlsWatch::kLookIntervalUs;
  EXPECT_EQ((*watch)->Current(now_us).ssl_context(), first);
  ReplaceText(files.key, TextOf(next.key));
  now_us += TlsWatch::kLookIntervalUs;
  SSL_CTX* const second = (*watch)->Current(now_us).ssl_context();
  EXPECT_NE(second, first);
  // Gone altogether: what is loaded stays.
  ASSERT_EQ(remove(files.cert.c_str()), 0);
  now_us += TlsWatch::kLookIntervalUs;
  EXPECT_EQ((*watch)->Current(now_us).ssl_context(), second);
}

}  // namespace
}  // namespace baton::tls::test
