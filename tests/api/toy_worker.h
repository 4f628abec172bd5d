// A worker over real gRPC that computes nothing: token i of every choice is the letter 'a' + i
// % 26, or byte i of a script, whose last one is a stop token. It registers with a router, answers
// sessions, and can be told to misbehave.
#ifndef BATON_TESTS_API_TOY_WORKER_H_
#define BATON_TESTS_API_TOY_WORKER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/keepalive.h"
#include "src/rpc/credentials.h"
#include "tests/api/toy_hello.h"

namespace baton::api {

// See the file comment.
class ToyWorker final : public v1::WorkerService::Service {
 public:
  // Its way with a request.
  enum class Mood { kServe, kSilent, kReject, kFailAfterTwo, kEndless };

  ToyWorker(std::string id, v1::WorkerRole role, const tls::TlsFiles& tls = {})
      : id_(std::move(id)), role_(role), tls_(tls) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddListeningPort(
        "127.0.0.1:0", rpc::MakeServerCredentials(tls_, rpc::ClientCertificate::kRequired), &port);
    builder.SetMaxReceiveMessageSize(32 << 20);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~ToyWorker() override { Stop(); }

  // Registers and sends heartbeats until Stop. `link_to`: the decode worker that a prefill worker
  // is connected to.
  void Register(const std::string& router, const std::string& link_to = "") {
    link_to_ = link_to;
    auto channel = grpc::CreateChannel(router, rpc::MakeChannelCredentials(tls_));
    stub_ = v1::RouterRegistry::NewStub(channel);
    lease_ = stub_->Register(&lease_context_);
    v1::WorkerReport hello;
    FillToyHello({id_, role_, address_, weights, chat_template, wire, model},
                 hello.mutable_hello());
    WriteReport(hello);
    v1::RouterDirective ack;
    if (lease_->Read(&ack)) refusal = ack.ack().refusal();
    if (!refusal.empty()) return;
    reader_ = std::thread([this] {
      v1::RouterDirective directive;
      while (lease_->Read(&directive)) {
        if (directive.has_peers()) num_peer_lists.fetch_add(1);
        if (directive.has_resync()) num_resyncs_asked.fetch_add(1);
      }
    });
    beat_ = std::thread([this] { Beat(); });
  }

  bool SendPrefix(uint64_t first, bool reset, size_t num_links) {
    v1::WorkerReport report;
    report.mutable_prefix()->set_first_sequence(first);
    report.mutable_prefix()->set_reset(reset);
    report.mutable_prefix()->set_links(std::string(16 * num_links, 'x'));
    return WriteReport(report);
  }

  // As a process that dies: no goodbye.
  void Stop() {
    if (stopped_.exchange(true)) return;
    lease_context_.TryCancel();
    if (beat_.joinable()) beat_.join();
    if (reader_.joinable()) reader_.join();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Session(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::WorkerMessage, v1::RouterMessage>* stream) override {
    v1::RouterMessage order;
    while (stream->Read(&order)) {
      if (order.has_hello()) {
        session_version = order.hello().wire_version();
        v1::WorkerMessage hello;
        *hello.mutable_hello() = order.hello();
        Write(hello, stream);
        if (wire.is_newer) Write({}, stream);  // of a kind that the router does not know
      } else if (order.has_cancel()) {
        std::lock_guard lock(mutex_);
        ++num_cancels_;
        changed_.notify_all();
      } else if (order.has_start_decode()) {
        CountStart();
        Decode(order.start_decode(), stream);
      } else if (order.has_start_prefill()) {
        CountStart();
        Prefill(order.start_prefill(), stream);
      }
    }
    return grpc::Status::OK;
  }

  bool WaitCancels(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return num_cancels_ >= count; });
  }

