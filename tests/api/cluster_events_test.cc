// Tests the viewers of /v1/cluster/events and the page at /ui: how many may watch, who is dropped,
// what runs while nobody watches, and what the page's answer promises.
#include "src/api/cluster_events.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/chat_page.h"
#include "src/api/http_api.h"
#include "tests/api/fake_responder.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using http::HttpRequest;

namespace {

// Events about a router without workers. Every look is counted.
struct CountedLook {
  std::atomic<int> num_looks = 0;
  std::optional<ClusterLook> operator()() {
    ClusterLook look;
    look.now.steady_us = 1'000'000 * static_cast<int64_t>(++num_looks);
    return look;
  }
};

class ClusterEventsTest : public testing::Test {
 protected:
  std::shared_ptr<FakeResponder> Watch(
      ClusterEvents::Entry expected = ClusterEvents::Entry::kTaken) {
    auto responder = std::make_shared<FakeResponder>();
    EXPECT_EQ(events_.Add({}, responder), expected);
    return responder;
  }
  static bool WaitBytes(const FakeResponder& responder) {
    return WaitFor([&] { return responder.buffered_bytes() > responder.buffered; });
  }
  template <typename Condition>
  static bool WaitFor(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  CountedLook look_;
  ClusterEvents events_{[this] { return look_(); }, 15'000};
};

// Threads of this process.
std::ptrdiff_t NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST_F(ClusterEventsTest, NothingRunsWithoutAViewer) {
  const std::ptrdiff_t num_threads = NumThreads();
  const ClusterEvents unwatched([this] { return look_(); }, 15'000);
  EXPECT_EQ(NumThreads(), num_threads) << "the first viewer starts the thread";
  const auto viewer = Watch();
  EXPECT_EQ(NumThreads(), num_threads + 1);
  ASSERT_TRUE(WaitBytes(*viewer));
  viewer->Close();
  ASSERT_TRUE(WaitFor([&] { return events_.num_viewers() == 0; }));
  // The look that found the viewer gone is over. A thread that went on would take its next one
  // within an interval, so no shorter silence shows that it does not.
  const int before = look_.num_looks;
  std::this_thread::sleep_for(std::chrono::microseconds(ClusterEvents::kIntervalUs * 5 / 4));
  EXPECT_EQ(look_.num_looks, before);
}

TEST_F(ClusterEventsTest, AStreamBeginsWithHelloAndTheState) {
  const auto viewer = Watch();
  ASSERT_TRUE(WaitBytes(*viewer));
  events_.Stop();
  EXPECT_EQ(viewer->status, 200);
  EXPECT_EQ(viewer->Header("Content-Type"), "text/event-stream");
  EXPECT_EQ(viewer->Header("Cache-Control"), "no-cache");
  EXPECT_EQ(viewer->Header("X-Accel-Buffering"), "no");
  EXPECT_EQ(viewer->silence_ms, 15'000);
  EXPECT_EQ(viewer->body.find(R"(data: {"version":1,"type":"hello","time_ms":)"), 0u);
  EXPECT_NE(viewer->body.find(R"(data: {"version":1,"type":"cluster","time_ms":)"),
            std::string::npos);
}

TEST_F(ClusterEventsTest, ManyViewersShareTheirLooksUpToALimit) {
  std::vector<std::shared_ptr<FakeResponder>> viewers;
  for (size_t i = 0; i < ClusterEvents::kMaxViewers; ++i) viewers.push_back(Watch());
  EXPECT_FALSE(Watch(ClusterEvents::Entry::kFull)->streamed) << "its answer is still to be given";
  for (const auto& viewer : viewers) EXPECT_TRUE(WaitBytes(*viewer));
  EXPECT_LT(look_.num_looks, 100);
  viewers[7]->Close();
  ASSERT_TRUE(WaitFor([&] { return events_.num_viewers() < ClusterEvents::kMaxViewers; }));
  Watch();
}

TEST_F(ClusterEventsTest, AViewerThatReadsNothingIsDropped) {
  const auto reader = Watch();
  ASSERT_TRUE(WaitBytes(*reader));
  auto sleeper = std::make_shared<FakeResponder>();
  sleeper->buffered = ClusterEvents::kMaxUnreadBytes + 1;
  EXPECT_EQ(events_.Add({}, sleeper), ClusterEvents::Entry::kTaken);
  EXPECT_TRUE(sleeper->Wait());
  EXPECT_TRUE(sleeper->aborted);
  EXPECT_TRUE(WaitFor([&] { return events_.num_viewers() == 1; }));
  EXPECT_FALSE(reader->aborted);
}

TEST_F(ClusterEventsTest, AViewerThatWasGoneBeforeItCameTakesNoPlace) {
  auto responder = std::make_shared<FakeResponder>();
  responder->Close();
  EXPECT_EQ(events_.Add({}, responder), ClusterEvents::Entry::kTaken);
  EXPECT_EQ(events_.num_viewers(), 0u);
}

TEST_F(ClusterEventsTest, ADrainEndsEveryStreamAndTakesNoMore) {
  const auto viewer = Watch();
  ASSERT_TRUE(WaitBytes(*viewer));
  events_.Stop();
  EXPECT_TRUE(viewer->Wait());
  EXPECT_TRUE(viewer->closes);
  EXPECT_NE(viewer->body.find(R"("type":"end","time_ms":)"), std::string::npos);
  EXPECT_TRUE(viewer->body.ends_with("\"why\":\"draining\"}\n\n"));
  Watch(ClusterEvents::Entry::kStopped);
  events_.Stop();
}

// The HTTP side.
class ClusterHttpTest : public ClusterEventsTest {
 protected:
  HttpApi Api(bool serves_ui = true) {
    ApiParts parts{&submitter_, &workers_, &answers_};
    parts.events = &events_;
    parts.serves_ui = serves_ui;
    return HttpApi(parts, [](router::Topology*) {});
  }
  static std::shared_ptr<FakeResponder> Get(HttpApi& api, const std::string& path,
                                            const std::string& method = "GET") {
    HttpRequest request;
    request.method = method;
    request.target = path;
    request.path = path;
    auto responder = std::make_shared<FakeResponder>();
    api.Handle(std::move(request), responder);
    return responder;
  }

  FakeSubmitter submitter_;
  AnswerBudget answers_;
  ApiWorkers workers_{1};
};

TEST_F(ClusterHttpTest, TheLimitOfViewersIsA503ThatNamesIt) {
  HttpApi api = Api();
  std::vector<std::shared_ptr<FakeResponder>> viewers;
  for (size_t i = 0; i < ClusterEvents::kMaxViewers; ++i) {
    viewers.push_back(Get(api, "/v1/cluster/events"));
    ASSERT_TRUE(viewers.back()->streamed);
    EXPECT_FALSE(viewers.back()->Header("X-Request-Id").empty());
  }
  const auto refused = Get(api, "/v1/cluster/events");
  EXPECT_EQ(refused->status, 503);
  EXPECT_NE(refused->body.find("too_many_connections"), std::string::npos);
  EXPECT_NE(refused->body.find("200 viewers watch /v1/cluster/events, which is its limit."),
            std::string::npos);
  EXPECT_EQ(refused->Header("Retry-After"), "1");
  EXPECT_EQ(Get(api, "/v1/cluster/events", "HEAD")->status, 200) << "it takes no place";
}

TEST_F(ClusterHttpTest, AfterTheEndAViewerIsTold503) {
  HttpApi api = Api();
  events_.Stop();
  const auto refused = Get(api, "/v1/cluster/events");
  EXPECT_EQ(refused->status, 503);
  EXPECT_NE(refused->body.find("\"draining\""), std::string::npos);
}

TEST_F(ClusterHttpTest, ThePageRunsOnlyWhatCarriesTheNonceOfItsAnswer) {
  HttpApi api = Api();
  const auto first = Get(api, "/ui");
  const auto second = Get(api, "/ui");
  EXPECT_EQ(first->status, 200);
  EXPECT_EQ(first->Header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(first->Header("Cache-Control"), "no-store");
  const std::string policy = first->Header("Content-Security-Policy");
  EXPECT_NE(policy, second->Header("Content-Security-Policy")) << "a nonce is for one answer";
  const std::string begin = "default-src 'none'; script-src 'nonce-";
  ASSERT_EQ(policy.find(begin), 0u);
  const std::string nonce = policy.substr(begin.size(), 32);
  EXPECT_EQ(policy.substr(begin.size() + 32),
            "'; style-src 'nonce-" + nonce +
                "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'");
  EXPECT_NE(first->body.find("<script nonce=\"" + nonce + "\">"), std::string::npos);
  EXPECT_NE(first->body.find("<style nonce=\"" + nonce + "\">"), std::string::npos);
  EXPECT_EQ(first->body.find(kChatPageNonce), std::string::npos);
}

TEST_F(ClusterHttpTest, ThePageIsOneFileOf300KBWithNothingFromElsewhere) {
  HttpApi api = Api();
  const std::string body = Get(api, "/ui")->body;
  EXPECT_GT(body.size(), 20'000u) << "its style and its script are in it";
  EXPECT_LE(body.size(), 300'000u);
  for (const char* part : {"<title>Baton</title>", "id=\"model\"", "id=\"system\"", "id=\"log\"",
                           "/v1/chat/completions", "/v1/cluster/events", "watchCluster();"}) {
    EXPECT_NE(body.find(part), std::string::npos) << part;
  }
  for (const char* part : {"http://", "https://", "innerHTML", "PAGE STYLE", "PAGE SCRIPT",
                           " style=\"", " onclick=", "@import", "url("}) {
    EXPECT_EQ(body.find(part), std::string::npos) << part;
  }
}

TEST_F(ClusterHttpTest, APageThatIsSwitchedOffSaysByWhichFlag) {
  HttpApi api = Api(/*serves_ui=*/false);
  for (const char* path : {"/ui", "/"}) {
    const auto responder = Get(api, path);
    EXPECT_EQ(responder->status, 404) << path;
    EXPECT_NE(responder->body.find("--ui off"), std::string::npos) << responder->body;
  }
  EXPECT_TRUE(Get(api, "/v1/cluster/events")->streamed) << "it is no part of the page";
}

}  // namespace
}  // namespace baton::api
