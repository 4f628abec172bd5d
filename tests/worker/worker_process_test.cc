// A whole worker process around the demo model: how it starts, why it does not, and how it leaves.
#include "src/worker/worker_process.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/wire/answer_grammar.h"
#include "tests/http/raw_client.h"
#include "tests/model/test_model.h"
#include "tests/worker/fake_router.h"

namespace baton::worker {

using http::RawClient;
using model::DemoModelPath;
using model::GoldenPath;

namespace {

class WorkerProcessTest : public testing::Test {
 protected:
  WorkerConfig Config() {
    WorkerConfig config;
    config.role = WorkerRole::kDecode;
    config.worker_id = "decode-0";
    config.routers = {router_.address()};
    config.model_path = DemoModelPath();
    config.model_id = "smollm2:135m";
    config.max_context = 256;
    config.kv_memory_bytes = 64 << 20;
    config.cluster_secret = "secret";
    return config;
  }
  static Status StartError(WorkerConfig config) {
    return WorkerProcess::Start(std::move(config)).status();
  }
  static std::string Get(const std::string& address, const std::string& path) {
    RawClient client(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return client.ReceiveAll();
  }
  // The router has taken the hello, and has not called back.
  static bool IsRegistered(const std::string& admin) {
    return Get(admin, "/readyz").find("registered, but no router") != std::string::npos;
  }
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  FakeRouter router_;
};

// The session that a router opens to a worker that has registered with it.
class CalledBack {
 public:
  explicit CalledBack(const v1::WorkerHello& worker)
      : stub_(v1::WorkerService::NewStub(
            grpc::CreateChannel(worker.grpc_address(), grpc::InsecureChannelCredentials()))),
        stream_(stub_->Session(&context_)) {
    v1::RouterMessage message;
    message.mutable_hello()->set_router_incarnation(5);
    message.mutable_hello()->set_worker_incarnation(worker.worker().incarnation());
    message.mutable_hello()->set_wire_version(worker.fingerprint().wire_max());
    stream_->Write(message);
  }
  ~CalledBack() {
    context_.TryCancel();
    stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RouterMessage, v1::WorkerMessage>> stream_;
};

TEST_F(WorkerProcessTest, HelloSaysWhatItIsAndReadinessFollowsTheRouter) {
  auto worker = WorkerProcess::Start(Config());
  ASSERT_TRUE(worker.ok()) << worker.status();
  const std::string admin = (*worker)->admin_address();
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.hello_us.size() == 1; }));
  const v1::WorkerHello hello = router_.last_hello;
  // Requests come in a session that the router opens: one that only took the hello sends none.
  const std::string unreached = "no router reaches this worker at " + hello.grpc_address();
  ASSERT_TRUE(Eventually([&] { return IsRegistered(admin); }));
  EXPECT_NE(Get(admin, "/readyz").find(unreached), std::string::npos) << Get(admin, "/readyz");
  EXPECT_TRUE(Get(admin, "/readyz").starts_with("HTTP/1.1 503"));
  {
    const CalledBack session(hello);
    ASSERT_TRUE(Eventually([&] { return Get(admin, "/readyz").starts_with("HTTP/1.1 200"); }));
  }
  EXPECT_TRUE(Eventually([&] { return IsRegistered(admin); })) << "the session is gone again";
  EXPECT_EQ(hello.worker().worker_id(), "decode-0");
  EXPECT_EQ(hello.role(), v1::WORKER_ROLE_DECODE);
  EXPECT_EQ(hello.grpc_address(), (*worker)->grpc_address());
  EXPECT_EQ(hello.admin_address(), admin);
  EXPECT_EQ(hello.kv_address(), (*worker)->kv_address());
  EXPECT_EQ(hello.model(), "smollm2:135m");
  EXPECT_EQ(hello.max_context(), 256u);
  EXPECT_EQ(hello.block_size(), 16u);
  EXPECT_EQ(hello.kv_bytes_per_token(), 23'040u);  // 30 layers x 2 x 3 heads x 64 x bf16
  EXPECT_EQ(hello.num_blocks(), (64u << 20) / (16 * 23'040));
  EXPECT_EQ(hello.pid(), static_cast<uint32_t>(::getpid()));
  EXPECT_NE(hello.fingerprint().layout_text().find("layers=30"), std::string::npos);
  EXPECT_NE(hello.fingerprint().weights_id(), "");
  EXPECT_EQ(hello.grammar_version(), wire::kAnswerGrammarVersion) << "routers send it grammars";
  router_.Die();
  // Until the worker notices that the router is gone, the reason is that no session is open.
  ASSERT_TRUE(Eventually([&] {
    const std::string answer = Get(admin, "/readyz");
    return answer.starts_with("HTTP/1.1 503") && answer.find("does not answer") != answer.npos;
  })) << Get(admin, "/readyz");
  EXPECT_TRUE(Get(admin, "/livez").starts_with("HTTP/1.1 200")) << "it lives all the same";
  EXPECT_TRUE((*worker)->failure().ok());
}

TEST_F(WorkerProcessTest, IdleDrainIsCleanAndQuick) {
  auto worker = WorkerProcess::Start(Config());
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_TRUE(Eventually([&] { return IsRegistered((*worker)->admin_address()); }));
  const std::atomic<bool> stop_now{false};
  const int64_t start_us = SystemClock().NowUs();
  EXPECT_TRUE((*worker)->Drain(&stop_now).ok());
  (*worker)->Stop();
  EXPECT_LT(SystemClock().NowUs() - start_us, 30'000'000) << "the timeout is 60 s";
  EXPECT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 0; }));
  ASSERT_FALSE(router_.loads.empty());
  EXPECT_TRUE(router_.loads.back().draining()) << "the router was told before the end";
}

TEST_F(WorkerProcessTest, RefusalIsShownByTheAdminPort) {
  router_.Refuse("layout_id differs: decode-0 has a, prefill-0 has b");
  auto worker = WorkerProcess::Start(Config());
  ASSERT_TRUE(worker.ok()) << worker.status();
  const std::string admin = (*worker)->admin_address();
  EXPECT_TRUE(Eventually([&] {
    return Get(admin, "/readyz").find("layout_id differs") != std::string::npos;
  })) << Get(admin, "/readyz");
  EXPECT_TRUE((*worker)->failure().ok()) << "not given up yet";
}

// The list of peers that a router makes of a decode worker's hello; without a hello an empty one.
v1::RouterDirective PeersOf(const v1::WorkerHello* decode) {
  v1::RouterDirective directive;
  directive.mutable_peers();
  if (decode == nullptr) return directive;
  v1::Peer* const peer = directive.mutable_peers()->add_peers();
  *peer->mutable_worker() = decode->worker();
  peer->set_kv_address(decode->kv_address());
  peer->set_kv_unix(decode->kv_unix());
  peer->set_host_id(decode->host_id());
  *peer->mutable_fingerprint() = decode->fingerprint();
  *peer->mutable_transports() = decode->transports();
  return directive;
}

// A router knows no pair before it hears of the link, and a start waits for that.
TEST_F(WorkerProcessTest, ALinkThatComesIsToldAtOnce) {
  FakeRouter of_decode;
  WorkerConfig config = Config();
  config.routers = {of_decode.address()};
  const auto decode = WorkerProcess::Start(config);
  ASSERT_TRUE(decode.ok()) << decode.status();
  ASSERT_TRUE(of_decode.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  const v1::WorkerHello hello = of_decode.last_hello;
  router_.SetHeartbeat(1000);
  config.role = WorkerRole::kPrefill;
  config.worker_id = "prefill-0";
  config.routers = {router_.address()};
  const auto prefill = WorkerProcess::Start(config);
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  const auto says = [](bool is_up) {
    return [is_up](const FakeRouter& r) {
      const bool has_link = !r.loads.empty() && r.loads.back().links_size() == 1;
      return (has_link && r.loads.back().links(0).up()) == is_up;
    };
  };
  constexpr int kTimes = 5;
  std::vector<int64_t> waits_us;
  for (int i = 0; i < kTimes; ++i) {
    const int64_t start_us = SystemClock().NowUs();
    router_.SendTo("prefill-0", PeersOf(&hello));
    ASSERT_TRUE(router_.Wait(says(true)));
    waits_us.push_back(SystemClock().NowUs() - start_us);
    router_.SendTo("prefill-0", PeersOf(nullptr));
    ASSERT_TRUE(router_.Wait(says(false)));
  }
  // The median, since a busy machine may hold up one or two.
  std::ranges::nth_element(waits_us, waits_us.begin() + kTimes / 2);
  EXPECT_LT(waits_us[kTimes / 2], 300'000) << "a heartbeat is half a second away on average";
}

// A wrong flag, and the words that the one line must have.
struct BadFlag {
  const char* name;
  void (*change)(WorkerConfig* config);
  std::vector<std::string> words;
};

TEST_F(WorkerProcessTest, WrongFlagsAreNamedWithTheirValues) {
  const BadFlag cases[] = {
      {"id", [](WorkerConfig* c) { c->worker_id = "Decode 0"; }, {"--worker-id", "Decode 0"}},
      {"no id", [](WorkerConfig* c) { c->worker_id.clear(); }, {"--worker-id"}},
      {"no router", [](WorkerConfig* c) { c->routers.clear(); }, {"--router"}},
      {"model", [](WorkerConfig* c) { c->model_path = "/nowhere.gguf"; }, {"/nowhere.gguf"}},
      {"memory",
       [](WorkerConfig* c) { c->kv_memory_bytes = 1 << 20; },
       {"--kv-memory 6266880", "given are 1048576", "--max-context 16"}},
      {"admin", [](WorkerConfig* c) { c->admin = "127.0.0.1"; }, {"--admin", "'127.0.0.1'"}},
      {"admin port", [](WorkerConfig* c) { c->admin = "127.0.0.1:70000"; }, {"--admin", "70000"}},
  };
  for (const BadFlag& c : cases) {
    WorkerConfig config = Config();
    c.change(&config);
    const Status status = StartError(std::move(config));
    ASSERT_FALSE(status.ok()) << c.name;
    for (const std::string& word : c.words) {
      EXPECT_NE(status.ToString().find(word), std::string::npos) << status << " lacks " << word;
    }
    EXPECT_EQ(status.ToString().find('\n'), std::string::npos) << "one line: " << status;
  }
  EXPECT_EQ(router_.num_hellos(), 0u) << "none of them got as far as a router";
}

// The name of the third byte letter, which is then two tokens: no tokenizer can be built.
void MakeTwoTokensEqual(const std::string& source, const std::string& target) {
  std::ifstream in(source, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t tokens = bytes.find("tokenizer.ggml.tokens");
  const size_t letter = bytes.find("\u0102", tokens);
  ASSERT_NE(letter, std::string::npos);
  bytes.replace(letter, 2, "\u0101");
  std::ofstream(target, std::ios::binary) << bytes;
}

// Routers refuse it for the same reason; it ends without their words, and long before it gives up.
TEST_F(WorkerProcessTest, ABrokenTokenizerEndsItUnlessARouterTakesIt) {
  router_.Refuse("of no interest");
  WorkerConfig config = Config();
  config.model_path = testing::TempDir() + "/two_tokens_equal.gguf";
  MakeTwoTokensEqual(GoldenPath("tiny_bf16.gguf"), config.model_path);
  config.max_context = 64;
  auto worker = WorkerProcess::Start(config);
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_TRUE(Eventually([&] { return !(*worker)->failure().ok(); }));
  const std::string text = (*worker)->failure().ToString();
  EXPECT_NE(text.find("tokenizer.ggml.tokens["), std::string::npos) << text;
  EXPECT_NE(text.find("are both \"\\xc4\\x81\""), std::string::npos) << text;
  std::filesystem::remove(config.model_path);
}

TEST_F(WorkerProcessTest, PortsInUseAreNamed) {
  WorkerConfig config = Config();
  config.listen = router_.address();
  Status status = StartError(config);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find("--listen " + router_.address()), std::string::npos) << status;
  config = Config();
  config.admin = router_.address();
  status = StartError(config);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find(router_.address()), std::string::npos) << status;
  config = Config();
  config.kv_listen = router_.address();
  status = StartError(config);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find(router_.address()), std::string::npos) << status;
}

}  // namespace
}  // namespace baton::worker