  // Requests that it was ever told to start.
  bool WaitStarts(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return num_starts_ >= count; });
  }

  std::atomic<Mood> mood{Mood::kServe};
  std::atomic<uint32_t> waits_before{UINT32_MAX};  // this token, until it is another
  std::atomic<bool> reserves{true};                // false: a reservation waits until it is true
  // Set before Register.
  std::string weights = "weights-a";
  std::string chat_template;
  std::string model = "toy";
  std::string script;
  ToyWire wire;
  std::string refusal;
  std::atomic<uint32_t> session_version{0};  // that the router chose
  std::atomic<int> num_peer_lists{0};
  std::atomic<int> num_resyncs_asked{0};

 private:
  using Stream = grpc::ServerReaderWriter<v1::WorkerMessage, v1::RouterMessage>;

  bool WriteReport(v1::WorkerReport report) {
    if (wire.is_newer) AddUnknownFields(&report);
    std::lock_guard lock(lease_mutex_);
    return lease_->Write(report);
  }

  void Write(v1::WorkerMessage message, Stream* stream) const {
    if (wire.is_newer) AddUnknownFields(&message);
    stream->Write(message);
  }

  void CountStart() {
    std::lock_guard lock(mutex_);
    ++num_starts_;
    changed_.notify_all();
  }

  void Beat() {
    uint64_t number = 0;
    if (wire.is_newer) WriteReport({});  // of a kind that the router does not know
    while (!stopped_) {
      v1::WorkerReport report;
      FillToyLoad(++number, link_to_, report.mutable_load());
      if (!WriteReport(report)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void WriteState(const v1::RequestSpec& spec, v1::RequestState state, Stream* stream) const {
    v1::WorkerMessage message;
    FillToyStatus(spec, state, message.mutable_status());
    Write(message, stream);
  }

  // One step: token `index` of every choice.
  void WriteStep(const v1::RequestSpec& spec, uint32_t index, Stream* stream) const {
    v1::WorkerMessage message;
    for (uint32_t choice = 0; choice < spec.n(); ++choice) {
      v1::TokenEvent* event = message.mutable_step()->add_events();
      const char letter = script.empty() ? static_cast<char>('a' + index % 26) : script.at(index);
      FillToyToken(spec, index, letter, index + 1 == script.size(), event);
      event->set_choice(choice);
      const bool ends = event->finish() != v1::WORKER_FINISH_UNSPECIFIED;
      if (wire.is_newer && ends) event->set_finish(static_cast<v1::WorkerFinish>(kUnknownValue));
    }
    Write(message, stream);
  }

  void Decode(const v1::StartDecode& order, Stream* stream) {
    const v1::RequestSpec& spec = order.spec();
    if (mood == Mood::kSilent) {
      WriteState(spec, v1::REQUEST_STATE_RESERVED, stream);
      return;
    }
    if (mood == Mood::kReject) return WriteState(spec, v1::REQUEST_STATE_REJECTED, stream);
    while (!reserves && !stopped_) Nap();
    WriteState(spec, v1::REQUEST_STATE_RESERVED, stream);
    if (wire.is_newer) WriteState(spec, static_cast<v1::RequestState>(kUnknownValue), stream);
    WriteState(spec, order.local() ? v1::REQUEST_STATE_PREFILL_STARTED : v1::REQUEST_STATE_VERIFIED,
               stream);
    WriteState(spec, v1::REQUEST_STATE_DECODE_STARTED, stream);
    uint32_t last = spec.sampling().max_tokens();
    if (!script.empty()) last = std::min(last, static_cast<uint32_t>(script.size()));
    const uint32_t count = mood == Mood::kServe ? last : std::min(last, 2u);
    for (uint32_t i = 0; i < count; ++i) {
      while (i == waits_before && !stopped_) Nap();
      WriteStep(spec, i, stream);
      if (i == 1) WriteState(spec, v1::REQUEST_STATE_FIRST_STEP_DONE, stream);
    }
    if (mood == Mood::kFailAfterTwo) return WriteState(spec, v1::REQUEST_STATE_FAILED, stream);
    if (mood == Mood::kServe) WriteState(spec, v1::REQUEST_STATE_FINISHED, stream);
  }

  void Prefill(const v1::StartPrefill& order, Stream* stream) {
    if (mood == Mood::kSilent) return;
    WriteState(order.spec(), v1::REQUEST_STATE_PREFILL_STARTED, stream);
    if (order.spec().reports_progress()) Write(ToyProgress(order.spec()), stream);
    WriteStep(order.spec(), 0, stream);
    WriteState(order.spec(), v1::REQUEST_STATE_PREFILL_DONE, stream);
    WriteState(order.spec(), v1::REQUEST_STATE_GRANTED, stream);
    WriteState(order.spec(), v1::REQUEST_STATE_HANDED_OFF, stream);
  }

  const std::string id_;
  const v1::WorkerRole role_;
  const tls::TlsFiles tls_;
  std::string address_;
  std::string link_to_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::RouterRegistry::Stub> stub_;
  grpc::ClientContext lease_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerReport, v1::RouterDirective>> lease_;
  std::mutex lease_mutex_;  // held while writing
  std::thread reader_;
  std::thread beat_;
  std::atomic<bool> stopped_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int num_cancels_ = 0;
  int num_starts_ = 0;
};

}  // namespace baton::api

#endif  // BATON_TESTS_API_TOY_WORKER_H_
