#include "src/router/worker_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/base/wire_text.h"
#include "src/router/worker_registry.h"
#include "src/text/tokenizer_spec.h"
#include "src/wire/answer_grammar.h"

namespace baton::router {

using kv::ChainLink;
using kv::ChainToBytes;
using limits::kMaxPrefixChanges;
using limits::kMaxSpecBytes;
using scheduler::FinishReason;

namespace {

v1::PrefixEvents Events(size_t num_links, const std::string& removed) {
  std::vector<ChainLink> links;
  for (uint64_t i = 0; i < num_links; ++i) links.push_back({i + 1, ~i});
  v1::PrefixEvents events;
  events.set_first_sequence(77);
  events.set_links(ChainToBytes(links));
  events.set_removed(removed);
  return events;
}

TEST(WorkerCodecTest, PrefixEventsKeepOrderNumbersAndKinds) {
  v1::PrefixEvents events = Events(10, std::string("\x81\x01", 2));
  events.set_reset(true);
  const auto batch = DecodePrefix(events);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->first_sequence, 77u);
  EXPECT_TRUE(batch->reset);
  ASSERT_EQ(batch->changes.size(), 10u);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(batch->changes[i].link, (ChainLink{i + 1, ~i}));
    EXPECT_EQ(batch->changes[i].added, i != 0 && i != 7 && i != 8) << i;
  }
  const auto short_bits = DecodePrefix(Events(10, std::string("\x02", 1)));
  ASSERT_TRUE(short_bits.ok());
  EXPECT_FALSE(short_bits->reset);
  EXPECT_FALSE(short_bits->changes[1].added);
  EXPECT_TRUE(short_bits->changes[9].added) << "missing bits are 0";
  EXPECT_TRUE(DecodePrefix(v1::PrefixEvents())->changes.empty());
}

TEST(WorkerCodecTest, VectorsCrossBitForBit) {
  v1::StepEvents step;
  v1::TokenEvent* const event = step.add_events();
  event->mutable_uid()->set_lo(5);
  event->set_finish(v1::WORKER_FINISH_LENGTH);
  const std::vector<float> vector = {0.6f, -0.0f, 1e-38f, -0.8f};
  event->mutable_embedding()->Add(vector.begin(), vector.end());
  v1::StepEvents crossed;
  ASSERT_TRUE(crossed.ParseFromString(step.SerializeAsString()));
  const std::vector<WorkerToken> tokens = DecodeStep(crossed);
  ASSERT_EQ(tokens.size(), 1u);
  ASSERT_EQ(tokens[0].embedding.size(), vector.size());
  for (size_t i = 0; i < vector.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(tokens[0].embedding[i]), std::bit_cast<uint32_t>(vector[i]));
  }
  const wire::Prompt prompt = std::vector<TokenId>{7, 8};
  const wire::SamplingParams sampling;
  PlacementSpec spec;
  spec.uid = {1, 2};
  spec.prompt = &prompt;
  spec.sampling = &sampling;
  spec.priority = -7;
  v1::RouterMessage message;
  EncodeStartEmbedding(spec, &message);
  EXPECT_EQ(message.start_embedding().spec().priority(), -7);
  ASSERT_TRUE(message.has_start_embedding());
  EXPECT_EQ(message.start_embedding().spec().tokens_size(), 2);
}

