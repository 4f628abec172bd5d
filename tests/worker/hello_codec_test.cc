// The hello of a worker arrives at the router with each fact in its place.
#include "src/worker/hello_codec.h"

#include "gtest/gtest.h"

#include "src/router/worker_codec.h"

namespace baton::worker {
namespace {

// No two facts of one type are equal.
HelloFacts Facts() {
  HelloFacts facts;
  facts.worker_id = "prefill-0";
  facts.incarnation = Incarnation(3);
  facts.role = WorkerRole::kPrefill;
  facts.layout_id = 4;
  facts.weights_id = "weights";
  facts.tokenizer_id = 5;
  facts.numerics_id = "numerics";
  facts.layout_text = "the layout";
  facts.numerics_text = "the numerics";
  facts.varies_with_batch = true;
  facts.grpc_address = "127.0.0.1:6";
  facts.admin_address = "127.0.0.1:7";
  facts.kv_address = "127.0.0.1:8";
  facts.kv_unix = "/run/kv";
  facts.host_id = "a host";
  facts.pid = 9;
  facts.model_id = "toy";
  facts.max_context = 1000;
  facts.block_size = 16;
  facts.state_blocks = 10;
  facts.window_blocks = 11;
  facts.kv_bytes_per_token = 12;
  facts.num_blocks = 500;
  facts.max_running = 13;
  facts.core_budget = 14;
  facts.home_cores = 15;
  facts.transports = {kv::TransportKind::kShm, kv::TransportKind::kTcp};
  facts.vocab_size = 300;
  facts.chain_check = 17;
  facts.grammar_version = 18;
  facts.logs_prompts = true;
  facts.embedding_size = 19;
  return facts;
}

TEST(HelloCodecTest, TheRouterReadsWhatTheWorkerSays) {
  const HelloFacts facts = Facts();
  v1::WorkerHello hello;
  ToProto(facts, &hello);
  const auto decoded = router::DecodeHello(hello);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const router::WorkerDescription& worker = *decoded;
  EXPECT_EQ(worker.name.worker_id, facts.worker_id);
  EXPECT_EQ(worker.name.incarnation, facts.incarnation);
  EXPECT_EQ(worker.role, facts.role);
  EXPECT_EQ(worker.fingerprint.wire_min, facts.wire.min);
  EXPECT_EQ(worker.fingerprint.wire_max, facts.wire.max);
  EXPECT_EQ(worker.fingerprint.layout_id, facts.layout_id);
  EXPECT_EQ(worker.fingerprint.tokenizer_id, facts.tokenizer_id);
  EXPECT_EQ(worker.fingerprint.allow_inexact, facts.allow_inexact);
  EXPECT_EQ(worker.fingerprint.varies_with_batch, facts.varies_with_batch);
  EXPECT_EQ(worker.weights_text, facts.weights_id);
  EXPECT_EQ(worker.layout_text, facts.layout_text);
  EXPECT_EQ(worker.numerics_id_text, facts.numerics_id);
  EXPECT_EQ(worker.numerics_text, facts.numerics_text);
  EXPECT_EQ(worker.grpc_address, facts.grpc_address);
  EXPECT_EQ(worker.admin_address, facts.admin_address);
  EXPECT_EQ(worker.kv_address, facts.kv_address);
  EXPECT_EQ(worker.kv_unix, facts.kv_unix);
  EXPECT_EQ(worker.host_id, facts.host_id);
  EXPECT_EQ(worker.pid, facts.pid);
  EXPECT_EQ(worker.max_context, facts.max_context);
  EXPECT_EQ(worker.block_size, facts.block_size);
  EXPECT_EQ(worker.state_blocks, facts.state_blocks);
  EXPECT_EQ(worker.window_blocks, facts.window_blocks);
  EXPECT_EQ(worker.kv_bytes_per_token, facts.kv_bytes_per_token);
  EXPECT_EQ(worker.num_blocks, facts.num_blocks);
  EXPECT_EQ(worker.max_running, facts.max_running);
  EXPECT_EQ(worker.core_budget, facts.core_budget);
  EXPECT_EQ(worker.home_cores, facts.home_cores);
  EXPECT_EQ(worker.chain_check, facts.chain_check);
  EXPECT_EQ(worker.grammar_version, facts.grammar_version);
  EXPECT_EQ(worker.logs_prompts, facts.logs_prompts);
  EXPECT_EQ(worker.embedding_size, facts.embedding_size);
  ASSERT_EQ(worker.transports.size(), 2u);
  EXPECT_NE(worker.transports[0], worker.transports[1]);
}

}  // namespace
}  // namespace baton::worker
