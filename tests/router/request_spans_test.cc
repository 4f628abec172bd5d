#include "src/router/request_spans.h"

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using namespace obs;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

constexpr SpanIds kClient = {.trace_hi = 7, .trace_lo = 8, .span_id = 9, .sampled = true};

// Keeps what it gets.
class SpanLog final : public SpanSink {
 public:
  void Add(std::vector<Span> spans) override {
    for (Span& span : spans) all.push_back(std::move(span));
  }
  std::map<std::string, Span> ByName() const {
    std::map<std::string, Span> named;
    for (const Span& span : all) named[span.name] = span;
    return named;
  }
  std::vector<Span> all;
};

RouterCoreConfig With(SpanSink* spans) {
  RouterCoreConfig config;
  config.spans = spans;
  return config;
}

// One request from its submission to its end, with time between all that happens.
void PlayRequest(FakeCluster& cluster, GenerateRequest request) {
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.now_us += 2000;
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.now_us += 30'000;
  cluster.Text("prefill-0", uid, 0, "a");
  cluster.now_us += 500;
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
  cluster.now_us += 4000;
  cluster.State("decode-0", uid, WorkerRequestState::kFirstStepDone);
  cluster.now_us += 4000;
  cluster.Text("decode-0", uid, 1, "bc", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
}

TEST(RequestSpansTest, StagesLieOneBehindTheOtherBelowTheRequest) {
  SpanLog log;
  FakeCluster cluster(With(&log));
  cluster.JoinPair();
  const int64_t start_us = cluster.now_us;
  PlayRequest(cluster, cluster.Request("prompt", 3));
  const std::map<std::string, Span> spans = log.ByName();
  const Span& whole = log.all[0];
  EXPECT_EQ(whole.kind, SpanKind::kServer);
  EXPECT_EQ(whole.start_us, start_us);
  EXPECT_EQ(whole.end_us, start_us + 40'500);
  EXPECT_EQ(spans.at("queue_prefill").end_us - spans.at("queue_prefill").start_us, 2000);
  EXPECT_EQ(spans.at("prefill").end_us - spans.at("prefill").start_us, 30'000);
  EXPECT_EQ(spans.at("kv_transfer").end_us - spans.at("kv_transfer").start_us, 500);
  EXPECT_EQ(spans.at("decode").end_us, whole.end_us);
  EXPECT_EQ(spans.count("kv_wait"), 0u) << "it took no time";
  int64_t from_us = whole.start_us;
  for (size_t i = 1; i < log.all.size(); ++i) {
    EXPECT_EQ(log.all[i].start_us, from_us) << log.all[i].name;
    EXPECT_EQ(log.all[i].parent_id, whole.context.span_id);
    EXPECT_EQ(log.all[i].context.trace_lo, whole.context.trace_lo);
    EXPECT_NE(log.all[i].context.span_id, whole.context.span_id);
    from_us = log.all[i].end_us;
  }
  EXPECT_EQ(from_us, whole.end_us);
}

TEST(RequestSpansTest, WithoutAClientsTraceTheUidIsTheTrace) {
  SpanLog log;
  FakeCluster cluster(With(&log));
  cluster.JoinPair();
  PlayRequest(cluster, cluster.Request("prompt", 3));
  EXPECT_EQ(log.all[0].context.trace_hi, 1u) << "the uid that the cluster of tests gives";
  EXPECT_EQ(log.all[0].parent_id, 0u);
}

TEST(RequestSpansTest, AClientsTraceGoesOnAndReachesTheWorkers) {
  SpanLog log;
  FakeCluster cluster(With(&log));
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt", 3);
  request.trace = kClient;
  PlayRequest(cluster, std::move(request));
  const Span& whole = log.all[0];
  EXPECT_EQ(whole.context.trace_hi, 7u);
  EXPECT_EQ(whole.context.trace_lo, 8u);
  EXPECT_EQ(whole.parent_id, 9u);
  EXPECT_NE(whole.context.span_id, 9u);
  EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kPrefill)[0].trace, whole.context);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode)[0].trace, whole.context);
}

TEST(RequestSpansTest, NothingIsRecordedOfATraceThatIsNotSampled) {
  SpanLog log;
  FakeCluster cluster(With(&log));
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt", 3);
  request.trace = kClient;
  request.trace.sampled = false;
  PlayRequest(cluster, std::move(request));
  EXPECT_TRUE(log.all.empty());
  EXPECT_FALSE(cluster.Log("prefill-0").Of(Order::Kind::kPrefill)[0].trace.valid());
}

TEST(RequestSpansTest, NothingIsRecordedWithoutASink) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt", 3);
  request.trace = kClient;
  PlayRequest(cluster, std::move(request));
  EXPECT_FALSE(cluster.Log("decode-0").Of(Order::Kind::kDecode)[0].trace.valid());
}

