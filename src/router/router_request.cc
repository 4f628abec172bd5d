#include "src/router/router_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace baton::router {

using kv::HandoffRequestState;
using kv::HandoffRequestStateName;
using obs::RequestEvent;
using obs::RequestStage;
using scheduler::FinishReason;
using scheduler::Route;

namespace {

// A worker refuses a request within a step, 100 ms at most; a loaded host takes longer.
constexpr int64_t kTakenUs = 1'000'000;

WorkerBeside BesideOf(const RegisteredWorker& worker) {
  return {.running = worker.load.running,
          .waiting = worker.load.waiting,
          .free_blocks = worker.NumFreeBlocks(),
          .num_blocks = worker.load.num_blocks};
}

}  // namespace

std::string RouterStateName(HandoffRequestState state) {
  std::string name(HandoffRequestStateName(state));
  absl::AsciiStrToUpper(&name);
  return name;
}

RouterRequest::RouterRequest(RequestUid uid_in, GenerateRequest spec_in,
                             std::shared_ptr<ResponseSink> sink_in)
    : uid(uid_in),
      spec(std::move(spec_in)),
      sink(std::move(sink_in)),
      lifetime(spec.received_us),
      merge(spec.num_choices, spec.sampling.max_tokens),
      finished(spec.num_choices, FinishReason::kNone),
      last_token_us(spec.num_choices, 0),
      heard_us(spec.received_us) {
  texts.reserve(spec.num_choices);
  for (uint32_t i = 0; i < spec.num_choices; ++i) {
    texts.emplace_back(*spec.model->tokenizer, spec.stop, spec.sampling.min_tokens);
    if (!spec.shown_tokens.empty()) texts.back().ShowSpecial(spec.shown_tokens);
  }
}

RequestTimings RouterRequest::Timings() const {
  const auto stage_ms = [&](RequestStage stage) {
    return static_cast<double>(lifetime.StageUs(stage)) / 1000.0;
  };
  RequestTimings timings;
  timings.disaggregated = !is_local;
  timings.decode_worker = decode_worker_id;
  timings.prefill_worker = is_local ? decode_worker_id : prefill_worker_id;
  timings.transport = LinkKindName(transport);
  timings.kv_bytes = kv_bytes;
  timings.cached_tokens = cached_tokens;
  timings.resumes = resumes.num;
  timings.queue_ms = stage_ms(RequestStage::kAdmit) + stage_ms(RequestStage::kQueuePrefill);
  timings.prefill_ms = stage_ms(RequestStage::kPrefill);
  timings.kv_wait_ms = stage_ms(RequestStage::kKvWait) + stage_ms(RequestStage::kKvTransfer) +
                       stage_ms(RequestStage::kQueueDecode);
  timings.first_step_ms = stage_ms(RequestStage::kFirstStep);
  timings.decode_ms = stage_ms(RequestStage::kDecode);
  timings.exact = Repeats();
  timings.speculated = guesses.num_proposed;
  timings.accepted = guesses.num_accepted;
  timings.speculation = guesses.state;
  return timings;
}

std::span<const TokenId> RouterRequest::Replayed(uint32_t num) const {
  if (spec.num_choices > 1) return {};
  return std::span<const TokenId>(merge.tokens(0)).first(num);
}

bool RouterRequest::ExactBy(const Route& route, const WorkerDescription& decode) const {
  if (merge.num_known() == 0) return route.exact;
  return exact && route.exact && decode.fingerprint.numerics_id == numerics_id;
}

void RouterRequest::ForgetTokens() {
  merge = TokenMerge(spec.num_choices, spec.sampling.max_tokens);
  num_replayed = 0;
}

RouterPrefixIndex::Hit HitOf(std::span<const RouterPrefixIndex::Hit> hits, LeaseId lease) {
  for (const RouterPrefixIndex::Hit& hit : hits) {
    if (hit.worker == lease) return hit;
  }
  return {};
}

void RouterRequest::NotePrefixes(std::vector<kv::ChainLink> new_links,
                                 std::vector<RouterPrefixIndex::Hit> found) {
  if (links.empty()) links = std::move(new_links);
  hits = std::move(found);
}

void RouterRequest::NoteCached(uint32_t num_tokens) {
  if (moves_kv || num_replayed > 0 || num_tokens == 0) return;
  cached_tokens = std::min(num_tokens, static_cast<uint32_t>(spec.prompt.size() - 1));
}

RouterPrefixIndex::Hit RouterRequest::HitAt(const RegisteredWorker& worker) const {
  return HitOf(hits, worker.lease);
}

uint32_t RouterRequest::CachedTokens(uint32_t num_hits, const RegisteredWorker& worker) const {
  if (AwaitsPromptLog() || spec.embeds) return 0;  // all of its prompt is computed, or may be
  const uint64_t tokens = uint64_t{num_hits} * worker.description.block_size;
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, spec.prompt.size() - 1));
}

// A token that only a prompt's end gave is sampled again: the prefill worker's blocks then serve
// the next attempt as they are. A decode worker has no KV of its last token.
uint32_t RouterRequest::NumToReplay(bool moves) const {
  const size_t num_first = spec.num_choices > 1 ? 0 : merge.tokens(0).size();
  if (num_first <= num_replayed + 1) return num_replayed;
  return static_cast<uint32_t>(moves ? num_first - 1 : num_first);
}

// Workers of one model may have unequal contexts, and an answer ends where the context of its
// decode worker does. That end must come after the tokens that others have given, or will: else
// they differ about which one is the last.
uint32_t RouterRequest::LeastContext() const {
  size_t most_known = 0;
  for (uint32_t choice = 0; choice < spec.num_choices; ++choice) {
    most_known = std::max(most_known, merge.tokens(choice).size());
  }
  const size_t whole = spec.prompt.size() + spec.sampling.max_tokens;
  return static_cast<uint32_t>(std::min(whole, spec.prompt.size() + most_known + 2));
}

void RouterRequest::TellTaken(int64_t now_us) {
  if (is_told_taken) return;
  const bool is_taken = accepted && (HasBegunPrompt() || now_us - placed_us >= kTakenUs);
  is_told_taken = is_taken || num_delivered > 0;  // a token has told it
  if (is_taken && num_delivered == 0) sink->OnTaken();
}

RunningAnswer RouterRequest::Progress(int64_t now_us) const {
  const std::optional<int64_t> first_us = lifetime.TimeOf(RequestEvent::kFirstToken);
  return {.age_us = now_us - placed_us,
          .decode_us = first_us ? now_us - *first_us : 0,
          .num_tokens = static_cast<uint32_t>(merge.num_known()),
          .max_tokens = spec.sampling.max_tokens * spec.num_choices};
}

void RouterRequest::NotePlacement(const RegisteredWorker* prefill, const RegisteredWorker& decode,
                                  int64_t now_us) {
  if (notes.unplaced_us >= 0) notes.again_us += now_us - std::exchange(notes.unplaced_us, -1);
  notes.prefill = prefill == nullptr ? WorkerBeside{} : BesideOf(*prefill);
  notes.decode = BesideOf(decode);
}

}  // namespace baton::router
