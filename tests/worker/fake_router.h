// A router's registry over real gRPC that does what a test tells it: takes hellos and reports,
// accepts or refuses, sends directives, hangs up, dies and comes back on the same port. Any thread.
#ifndef BATON_TESTS_WORKER_FAKE_ROUTER_H_
#define BATON_TESTS_WORKER_FAKE_ROUTER_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/clock.h"
#include "src/base/keepalive.h"
#include "src/base/limits.h"
#include "src/rpc/cluster_channel.h"
#include "src/rpc/credentials.h"

namespace baton::worker {

// See the file comment.
class FakeRouter final : public v1::RouterRegistry::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::RouterDirective, v1::WorkerReport>;

  explicit FakeRouter(const tls::TlsFiles& tls = {}) : tls_(tls) { StartServer(0); }
  ~FakeRouter() override { Die(); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // The next hellos are answered with `why`; "" accepts.
  void Refuse(std::string why) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(why);
  }
  // True: a stream is ended right after its answer.
  void HangUp(bool after_answer) {
    std::lock_guard lock(mutex_);
    hang_up_ = after_answer;
  }
  // False: hellos are not answered at all, and the stream ends.
  void Answer(bool answer) {
    std::lock_guard lock(mutex_);
    answer_ = answer;
  }
  // True: nothing of a new stream is read, as on a way that is far too slow.
  void Hold(bool hold) {
    std::lock_guard lock(mutex_);
    held_ = hold;
    changed_.notify_all();
  }
  void SetHeartbeat(uint32_t ms) {
    std::lock_guard lock(mutex_);
    heartbeat_ms_ = ms;
  }
  // To every stream that lives.
  void Send(const v1::RouterDirective& directive) {
    std::lock_guard lock(mutex_);
    for (const auto& [stream, worker_id] : streams_) stream->Write(directive);
  }
  // To that of one worker, if it lives.
  void SendTo(std::string_view to, const v1::RouterDirective& directive) {
    std::lock_guard lock(mutex_);
    for (const auto& [stream, worker_id] : streams_) {
      if (worker_id == to) stream->Write(directive);
    }
  }

  // The process is gone; its port is free.
  void Die() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void ComeBack() { StartServer(port_); }

  bool Wait(const std::function<bool(const FakeRouter&)>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return condition(*this); });
  }
  size_t num_hellos() {
    std::lock_guard lock(mutex_);
    return hello_us.size();
  }

  grpc::Status Register(grpc::ServerContext* /*context*/, Stream* stream) override {
    v1::WorkerReport report;
    std::string worker_id;
    {
      std::unique_lock lock(mutex_);
      ++num_begun;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !held_; });
    }
    while (stream->Read(&report)) {
      std::unique_lock lock(mutex_);
      if (report.has_prefix()) {
        prefixes.push_back(report.prefix());
        changed_.notify_all();
        continue;
      }
      if (!report.has_hello()) {
        loads.push_back(report.load());
        if (report.load().draining()) leaving.insert(worker_id);
        load_us.push_back(SystemClock().NowUs());
        changed_.notify_all();
        continue;
      }
      worker_id = report.hello().worker().worker_id();
      last_hello = report.hello();
      hellos.push_back(report.hello());
      hello_us.push_back(SystemClock().NowUs());
      changed_.notify_all();
      if (!answer_) break;
      v1::RouterDirective ack;
      ack.mutable_ack()->set_heartbeat_ms(heartbeat_ms_);
      ack.mutable_ack()->set_refusal(refusal_);
      stream->Write(ack);
      if (hang_up_ || !refusal_.empty()) break;
      streams_.emplace_back(stream, worker_id);
    }
    std::lock_guard lock(mutex_);
    if (num_ends++ == 0) leaving_at_first_end = leaving;
    std::erase_if(streams_, [stream](const auto& row) { return row.first == stream; });
    changed_.notify_all();
    return grpc::Status::OK;
  }

  // Guarded by the mutex: read them inside Wait, or when no worker is connected.
  v1::WorkerHello last_hello;
  std::vector<v1::WorkerHello> hellos;
  std::vector<int64_t> hello_us;
  std::vector<v1::WorkerLoad> loads;
  std::vector<v1::PrefixEvents> prefixes;
  std::vector<int64_t> load_us;
  size_t num_begun = 0;                        // streams
  size_t num_ends = 0;                         // of streams
  std::set<std::string> leaving;               // workers that said so
  std::set<std::string> leaving_at_first_end;  // of them when the first stream ended
  size_t num_streams() const { return streams_.size(); }

 private:
  void StartServer(int port) {
    grpc::ServerBuilder builder;
    int bound = 0;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port),
                             rpc::MakeServerCredentials(tls_, rpc::ClientCertificate::kRequired),
                             &bound);
    builder.SetMaxReceiveMessageSize(limits::kMaxClusterMessageBytes);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    port_ = bound;
  }

  const tls::TlsFiles tls_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;  // guards what follows and the public members
  std::condition_variable changed_;
  std::vector<std::pair<Stream*, std::string>> streams_;  // of which worker
  std::string refusal_;
  bool hang_up_ = false;
  bool answer_ = true;
  bool held_ = false;
  uint32_t heartbeat_ms_ = 250;
};

}  // namespace baton::worker

#endif  // BATON_TESTS_WORKER_FAKE_ROUTER_H_
