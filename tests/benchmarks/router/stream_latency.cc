// Measures the time that a router adds to a token: from the moment at which a worker hands it to
// gRPC until it has arrived at the client's machine, with many streams at a fixed pace.
//
//   router_stream_latency         prints a table; about a minute
//   router_stream_latency --workers-of=HOST:PORT --streams=N --departures=FILE
//                                 only the toy workers, of the router with that gRPC address, until
//                                 the standard input ends; then FILE has when each token left:
//                                 [N][300] int64 of microseconds since 1970, 0 = never. Stream i
//                                 asks with the token ids {i % 200, i / 200}. It serves
//                                 benchmarks/serve/routers.py
//
// It stands here because its workers are those of the tests.
//
// Router, toy workers and client are one process, joined by real sockets. A worker steps
// kNumPhases times a period and gives each stream a token in one of these steps, so that a step
// message holds kNumStreams / kNumWorkers / kNumPhases tokens. Arrival is the kernel's stamp over
// HTTP; over gRPC it is the moment at which the library hands the token out.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "fmt/format.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"

#include "baton/v1/worker.grpc.pb.h"
#include "src/api/router_process.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/loadgen/grpc_streams.h"
#include "src/loadgen/http_streams.h"
#include "src/rpc/local_stream.h"
#include "tests/api/toy_hello.h"
#include "tests/http/raw_client.h"