// The conventions ask for what a client named, and for nothing that it did not.
TEST(RequestSpansTest, AttributesAreWhatTheClientAskedFor) {
  const auto attributes_of = [](GenerateRequest (*change)(GenerateRequest)) {
    SpanLog log;
    FakeCluster cluster(With(&log));
    cluster.cached_tokens = 4;
    cluster.JoinPair();
    PlayRequest(cluster, change(cluster.Request("prompt", 3)));
    std::map<std::string_view,
             std::variant<int64_t, double, bool, std::string, std::vector<std::string>>>
        attributes;
    for (const SpanAttribute& one : log.all[0].attributes) attributes[one.key] = one.value;
    return attributes;
  };
  auto plain = attributes_of([](GenerateRequest request) { return request; });
  for (const std::string_view key :
       {"gen_ai.request.seed", "gen_ai.request.stream", "gen_ai.request.top_k",
        "gen_ai.request.max_tokens", "gen_ai.request.choice.count",
        "gen_ai.request.presence_penalty", "gen_ai.response.time_to_first_chunk"}) {
    EXPECT_EQ(plain.count(key), 0u) << key;
  }
  EXPECT_EQ(std::get<std::vector<std::string>>(plain.at("gen_ai.response.finish_reasons")),
            std::vector<std::string>{"length"});
  EXPECT_EQ(std::get<int64_t>(plain.at("gen_ai.usage.cache_read.input_tokens")), 4);

  auto full = attributes_of([](GenerateRequest request) {
    request.names_seed = request.is_streamed = request.names_length = true;
    request.sampling.seed = 42;
    request.sampling.top_k = 5;
    request.sampling.presence_penalty = 0.5f;
    return request;
  });
  EXPECT_EQ(std::get<int64_t>(full.at("gen_ai.request.seed")), 42);
  EXPECT_EQ(std::get<int64_t>(full.at("gen_ai.request.top_k")), 5);
  EXPECT_EQ(std::get<int64_t>(full.at("gen_ai.request.max_tokens")), 3);
  EXPECT_TRUE(std::get<bool>(full.at("gen_ai.request.stream")));
  EXPECT_EQ(std::get<double>(full.at("gen_ai.request.presence_penalty")), 0.5);
  EXPECT_EQ(std::get<double>(full.at("gen_ai.response.time_to_first_chunk")), 0.032);
}

TEST(RequestSpansTest, ABadEndIsASpanWithItsStatus) {
  SpanLog log;
  FakeCluster cluster(With(&log));
  cluster.Submit(cluster.Request("prompt", 3));  // nobody is there
  ASSERT_EQ(log.all.size(), 1u);
  EXPECT_EQ(log.all[0].error, "status 503");
}

TEST(RequestSpansTest, RequestsOfOneTraceHaveSpansOfTheirOwn) {
  const SpanIds one = SpanIdsOfRequest(kClient, RequestUid{1, 2});
  const SpanIds other = SpanIdsOfRequest(kClient, RequestUid{1, 3});
  EXPECT_NE(one.span_id, other.span_id);
  EXPECT_TRUE(SpanIdsOfRequest({}, RequestUid{1, 2}).valid());
  EXPECT_FALSE(SpanIdsOfRequest({7, 8, 9, false}, RequestUid{1, 2}).valid());
}

TEST(RequestSpansTest, TheSamplerDecidesWhichTracesAreRecorded) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const SpanIds kNone;
  const SpanIds yes{7, kHalf, 9, true};
  const SpanIds no{7, kHalf, 9, false};
  const struct {
    TraceSampler sampler;
    bool no_parent, sampled, not_sampled;
  } cases[] = {{{}, true, true, false},
               {{.asks_parent = false, .share = 1}, true, true, true},
               {{.asks_parent = false, .share = 0}, false, false, false},
               {{.asks_parent = true, .share = 0}, false, true, false},
               {{.asks_parent = false, .share = 0.5}, false, false, false},
               {{.asks_parent = false, .share = 0.51}, true, true, true},
               {{.asks_parent = true, .share = 0.5}, false, true, false}};
  for (const auto& c : cases) {
    const auto records = [&c](const SpanIds& client) {
      return SpanIdsOfRequest(client, RequestUid{1, kHalf}, c.sampler).valid();
    };
    EXPECT_EQ(records(kNone), c.no_parent) << c.sampler.share;
    EXPECT_EQ(records(yes), c.sampled) << c.sampler.share;
    EXPECT_EQ(records(no), c.not_sampled) << c.sampler.share;
  }
  EXPECT_TRUE(SpanIdsOfRequest(no, RequestUid{1, 2}, {.asks_parent = false}).sampled);
}

}  // namespace
}  // namespace baton::router
