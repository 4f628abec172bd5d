#include "src/worker/hello_codec.h"

#include "src/worker/request_codec.h"

namespace baton::worker {

using kv::TransportKind;

void ToProto(const HelloFacts& facts, v1::WorkerHello* out) {
  out->mutable_worker()->set_worker_id(facts.worker_id);
  out->mutable_worker()->set_incarnation(facts.incarnation.value());
  out->set_role(facts.role == WorkerRole::kPrefill ? v1::WORKER_ROLE_PREFILL
                                                   : v1::WORKER_ROLE_DECODE);
  v1::Fingerprint* fingerprint = out->mutable_fingerprint();
  fingerprint->set_wire_min(facts.wire.min);
  fingerprint->set_wire_max(facts.wire.max);
  fingerprint->set_layout_id(facts.layout_id);
  fingerprint->set_weights_id(facts.weights_id);
  fingerprint->set_tokenizer_id(facts.tokenizer_id);
  fingerprint->set_numerics_id(facts.numerics_id);
  fingerprint->set_layout_text(facts.layout_text);
  fingerprint->set_numerics_text(facts.numerics_text);
  fingerprint->set_varies_with_batch(facts.varies_with_batch);
  out->set_grpc_address(facts.grpc_address);
  out->set_admin_address(facts.admin_address);
  out->set_kv_address(facts.kv_address);
  out->set_kv_unix(facts.kv_unix);
  out->set_host_id(facts.host_id);
  out->set_pid(facts.pid);
  out->set_model(facts.model_id);
  out->set_max_context(facts.max_context);
  out->set_block_size(facts.block_size);
  out->set_state_blocks(facts.state_blocks);
  out->set_window_blocks(facts.window_blocks);
  out->set_kv_bytes_per_token(facts.kv_bytes_per_token);
  out->set_num_blocks(facts.num_blocks);
  out->set_max_running(facts.max_running);
  out->set_core_budget(facts.core_budget);
  out->set_home_cores(facts.home_cores);
  out->set_tokenizer(facts.tokenizer);
  for (const TransportKind kind : facts.transports) out->add_transports(ToProto(kind));
  out->set_allow_inexact(facts.allow_inexact);
  out->set_vocab_size(facts.vocab_size);
  out->set_chain_check(facts.chain_check);
  out->set_grammar_version(facts.grammar_version);
  out->set_prompt_logprobs(facts.logs_prompts);
  out->set_embedding_size(facts.embedding_size);
  out->set_embedding_refusal(facts.embedding_refusal);
  out->set_loaded_unix_s(static_cast<uint64_t>(facts.loaded_unix_s));
}

}  // namespace baton::worker