namespace baton::router {

using http::RawClient;
using namespace api;      // NOLINT(google-build-using-namespace)
using namespace loadgen;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint32_t kNumStreams = 1000;
constexpr uint32_t kNumWorkers = 4;
constexpr uint32_t kNumPhases = 25;
constexpr int64_t kPeriodUs = 50'000;  // 20 tokens a second and stream
constexpr uint32_t kNumTokens = 300;
// Streams start one after the other; tokens count while all of them run.
constexpr int64_t kStartGapUs = 3'000;
constexpr int64_t kWarmUpUs = 1'000'000;
constexpr int64_t kCountUs = 8'000'000;
constexpr uint32_t kIdBase = 200;
constexpr uint32_t kMaxStreams = 10'000;

// When each token left its worker, by stream and index; written by workers, read by the client.
using Departures = std::vector<std::vector<std::atomic<int64_t>>>;

// A decode worker that computes nothing and steps by the clock.
class PacedWorker final : public v1::WorkerService::Service {
 public:
  PacedWorker(std::string id, Departures* departures)
      : id_(std::move(id)), departures_(departures) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = fmt::format("127.0.0.1:{}", port);
  }
  ~PacedWorker() override {
    stopped_ = true;
    lease_context_.TryCancel();
    beat_.join();
    pace_.join();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  void Register(const std::string& router) {
    stub_ = v1::RouterRegistry::NewStub(
        grpc::CreateChannel(router, grpc::InsecureChannelCredentials()));
    lease_ = stub_->Register(&lease_context_);
    v1::WorkerReport report;
    v1::WorkerHello* const hello = report.mutable_hello();
    FillToyHello({id_, v1::WORKER_ROLE_DECODE, address_, "weights", "", {}}, hello);
    hello->set_num_blocks(1 << 20);
    hello->set_max_running(4096);
    BATON_CHECK(lease_->Write(report), "the router takes no hello");
    beat_ = std::thread([this] { Beat(); });
    pace_ = std::thread([this] { Pace(); });
  }

  grpc::Status Session(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::WorkerMessage, v1::RouterMessage>* stream) override {
    v1::RouterMessage order;
    while (stream->Read(&order)) {
      std::lock_guard lock(mutex_);
      stream_ = stream;
      if (order.has_hello()) {
        local_.reset();
        auto local = rpc::LocalWriter::Connect(order.hello().local_stream());
        if (local.ok()) local_ = *std::move(local);
        v1::WorkerMessage hello;
        *hello.mutable_hello() = order.hello();
        Send(hello);
      } else if (order.has_start_decode()) {
        Begin(order.start_decode().spec());
      }
    }
    std::lock_guard lock(mutex_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }

 private:
  // One request that it answers.
  struct Running {
    v1::RequestSpec spec;
    uint32_t number = 0;
    uint32_t next = 0;
  };

  // As a worker of the product does; mutex_ is held.
  void Send(const v1::WorkerMessage& message) {
    if (!local_.has_value()) {
      stream_->Write(message);
      return;
    }
    auto outcome = local_->Send(message);
    while (outcome == rpc::LocalWriter::Outcome::kFull) {
      pollfd room{.fd = local_->fd(), .events = POLLOUT, .revents = 0};
      ::poll(&room, 1, -1);
      outcome = local_->Flush();
    }
  }

  // mutex_ is held.
  void Begin(const v1::RequestSpec& spec) {
    for (const v1::RequestState state :
         {v1::REQUEST_STATE_RESERVED, v1::REQUEST_STATE_PREFILL_STARTED,
          v1::REQUEST_STATE_DECODE_STARTED}) {
      v1::WorkerMessage message;
      FillToyStatus(spec, state, message.mutable_status());
      Send(message);
    }
    const uint32_t number = spec.tokens(0) + kIdBase * spec.tokens(1);
    BATON_CHECK(number < departures_->size(), "stream {} of {}", number, departures_->size());
    phases_[num_begun_++ % kNumPhases].push_back({spec, number, 0});
  }

  void Pace() {
    int64_t due_us = SystemClock().NowUs();
    for (uint32_t phase = 0; !stopped_; phase = (phase + 1) % kNumPhases) {
      due_us += kPeriodUs / kNumPhases;
      const int64_t left_us = due_us - SystemClock().NowUs();
      if (left_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(left_us));
      std::lock_guard lock(mutex_);
      if (stream_ != nullptr) Step(&phases_[phase]);
    }
  }

  // mutex_ is held.
  void Step(std::vector<Running>* running) {
    v1::WorkerMessage message;
    for (Running& request : *running) {
      const char letter = static_cast<char>('a' + request.next % 26);
      FillToyToken(request.spec, request.next, letter, false, message.mutable_step()->add_events());
    }
    if (running->empty()) return;
    const int64_t now_us = SystemClock().NowUs();
    for (Running& request : *running) {
      (*departures_)[request.number][request.next++].store(now_us, std::memory_order_release);
    }
    Send(message);
    for (const Running& request : *running) {
      if (request.next < request.spec.sampling().max_tokens()) continue;
      v1::WorkerMessage end;
      FillToyStatus(request.spec, v1::REQUEST_STATE_FINISHED, end.mutable_status());
      Send(end);
    }
    std::erase_if(*running, [](const Running& request) {
      return request.next >= request.spec.sampling().max_tokens();
    });
  }

  void Beat() {
    for (uint64_t number = 1; !stopped_; ++number) {
      v1::WorkerReport report;
      FillToyLoad(number, "", report.mutable_load());
      report.mutable_load()->mutable_blocks()->set_total(1 << 20);
      report.mutable_load()->mutable_blocks()->set_free(1 << 20);
      if (!lease_->Write(report)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  const std::string id_;
  Departures* const departures_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::RouterRegistry::Stub> stub_;
  grpc::ClientContext lease_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerReport, v1::RouterDirective>> lease_;
  std::atomic<bool> stopped_{false};
  std::thread beat_;
  std::thread pace_;

  std::mutex mutex_;  // guards what follows
  grpc::ServerReaderWriter<v1::WorkerMessage, v1::RouterMessage>* stream_ = nullptr;
  std::optional<rpc::LocalWriter> local_;  // to a router of this host that takes it
  std::vector<Running> phases_[kNumPhases];
  uint32_t num_begun_ = 0;
};

// Compares arrivals with departures.
class LatencySink final : public StreamSink {
 public:
  LatencySink(const Departures* departures, int64_t from_us, int64_t to_us)
      : departures_(departures), from_us_(from_us), to_us_(to_us), num_seen_(kNumStreams) {}

  void OnSent(uint64_t /*id*/, int64_t /*at_us*/) override {}
  void OnText(uint64_t id, int64_t at_us, std::string_view text) override {
    for (size_t i = 0; i < text.size(); ++i) {
      const int64_t left_us = (*departures_)[id][num_seen_[id]++].load(std::memory_order_acquire);
      if (left_us >= from_us_ && left_us < to_us_) samples_us.push_back(at_us - left_us);
    }
  }
  void OnLag(int64_t /*lag_us*/) override {}
  void OnEnd(uint64_t id, StreamEnd end) override {
    ++num_ended;
    const bool is_whole = end.outcome == RequestOutcome::kOk && num_seen_[id] == kNumTokens;
    BATON_CHECK(is_whole, "stream {} ended after {} tokens: {}", id, num_seen_[id], end.error);
  }

  std::vector<int64_t> samples_us;
  uint32_t num_ended = 0;

 private:
  const Departures* const departures_;
  const int64_t from_us_;
  const int64_t to_us_;
  std::vector<uint32_t> num_seen_;
};

void Print(std::string_view api, std::vector<int64_t>* samples_us) {
  std::sort(samples_us->begin(), samples_us->end());
  const auto at = [&](double share) {
    return (*samples_us)[static_cast<size_t>(share * static_cast<double>(samples_us->size() - 1))];
  };
  fmt::print("{:<5} {:>8} tokens   p50 {:>6} us   p90 {:>6} us   p99 {:>6} us   p99.9 {:>6} us\n",
             api, samples_us->size(), at(0.5), at(0.9), at(0.99), at(0.999));
}

std::unique_ptr<StreamBackend> Connect(bool is_http, const RouterProcess& router) {
  const std::string address = is_http ? router.http_address() : router.grpc_address();
  HttpTarget target;
  target.host = "127.0.0.1";
  target.port = address.substr(address.rfind(':') + 1);
  if (is_http) return HttpStreams::Create(target).value();
  return GrpcStreams::Create(target).value();
}

// Workers that have registered and have their session.
size_t NumReadyWorkers(const RouterProcess& router) {
  const std::string address = router.http_address();
  RawClient client(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  client.Send("GET /v1/topology HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string answer = client.ReceiveAll();
  const size_t body = answer.find("\r\n\r\n");
  BATON_CHECK(body != std::string::npos, "no topology: {}", answer);
  const auto topology = nlohmann::json::parse(answer.substr(body + 4), nullptr, false);
  BATON_CHECK(topology.contains("processes"), "no topology: {}", answer);
  size_t num_ready = 0;
  for (const auto& row : topology["processes"]) {
    if (row["role"] == "decode" && row["ready"] == true) ++num_ready;
  }
  return num_ready;
}

Departures NoDepartures(uint32_t num_streams) {
  Departures departures(num_streams);
  for (auto& stream : departures) stream = std::vector<std::atomic<int64_t>>(kNumTokens);
  return departures;
}

std::vector<std::unique_ptr<PacedWorker>> StartWorkers(const std::string& router,
                                                       Departures* departures) {
  std::vector<std::unique_ptr<PacedWorker>> workers;
  for (uint32_t i = 0; i < kNumWorkers; ++i) {
    workers.push_back(std::make_unique<PacedWorker>(fmt::format("decode-{}", i), departures));
    workers.back()->Register(router);
  }
  return workers;
}

void Run(bool is_http) {
  Departures departures = NoDepartures(kNumStreams);
  RouterConfig config;
  config.grpc_address = config.http_address = config.admin_address = "127.0.0.1:0";
  config.core.mode = ServeMode::kAggregated;
  const auto router = RouterProcess::Start(config).value();
  const auto workers = StartWorkers(router->grpc_address(), &departures);
  while (NumReadyWorkers(*router) < kNumWorkers) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  const std::unique_ptr<StreamBackend> backend = Connect(is_http, *router);
  const int64_t begin_us = SystemClock().NowUs();
  const int64_t from_us = begin_us + kNumStreams * kStartGapUs + kWarmUpUs;
  LatencySink sink(&departures, from_us, from_us + kCountUs);
  for (uint32_t i = 0; i < kNumStreams; ++i) {
    StreamRequest request;
    request.api = StreamApi::kCompletions;
    request.token_ids = {i % kIdBase, i / kIdBase};
    request.max_tokens = kNumTokens;
    backend->Start(i, backend->Encode(fmt::format("stream-{}", i), request), sink);
    const int64_t next_us = begin_us + (i + 1) * kStartGapUs;
    while (SystemClock().NowUs() < next_us) backend->Poll(next_us, sink);
  }
  while (sink.num_ended < kNumStreams) backend->Poll(SystemClock().NowUs() + 100'000, sink);
  Print(is_http ? "http" : "grpc", &sink.samples_us);
  router->Stop();
}

// The values of the command line.
struct Options {
  std::string workers_of;  // "" = everything in this process
  std::string departures;
  uint32_t num_streams = 0;
};

// Its workers live until the standard input ends.
int RunWorkers(const Options& options) {
  std::FILE* const file = std::fopen(options.departures.c_str(), "wb");
  if (file == nullptr) {
    fmt::print(stderr, "--departures={}: cannot be written\n", options.departures);
    return 1;
  }
  Departures departures = NoDepartures(options.num_streams);
  {
    const auto workers = StartWorkers(options.workers_of, &departures);
    while (std::getchar() != EOF) {
    }
  }
  const int64_t offset_us = SystemClock().WallUnixUs() - SystemClock().NowUs();
  std::vector<int64_t> left_us;
  for (const auto& stream : departures) {
    for (const auto& at_us : stream) left_us.push_back(at_us == 0 ? 0 : at_us + offset_us);
  }
  const size_t num_written = std::fwrite(left_us.data(), sizeof(int64_t), left_us.size(), file);
  return std::fclose(file) == 0 && num_written == left_us.size() ? 0 : 1;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view name = argument.substr(0, equals);
    const std::string_view value = argument.substr(equals + 1);
    if (name == "--workers-of") {
      options->workers_of = value;
    } else if (name == "--departures") {
      options->departures = value;
    } else if (name == "--streams") {
      const auto read = std::from_chars(value.begin(), value.end(), options->num_streams);
      if (read.ec != std::errc() || read.ptr != value.end()) return false;
    } else {
      return false;
    }
  }
  return argc == 1 || (!options->workers_of.empty() && !options->departures.empty() &&
                       options->num_streams >= 1 && options->num_streams <= kMaxStreams);
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    fmt::print(stderr,
               "usage: router_stream_latency [--workers-of=HOST:PORT --streams=1..{} "
               "--departures=FILE]\n",
               kMaxStreams);
    return 2;
  }
  if (!options.workers_of.empty()) return RunWorkers(options);
  fmt::print("{} streams of {} tokens a second through one router, {} workers\n", kNumStreams,
             1'000'000 / kPeriodUs, kNumWorkers);
  for (const bool is_http : {true, false}) Run(is_http);
  return 0;
}

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) {
  const baton::Status status = baton::InitLog({.level = baton::LogLevel::kError});
  BATON_CHECK(status.ok(), "{}", status.ToString());
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as the product's main
  return baton::router::Main(argc, argv);
}
