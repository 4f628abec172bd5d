#include "src/otlp/otlp_exporter.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <variant>

#include "grpcpp/create_channel.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/version.h"

namespace baton::otlp {

using obs::Span;
using obs::SpanAttribute;
using obs::SpanKind;
using obs::SpanLoss;
using obs::SpanMetrics;

namespace {

namespace collector = opentelemetry::proto::collector::trace::v1;
namespace common = opentelemetry::proto::common::v1;
namespace otel = opentelemetry::proto::trace::v1;

using std::chrono::microseconds;

constexpr int kMaxReconnectMs = 2000;

using Attributes = std::vector<std::pair<std::string, std::string>>;

void Set(std::string_view key, const std::string& value, common::KeyValue* out) {
  out->set_key(std::string(key));
  out->mutable_value()->set_string_value(value);
}

void Encode(const SpanAttribute& attribute, common::KeyValue* out) {
  out->set_key(std::string(attribute.key));
  common::AnyValue* const value = out->mutable_value();
  if (const auto* number = std::get_if<int64_t>(&attribute.value)) value->set_int_value(*number);
  if (const auto* real = std::get_if<double>(&attribute.value)) value->set_double_value(*real);
  if (const auto* truth = std::get_if<bool>(&attribute.value)) value->set_bool_value(*truth);
  if (const auto* text = std::get_if<std::string>(&attribute.value)) value->set_string_value(*text);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute.value)) {
    common::ArrayValue* const array = value->mutable_array_value();
    for (const std::string& text : *texts) array->add_values()->set_string_value(text);
  }
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const OtlpTarget& target) {
  if (!target.is_tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = target.ca_pem;
  options.pem_cert_chain = target.client_cert_pem;
  options.pem_private_key = target.client_key_pem;
  return grpc::SslCredentials(options);
}

// `wall_less_steady_us`: what makes a time of the steady clock one since 1970.
void Encode(const Span& span, int64_t wall_less_steady_us, otel::Span* out) {
  out->set_trace_id(TraceIdBytes(span.context));
  out->set_span_id(SpanIdBytes(span.context.span_id));
  if (span.parent_id != 0) out->set_parent_span_id(SpanIdBytes(span.parent_id));
  out->set_name(span.name);
  out->set_kind(span.kind == SpanKind::kServer ? otel::Span::SPAN_KIND_SERVER
                                               : otel::Span::SPAN_KIND_INTERNAL);
  const auto nanoseconds = [&](int64_t us) {
    return static_cast<uint64_t>(us + wall_less_steady_us) * 1000;
  };
  out->set_start_time_unix_nano(nanoseconds(span.start_us));
  out->set_end_time_unix_nano(nanoseconds(span.end_us));
  for (const SpanAttribute& attribute : span.attributes) Encode(attribute, out->add_attributes());
  if (span.error.empty()) return;
  out->mutable_status()->set_code(otel::Status::STATUS_CODE_ERROR);
  out->mutable_status()->set_message(span.error);
}

// The resource that spans are of: our defaults, and the environment's attributes in their place or
// after them. Keys are unique, as OTLP demands.
Attributes ResourceAttributes(const OtlpConfig& config) {
  const OtlpTarget& target = config.target;
  const bool is_named = !target.service_name.empty();
  Attributes attributes = {
      {"service.name", is_named ? target.service_name : "baton-" + config.role},
      {"service.namespace", "baton"},
      {"service.version", std::string(kVersion)},
      {"service.instance.id", config.worker_id},
  };
  for (const auto& [key, value] : target.resource_attributes) {
    const auto same = std::ranges::find(attributes, key, &Attributes::value_type::first);
    if (same == attributes.end()) {
      attributes.emplace_back(key, value);
    } else {
      same->second = value;
    }
  }
  return attributes;
}

// The specification's list of failures after which the same may be sent again.
bool MayBeTriedAgain(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

}  // namespace

class OtlpExporter::Wire {
 public:
  // gRPC's own back-off would hide a collector that has come back for up to two minutes.
  static grpc::ChannelArguments ChannelArguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    return arguments;
  }

  explicit Wire(const OtlpConfig& config)
      : target_(config.target),
        stub_(collector::TraceService::NewStub(grpc::CreateCustomChannel(
            target_.address, CredentialsFor(target_), ChannelArguments()))) {
    resource_ = request_.add_resource_spans();
    for (const auto& [key, value] : ResourceAttributes(config)) {
      Set(key, value, resource_->mutable_resource()->add_attributes());
    }
    scope_ = resource_->add_scope_spans();
    scope_->mutable_scope()->set_name("baton");
    scope_->mutable_scope()->set_version(std::string(kVersion));
  }

  void Fill(const std::vector<Span>& batch) {
    const int64_t wall_us = SystemClock().WallUnixUs() - SystemClock().NowUs();
    scope_->clear_spans();
    for (const Span& span : batch) Encode(span, wall_us, scope_->add_spans());
  }

  // `num_rejected`: spans that the collector did not want.
  grpc::Status Call(int64_t timeout_us, uint64_t* num_rejected) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + microseconds(timeout_us));
    for (const auto& [key, value] : target_.headers) context.AddMetadata(key, value);
    collector::ExportTraceServiceResponse answer;
    const grpc::Status status = stub_->Export(&context, request_, &answer);
    *num_rejected =
        static_cast<uint64_t>(std::max<int64_t>(0, answer.partial_success().rejected_spans()));
    return status;
  }

 private:
  const OtlpTarget target_;
  const std::unique_ptr<collector::TraceService::Stub> stub_;
  collector::ExportTraceServiceRequest request_;
  otel::ResourceSpans* resource_ = nullptr;
  otel::ScopeSpans* scope_ = nullptr;
};

