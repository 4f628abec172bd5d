#include "src/otlp/otlp_exporter.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

#include "src/base/clock.h"

namespace baton::otlp {

using namespace obs;  // NOLINT(google-build-using-namespace)

namespace {

namespace collector = opentelemetry::proto::collector::trace::v1;
namespace otel = opentelemetry::proto::trace::v1;

// A collector that a test makes say what it likes.
class FakeCollector final : public collector::TraceService::Service {
 public:
  FakeCollector() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = fmt::format("127.0.0.1:{}", port);
  }
  ~FakeCollector() override {
    Release();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Export(grpc::ServerContext* /*context*/,
                      const collector::ExportTraceServiceRequest* request,
                      collector::ExportTraceServiceResponse* response) override {
    std::unique_lock lock(mutex_);
    ++num_calls_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    if (num_failures_ > 0) {
      --num_failures_;
      return {failure_, "as the test wants it"};
    }
    last_ = *request;
    if (num_rejected_ > 0) response->mutable_partial_success()->set_rejected_spans(num_rejected_);
    return grpc::Status::OK;
  }

  void Hold() {
    Change([this] { held_ = true; });
  }
  void Release() {
    Change([this] { held_ = false; });
  }
  void Fail(int times, grpc::StatusCode code) {
    Change([&] { num_failures_ = times, failure_ = code; });
  }
  void Reject(int64_t spans_of_a_call) {
    Change([&] { num_rejected_ = spans_of_a_call; });
  }
  void WaitForCalls(int num_calls) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return num_calls_ >= num_calls; }));
  }

  const std::string& address() const { return address_; }
  collector::ExportTraceServiceRequest last() {
    std::lock_guard lock(mutex_);
    return last_;
  }
  int num_calls() {
    std::lock_guard lock(mutex_);
    return num_calls_;
  }

 private:
  template <typename F>
  void Change(F what) {
    std::lock_guard lock(mutex_);
    what();
    changed_.notify_all();
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool held_ = false;
  int num_calls_ = 0;
  int num_failures_ = 0;
  grpc::StatusCode failure_ = grpc::StatusCode::OK;
  int64_t num_rejected_ = 0;
  collector::ExportTraceServiceRequest last_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

class OtlpExporterTest : public ::testing::Test {
 protected:
  OtlpConfig Config() const {
    return {.target = {.address = collector_.address()}, .role = "decode", .worker_id = "decode-0"};
  }
  static std::vector<Span> Spans(size_t num_spans) {
    std::vector<Span> spans(num_spans);
    for (size_t i = 0; i < num_spans; ++i) {
      spans[i].context = {.trace_hi = 1, .trace_lo = 2, .span_id = i + 1, .sampled = true};
      spans[i].name = fmt::format("span {}", i);
    }
    return spans;
  }
  uint64_t Exported() const { return metrics_.exported_total->value(); }
  uint64_t Lost(SpanLoss why) const {
    return metrics_.dropped_total[static_cast<size_t>(why)]->value();
  }

  FakeCollector collector_;
  MetricsRegistry registry_;
  SpanMetrics metrics_ = RegisterSpanMetrics(&registry_);
};

TEST_F(OtlpExporterTest, ASpanArrivesWithAllThatItSays) {
  Span span;
  span.context = {.trace_hi = 0x0102030405060708, .trace_lo = 9, .span_id = 10, .sampled = true};
  span.parent_id = 11;
  span.name = "chat m";
  span.kind = SpanKind::kServer;
  const int64_t steady_us = SystemClock().NowUs();
  span.start_us = steady_us - 3'000'000;
  span.end_us = steady_us - 1'000'000;
  span.error = "status 503";
  span.attributes = {{"a", int64_t{-7}}, {"b", 0.5}, {"c", true}, {"d", std::string("text")}};
  OtlpExporter exporter(Config(), metrics_);
  exporter.Add({span});
  exporter.Stop();
  const collector::ExportTraceServiceRequest request = collector_.last();
  ASSERT_EQ(request.resource_spans_size(), 1);
  const auto& resource = request.resource_spans(0).resource();
  EXPECT_EQ(resource.attributes(0).value().string_value(), "baton-decode");
  EXPECT_EQ(resource.attributes(3).value().string_value(), "decode-0");
  ASSERT_EQ(request.resource_spans(0).scope_spans(0).spans_size(), 1);
  const otel::Span& got = request.resource_spans(0).scope_spans(0).spans(0);
  EXPECT_EQ(got.trace_id(), std::string("\1\2\3\4\5\6\7\10\0\0\0\0\0\0\0\11", 16));
  EXPECT_EQ(got.span_id(), std::string("\0\0\0\0\0\0\0\12", 8));
  EXPECT_EQ(got.parent_span_id(), std::string("\0\0\0\0\0\0\0\13", 8));
  EXPECT_EQ(got.name(), "chat m");
  EXPECT_EQ(got.kind(), otel::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(got.end_time_unix_nano() - got.start_time_unix_nano(), 2'000'000'000u);
  const auto wall_ns = static_cast<double>(SystemClock().WallUnixUs()) * 1e3;
  EXPECT_NEAR(static_cast<double>(got.end_time_unix_nano()), wall_ns - 1e9, 60e9);
  EXPECT_EQ(got.status().code(), otel::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(got.attributes(0).value().int_value(), -7);
  EXPECT_EQ(got.attributes(1).value().double_value(), 0.5);
  EXPECT_TRUE(got.attributes(2).value().bool_value());
  EXPECT_EQ(got.attributes(3).value().string_value(), "text");
  EXPECT_EQ(Exported(), 1u);
}

TEST_F(OtlpExporterTest, AttributesOfTheEnvironmentReplaceTheDefaults) {
  OtlpConfig config = Config();
  config.target.resource_attributes = {{"service.namespace", "prod"},
                                       {"team", "a"},
                                       {"service.instance.id", "pod-1"},
                                       {"team", "b"}};
  OtlpExporter exporter(config, metrics_);
  exporter.Add(Spans(1));
  exporter.Stop();
  std::vector<std::pair<std::string, std::string>> attributes;
  const collector::ExportTraceServiceRequest request = collector_.last();
  for (const auto& attribute : request.resource_spans(0).resource().attributes()) {
    if (attribute.key() == "service.version") continue;
    attributes.emplace_back(attribute.key(), attribute.value().string_value());
  }
  const std::vector<std::pair<std::string, std::string>> wanted = {{"service.name", "baton-decode"},
                                                                   {"service.namespace", "prod"},
                                                                   {"service.instance.id", "pod-1"},
                                                                   {"team", "b"}};
  EXPECT_EQ(attributes, wanted);
}

TEST_F(OtlpExporterTest, AnAddNeverWaitsAndWhatHasNoRoomIsCounted) {
  OtlpConfig config = Config();
  config.max_queued = 10;
  config.max_batch = 4;
  collector_.Hold();
  OtlpExporter exporter(config, metrics_);
  exporter.Add(Spans(4));
  collector_.WaitForCalls(1);  // the thread hangs there with 4 of them
  exporter.Add(Spans(8));
  exporter.Add(Spans(5));
  EXPECT_EQ(Lost(SpanLoss::kQueueFull), 3u);
  collector_.Release();
  exporter.Stop();
  EXPECT_EQ(Exported(), 14u);
}

TEST_F(OtlpExporterTest, SpansGoTogetherOnceTheIntervalEnds) {
  OtlpConfig config = Config();
  config.interval_us = 50'000;
  OtlpExporter exporter(config, metrics_);
  exporter.Add(Spans(3));
  collector_.WaitForCalls(1);
  exporter.Stop();
  EXPECT_EQ(Exported(), 3u);
  EXPECT_LE(collector_.num_calls(), 1);
}

TEST_F(OtlpExporterTest, WhatMayBeTriedAgainIs) {
  OtlpConfig config = Config();
  config.interval_us = config.retry_us = 10'000;
  collector_.Fail(2, grpc::StatusCode::UNAVAILABLE);
  OtlpExporter exporter(config, metrics_);
  exporter.Add(Spans(2));
  collector_.WaitForCalls(3);
  exporter.Stop();
  EXPECT_EQ(Exported(), 2u);
  EXPECT_EQ(Lost(SpanLoss::kExportFailed), 0u);
}

TEST_F(OtlpExporterTest, TriesHaveAnEnd) {
  OtlpConfig config = Config();
  config.interval_us = config.retry_us = 10'000;
  config.max_tries = 2;
  collector_.Fail(2, grpc::StatusCode::UNAVAILABLE);
  OtlpExporter exporter(config, metrics_);
  exporter.Add(Spans(2));
  collector_.WaitForCalls(2);
  exporter.Stop();
  EXPECT_EQ(Lost(SpanLoss::kExportFailed), 2u);
  EXPECT_EQ(collector_.num_calls(), 2);
}

TEST_F(OtlpExporterTest, WhatIsWrongIsNotTriedAgain) {
  collector_.Fail(1, grpc::StatusCode::INVALID_ARGUMENT);
  OtlpExporter exporter(Config(), metrics_);
  exporter.Add(Spans(2));
  exporter.Stop();
  EXPECT_EQ(Lost(SpanLoss::kExportFailed), 2u);
  EXPECT_EQ(collector_.num_calls(), 1);
}

TEST_F(OtlpExporterTest, SpansThatTheCollectorDoesNotWantAreCounted) {
  collector_.Reject(3);
  OtlpExporter exporter(Config(), metrics_);
  exporter.Add(Spans(5));
  exporter.Stop();
  EXPECT_EQ(Exported(), 2u);
  EXPECT_EQ(Lost(SpanLoss::kRejected), 3u);
}

TEST_F(OtlpExporterTest, StoppingSendsAllThatWaits) {
  OtlpConfig config = Config();
  config.max_batch = 7;
  config.interval_us = 60'000'000;
  OtlpExporter exporter(config, metrics_);
  exporter.Add(Spans(6));
  exporter.Add(Spans(40));
  exporter.Stop();
  EXPECT_EQ(Exported(), 46u);
  exporter.Add(Spans(1));
  EXPECT_EQ(Lost(SpanLoss::kQueueFull), 1u) << "nobody would send it any more";
}

TEST_F(OtlpExporterTest, StoppingWaitsForNoCollectorBeyondItsLimit) {
  collector_.Hold();
  OtlpExporter exporter(Config(), metrics_);
  exporter.Add(Spans(600));
  collector_.WaitForCalls(1);
  const int64_t start_us = SystemClock().NowUs();
  exporter.Stop(200'000);
  // The call under way has its own limit of 2 s.
  EXPECT_LT(SystemClock().NowUs() - start_us, 20'000'000);
  EXPECT_EQ(Exported(), 0u);
  EXPECT_EQ(Lost(SpanLoss::kExportFailed), 600u);
}

}  // namespace
}  // namespace baton::otlp