TEST(WorkerCodecTest, MalformedPrefixEventsAreRefused) {
  v1::PrefixEvents half = Events(2, "");
  half.mutable_links()->pop_back();
  EXPECT_EQ(DecodePrefix(half).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(DecodePrefix(Events(kMaxPrefixChanges, "")).ok());
  EXPECT_EQ(DecodePrefix(Events(kMaxPrefixChanges + 1, "")).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(DecodePrefix(Events(8, "a")).ok());
  EXPECT_EQ(DecodePrefix(Events(8, "ab")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodePrefix(Events(0, "a")).status().code(), StatusCode::kInvalidArgument);
}

v1::WorkerHello Hello() {
  v1::WorkerHello hello;
  hello.mutable_worker()->set_worker_id("decode-0");
  hello.mutable_worker()->set_incarnation(7);
  hello.set_role(v1::WORKER_ROLE_DECODE);
  hello.set_model("toy");
  hello.set_grpc_address("127.0.0.1:1");
  hello.mutable_fingerprint()->set_wire_min(kWireVersions.min);
  hello.mutable_fingerprint()->set_wire_max(kWireVersions.max);
  hello.set_max_context(100);
  hello.set_block_size(16);
  hello.set_num_blocks(10);
  hello.set_max_running(4);
  hello.set_vocab_size(300);
  return hello;
}

TEST(WorkerCodecTest, AWorkerIsDialledAtAHostAndAPortOnly) {
  v1::WorkerHello hello = Hello();
  for (const char* good : {"10.1.2.3:7100", "[fd00::7]:7100", "baton-decode-0.pods.svc:7100",
                           "localhost:1", "xds:80"}) {  // a host may have any name
    hello.set_grpc_address(good);
    EXPECT_TRUE(DecodeHello(hello).ok()) << good;
  }
  for (const char* bad :
       {"", "7100", "host", "host:0", "host:65536", "fd00::7:7100", "unix:/run/x.sock",
        "unix-abstract:x", "xds:///workers", "ipv4:10.1.2.3:1,10.1.2.4:1", "dns://10.1.2.3/host:1",
        "dns:///host:1", "/host:1", "host?a:1", "a,b:1"}) {
    hello.set_grpc_address(bad);
    const Status status = DecodeHello(hello).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("grpc_address")) << bad;
  }
}

// Whatever else a worker says may have another meaning in a version that is not spoken here.
TEST(WorkerCodecTest, WireVersionsOfAHelloAreComparedBeforeAnythingElse) {
  v1::WorkerHello hello = Hello();
  hello.set_role(static_cast<v1::WorkerRole>(77));
  hello.clear_grpc_address();
  hello.clear_block_size();
  EXPECT_EQ(DecodeHello(hello).status().code(), StatusCode::kInvalidArgument);
  const Status refusal = DecodeHello(hello, {.min = 4, .max = 5}).status();
  EXPECT_EQ(refusal.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal.message(),
            "the worker speaks wire versions 1..1, this router 4..5: none is common");
  for (const auto& [min, max] : {std::pair(0u, 1u), std::pair(2u, 1u), std::pair(0u, 0u)}) {
    hello = Hello();
    hello.mutable_fingerprint()->set_wire_min(min);
    hello.mutable_fingerprint()->set_wire_max(max);
    EXPECT_EQ(DecodeHello(hello).status().code(), StatusCode::kInvalidArgument) << min << max;
  }
}

TEST(WorkerCodecTest, StateBlocksLeaveRoomForTokensAndForCounting) {
  v1::WorkerHello hello = Hello();
  for (const uint32_t num_blocks : {10u, 3u << 20}) {
    hello.set_num_blocks(num_blocks);
    const uint32_t most = std::min(num_blocks - 1, limits::kMaxStateBlocks);
    hello.set_state_blocks(most);
    EXPECT_TRUE(DecodeHello(hello).ok()) << most;
    for (const uint32_t state_blocks : {most + 1, 0x7FFFFFFFu, UINT32_MAX}) {
      hello.set_state_blocks(state_blocks);
      EXPECT_THAT(std::string(DecodeHello(hello).status().message()),
                  ::testing::HasSubstr(
                      fmt::format("state_blocks is {}, outside 0..{}", state_blocks, most)));
    }
  }
}

TEST(WorkerCodecTest, WindowBlocksAreThoseOfAPool) {
  v1::WorkerHello hello = Hello();
  EXPECT_EQ(DecodeHello(hello)->window_blocks, 0u);
  hello.set_window_blocks(162);
  EXPECT_EQ(DecodeHello(hello)->window_blocks, 162u);
  EXPECT_EQ(DecodeHello(hello)->HeldBlocks(161), 161u);
  EXPECT_EQ(DecodeHello(hello)->HeldBlocks(500), 162u);
  hello.set_window_blocks(UINT32_MAX);
  EXPECT_THAT(std::string(DecodeHello(hello).status().message()),
              ::testing::HasSubstr("window_blocks is 4294967295, outside 0.."));
}

TEST(WorkerCodecTest, AWorkerOfACoreBudgetHasCoresOfIt) {
  v1::WorkerHello hello = Hello();
  EXPECT_EQ(DecodeHello(hello)->core_budget, 0u);
  hello.set_core_budget(77);
  hello.set_home_cores(1024);
  EXPECT_EQ(DecodeHello(hello)->core_budget, 77u);
  EXPECT_EQ(DecodeHello(hello)->home_cores, 1024u);
  for (const uint32_t home_cores : {0u, 1025u}) {
    hello.set_home_cores(home_cores);
    EXPECT_THAT(std::string(DecodeHello(hello).status().message()),
                ::testing::HasSubstr(fmt::format("home_cores is {}, outside 1..1024", home_cores)));
  }
}

TEST(WorkerCodecTest, AModelMayBeCalledWhatAFileIs) {
  for (const std::string id : {"toy", "my model", "smollm2:135m", "mod\xc3\xa8le"}) {
    v1::WorkerHello hello = Hello();
    hello.set_model(id);
    EXPECT_TRUE(DecodeHello(hello).ok()) << id;
  }
  for (const std::string& id : {std::string(), std::string("default"), std::string("a/b"),
                                std::string("a\nb"), std::string("m\xff"), std::string(257, 'm')}) {
    EXPECT_FALSE(IsModelId(id)) << id;
  }
  v1::WorkerHello hello = Hello();
  hello.set_model("a/b");
  EXPECT_EQ(DecodeHello(hello).status().code(), StatusCode::kInvalidArgument);
}

TEST(WorkerCodecTest, ATokenizerHasTheLimitThatWorkersKeep) {
  v1::WorkerHello hello = Hello();
  hello.set_tokenizer(std::string(kMaxSpecBytes, 't'));
  EXPECT_TRUE(DecodeHello(hello).ok());
  hello.mutable_tokenizer()->push_back('t');
  EXPECT_EQ(DecodeHello(hello).status().message(),
            "tokenizer has 16777217 bytes, the limit is 16777216");
}

TEST(WorkerCodecTest, WhetherBitsVaryIsToldAndFalseOfWhoDoesNotTell) {
  v1::WorkerHello hello = Hello();
  EXPECT_FALSE(DecodeHello(hello)->fingerprint.varies_with_batch);
  hello.mutable_fingerprint()->set_varies_with_batch(true);
  EXPECT_TRUE(DecodeHello(hello)->fingerprint.varies_with_batch);
}

TEST(WorkerCodecTest, AWorkerThatDoesNotTellConstrainsNoAnswers) {
  v1::WorkerHello hello = Hello();
  EXPECT_EQ(DecodeHello(hello)->grammar_version, 0u);
  hello.set_grammar_version(wire::kAnswerGrammarVersion);
  EXPECT_EQ(DecodeHello(hello)->grammar_version, wire::kAnswerGrammarVersion);
}

TEST(WorkerCodecTest, AFinishOfALaterVersionIsAFinish) {
  v1::StepEvents step;
  step.add_events();
  step.add_events()->set_finish(v1::WORKER_FINISH_LENGTH);
  step.add_events()->set_finish(static_cast<v1::WorkerFinish>(77));
  step.mutable_events(1)->set_step_us(5'100);
  step.mutable_events(1)->set_proposed(9);
  step.mutable_events(2)->set_proposed(UINT32_MAX);
  step.mutable_events(2)->set_step_row(2);
  step.mutable_events(1)->set_guess_state(v1::GUESS_STATE_PROMPTS);
  step.mutable_events(2)->set_guess_state(static_cast<v1::GuessState>(77));
  const std::vector<WorkerToken> tokens = DecodeStep(step);
  EXPECT_EQ(tokens[0].finish, FinishReason::kNone);
  EXPECT_EQ(tokens[1].finish, FinishReason::kLength);
  EXPECT_EQ(tokens[2].finish, FinishReason::kLength);
  EXPECT_EQ(tokens[0].step_us, 0u) << "an older worker";
  EXPECT_EQ(tokens[1].step_us, 5'100u);
  EXPECT_EQ(tokens[1].num_proposed, 9u);
  EXPECT_EQ(tokens[2].num_proposed, 16u) << "more than a step can verify";
  EXPECT_EQ(tokens[2].step_row, 2u);
  EXPECT_EQ(tokens[0].guess_state, wire::GuessState::kOff) << "an older worker";
  EXPECT_EQ(tokens[1].guess_state, wire::GuessState::kPrompts);
  EXPECT_EQ(tokens[2].guess_state, wire::GuessState::kOff) << "a newer worker";
}

TEST(WorkerCodecTest, AWorkerThatDoesNotTellItsBatchLimitHasNone) {
  v1::WorkerLoad load;
  EXPECT_EQ(DecodeLoad(load).batch_limit, 0u) << "an older worker";
  load.set_batch_limit(24);
  EXPECT_EQ(DecodeLoad(load).batch_limit, 24u);
  RegisteredWorker worker;
  worker.description.max_running = 16;
  EXPECT_EQ(worker.BatchLimit(), 16u);
  worker.load = DecodeLoad(load);
  EXPECT_EQ(worker.BatchLimit(), 16u) << "no report is believed beyond the hello";
  worker.load.batch_limit = 4;
  EXPECT_EQ(worker.BatchLimit(), 4u);
}

TEST(WorkerCodecTest, WhatIsKeptOfAHelloIsBounded) {
  v1::WorkerHello hello = Hello();
  for (int i = 0; i < 1000; ++i) hello.add_transports(v1::TRANSPORT_KIND_TCP);
  hello.add_transports(v1::TRANSPORT_KIND_SHM);
  hello.add_transports(v1::TRANSPORT_KIND_CUDA_IPC);
  hello.add_transports(static_cast<v1::TransportKind>(v1::TRANSPORT_KIND_CUDA_IPC + 1));
  const auto worker = DecodeHello(hello);
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_EQ(worker->transports.size(), 3u) << "the last is not known";
  EXPECT_EQ(worker->transports[2], LinkKind::kCudaIpc);
  const auto refused = [](const v1::WorkerHello& m) {
    return DecodeHello(m).status().code() == StatusCode::kInvalidArgument;
  };
  const std::string text(4097, 'x');
  hello = Hello();
  hello.set_host_id(text);
  EXPECT_TRUE(refused(hello));
  hello = Hello();
  hello.mutable_fingerprint()->set_layout_text(text);
  EXPECT_TRUE(refused(hello));
  hello = Hello();
  hello.mutable_fingerprint()->set_numerics_text(text.substr(1));
  EXPECT_FALSE(refused(hello));
}

TEST(WorkerCodecTest, NumbersAndListsOfAWorkerAreMadeUsable) {
  v1::RequestStatus status;
  status.set_message("a\nb" + std::string(5000, 'x'));
  for (const float seconds : {NAN, -1.0f, INFINITY, 0.25f}) {
    status.set_transfer_seconds(seconds);
    EXPECT_EQ(DecodeStatus(status).transfer_seconds, seconds == 0.25f ? 0.25f : 0.0f);
  }
  EXPECT_EQ(DecodeStatus(status).message, "a?b" + std::string(1021, 'x'));
  EXPECT_EQ(DecodeStatus(status).failed_part, FailedPart::kNotTold) << "an older worker";
  for (const int part : {1, 2, 3, 4, 99, -1}) {
    status.set_failed_part(static_cast<v1::FailedPart>(part));
    const auto wanted =
        part >= 1 && part <= 3 ? static_cast<FailedPart>(part) : FailedPart::kNotTold;
    EXPECT_EQ(DecodeStatus(status).failed_part, wanted) << part;
  }
  v1::StepEvents step;
  v1::TokenEvent* event = step.add_events();
  for (int i = 0; i < 1000; ++i) event->add_top_logprobs()->set_token(1);
  EXPECT_EQ(DecodeStep(step)[0].top_logprobs.size(), 20u);
  v1::WorkerLoad load;
  load.add_links()->set_to(std::string(65, 'x'));
  load.add_links()->set_to("decode-0");
  load.mutable_links(1)->set_failure("another\nsecret" + std::string(1024, 'x'));
  const std::vector<LinkView> links = DecodeLoad(load).links;
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0].why.size(), kMaxWireTextBytes);
  EXPECT_EQ(links[0].why.substr(0, 15), "another?secretx");
}

}  // namespace
}  // namespace baton::router