OtlpExporter::OtlpExporter(OtlpConfig config, const SpanMetrics& metrics)
    : config_(std::move(config)), metrics_(metrics), wire_(std::make_unique<Wire>(config_)) {
  thread_ = Thread("otlp", [this] { Loop(); });
}

OtlpExporter::~OtlpExporter() { Stop(); }

void OtlpExporter::Add(std::vector<Span> spans) {
  size_t num_lost = 0;
  {
    MutexLock lock(mutex_);
    const size_t room = stopping_ ? 0 : config_.max_queued - queue_.size();
    const size_t num_taken = std::min(room, spans.size());
    num_lost = spans.size() - num_taken;
    const auto end = spans.begin() + static_cast<std::ptrdiff_t>(num_taken);
    queue_.insert(queue_.end(), std::make_move_iterator(spans.begin()),
                  std::make_move_iterator(end));
    // Otherwise the interval's end is soon enough.
    if (queue_.size() >= config_.max_batch) wake_.NotifyOne();
  }
  if (num_lost > 0) metrics_.CountLost(SpanLoss::kQueueFull, num_lost);
}

void OtlpExporter::Stop(int64_t timeout_us) {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(stopping_, true)) stop_by_us_ = SystemClock().NowUs() + timeout_us;
    wake_.NotifyOne();
  }
  thread_.Join();
}

void OtlpExporter::Loop() {
  std::vector<Span> batch;
  while (true) {
    batch.clear();
    {
      const auto deadline = std::chrono::steady_clock::now() + microseconds(config_.interval_us);
      MutexLock lock(mutex_);
      while (!stopping_ && queue_.size() < config_.max_batch && wake_.WaitUntil(mutex_, deadline)) {
      }
      if (stopping_ && queue_.empty()) return;
      const size_t num_taken = std::min(queue_.size(), config_.max_batch);
      const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(num_taken);
      batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
      queue_.erase(queue_.begin(), end);
    }
    if (!batch.empty()) Send(batch);
  }
}

void OtlpExporter::Send(const std::vector<Span>& batch) {
  wire_->Fill(batch);
  std::string reason = "the process ends";
  for (int tries = 1;; ++tries) {
    const int64_t timeout_us = CallTimeoutUs();
    if (timeout_us <= 0) break;
    uint64_t num_rejected = 0;
    const grpc::Status status = wire_->Call(timeout_us, &num_rejected);
    if (status.ok()) {
      num_rejected = std::min<uint64_t>(num_rejected, batch.size());
      metrics_.exported_total->Add(batch.size() - num_rejected);
      metrics_.CountLost(SpanLoss::kRejected, num_rejected);
      if (num_rejected > 0) return OnLost(num_rejected, "it rejects some of what it takes");
      return OnTaken();
    }
    reason = status.error_message();
    if (!MayBeTriedAgain(status.error_code())) break;
    if (tries >= config_.max_tries || !WaitForRetry()) break;
  }
  metrics_.CountLost(SpanLoss::kExportFailed, batch.size());
  OnLost(batch.size(), reason);
}

void OtlpExporter::OnLost(size_t num_spans, const std::string& reason) {
  if (num_lost_ == 0) {
    BATON_LOG_WARN(
        "the collector {} does not take spans, so they are lost: {} "
        "(baton_otlp_spans_dropped_total counts them; this is said once)",
        config_.target.address, reason);
  }
  num_lost_ += num_spans;
}

void OtlpExporter::OnTaken() {
  if (num_lost_ == 0) return;
  BATON_LOG_INFO("the collector {} takes spans again; {} were lost", config_.target.address,
                 num_lost_);
  num_lost_ = 0;
}

int64_t OtlpExporter::CallTimeoutUs() {
  MutexLock lock(mutex_);
  if (!stopping_) return config_.target.timeout_us;
  return std::min(config_.target.timeout_us, stop_by_us_ - SystemClock().NowUs());
}

// A process that leaves does not wait for a collector that is not there.
bool OtlpExporter::WaitForRetry() {
  const auto deadline = std::chrono::steady_clock::now() + microseconds(config_.retry_us);
  MutexLock lock(mutex_);
  while (!stopping_ && wake_.WaitUntil(mutex_, deadline)) {
  }
  return !stopping_;
}

}  // namespace baton::otlp
