// The messages of a toy worker: how it describes itself when it registers, and of a request's
// progress.
#ifndef BATON_TESTS_API_TOY_HELLO_H_
#define BATON_TESTS_API_TOY_HELLO_H_

#include <chrono>
#include <string>
#include <thread>

#include "baton/v1/worker.grpc.pb.h"
#include "kvcache/hash_chain.h"
#include "tests/proto/unknown_fields.h"
#include "tests/router/test_model.h"

namespace baton::api {

// The protocol of a toy worker.
struct ToyWire {
  uint32_t min = 1;
  uint32_t max = 1;
  // Every message holds fields and, where that is legal, enum values that the router does not know.
  bool is_newer = false;
};

// The fields that differ between toy workers.
struct ToyIdentity {
  std::string id;
  v1::WorkerRole role;
  std::string grpc_address;
  std::string weights;
  std::string chat_template;  // "" = the test model's
  ToyWire wire;
  std::string model = "toy";
};

inline void FillToyHello(const ToyIdentity& worker, v1::WorkerHello* hello) {
  text::TokenizerSpec spec = router::TestSpec();
  if (!worker.chat_template.empty()) spec.chat_template = worker.chat_template;
  hello->mutable_worker()->set_worker_id(worker.id);
  hello->mutable_worker()->set_incarnation(77);
  hello->set_role(worker.role);
  v1::Fingerprint* fingerprint = hello->mutable_fingerprint();
  fingerprint->set_wire_min(worker.wire.min);
  fingerprint->set_wire_max(worker.wire.max);
  fingerprint->set_layout_id(5);
  fingerprint->set_weights_id(worker.weights);
  fingerprint->set_tokenizer_id(text::TokenizerSpecId(spec.Serialize()));
  fingerprint->set_numerics_id("numerics");
  hello->set_grpc_address(worker.grpc_address);
  hello->set_admin_address("127.0.0.1:1");
  hello->set_kv_address("127.0.0.1:2");
  hello->set_pid(4711);
  hello->set_model(worker.model);
  hello->set_max_context(router::kTestContext);
  hello->set_block_size(16);
  hello->set_kv_bytes_per_token(100);
  hello->set_num_blocks(256);
  hello->set_max_running(32);
  hello->set_tokenizer(spec.Serialize());
  if (worker.wire.is_newer) hello->add_transports(static_cast<v1::TransportKind>(kUnknownValue));
  hello->add_transports(v1::TRANSPORT_KIND_SHM);
  hello->set_vocab_size(router::kTestVocab);
  hello->set_chain_check(kv::ChainKeyCheck(kv::DeriveChainKey("", "default")));
  hello->set_loaded_unix_s(1'700'000'000);
}

// Its report of that number; `link_to` "" = it is connected to nobody.
inline void FillToyLoad(uint64_t number, const std::string& link_to, v1::WorkerLoad* load) {
  load->set_ready(true);
  load->mutable_blocks()->set_total(256);
  load->mutable_blocks()->set_free(256);
  load->set_sequence_number(number);
  if (link_to.empty()) return;
  v1::LinkLoad* link = load->add_links();
  link->set_to(link_to);
  link->set_to_incarnation(77);
  link->set_transport(v1::TRANSPORT_KIND_SHM);
  link->set_up(true);
}

// Its message when a request reaches `state`.
inline void FillToyStatus(const v1::RequestSpec& spec, v1::RequestState state,
                          v1::RequestStatus* status) {
  *status->mutable_uid() = spec.uid();
  status->set_attempt(spec.attempt());
  status->set_state(state);
  if (state == v1::REQUEST_STATE_REJECTED) status->set_code(3);
  if (state == v1::REQUEST_STATE_FAILED) status->set_code(14);
  if (state == v1::REQUEST_STATE_PREFILL_STARTED) status->set_cached_tokens(3);
  if (state == v1::REQUEST_STATE_VERIFIED) {
    status->set_kv_bytes(1000);
    status->set_transport(v1::TRANSPORT_KIND_SHM);
  }
}

// The token at `index` of one choice; `is_last`: of a script that ends there.
inline void FillToyToken(const v1::RequestSpec& spec, uint32_t index, char letter, bool is_last,
                         v1::TokenEvent* event) {
  *event->mutable_uid() = spec.uid();
  event->set_attempt(spec.attempt());
  event->set_index(index);
  event->set_token(static_cast<uint8_t>(letter));
  if (spec.sampling().logprobs()) {
    event->set_logprob(-0.5f);
    for (uint32_t i = 0; i < spec.sampling().top_logprobs(); ++i) {
      event->add_top_logprobs()->set_token('a' + i);
    }
  }
  if (index + 1 == spec.sampling().max_tokens()) event->set_finish(v1::WORKER_FINISH_LENGTH);
  if (is_last) event->set_finish(v1::WORKER_FINISH_STOP);
}

// One token of the prompt has KV.
inline v1::WorkerMessage ToyProgress(const v1::RequestSpec& spec) {
  v1::WorkerMessage message;
  v1::TokenEvent* event = message.mutable_step()->add_events();
  FillToyToken(spec, 0, 'a', false, event);
  event->mutable_progress()->set_num_tokens(1);
  return message;
}

// Between two looks at what a test changes.
inline void Nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

}  // namespace baton::api

#endif  // BATON_TESTS_API_TOY_HELLO_H_
