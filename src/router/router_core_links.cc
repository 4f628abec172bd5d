// Probes: prompts of the router's own that try links which were bad.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/split_mix.h"
#include "src/router/router_core.h"

namespace baton::router {

namespace {

// KV of a probe: large enough to measure a link by, and soon computed.
constexpr uint64_t kProbeBytes = uint64_t{1} << 20;
constexpr uint32_t kMaxProbeTokens = 256;
// A client that needs every block of a worker may wait for a probe to end.
constexpr int64_t kProbeTimeoutUs = 3'000'000;

// Nobody reads the answer of a probe.
class ProbeSink final : public ResponseSink {
 public:
  void OnToken(const TokenOutput& /*token*/) override {}
  void OnFinished(const GenerateResult& /*result*/) override {}
  void OnFailed(const RequestError& /*error*/) override {}
  size_t buffered_bytes() const override { return 0; }
};

// A prompt of arbitrary tokens, `seed` says which. Of two answer tokens the prefill worker samples
// the first one, and the decode worker needs the KV for the second.
GenerateRequest ProbeRequest(const RegisteredWorker& prefill, const RegisteredWorker& decode,
                             uint64_t seed, int64_t now_us) {
  const WorkerDescription& from = prefill.description;
  const uint64_t wanted = kProbeBytes / std::max<uint64_t>(from.kv_bytes_per_token, 1) + 1;
  const uint64_t room = std::min(from.max_context, decode.description.max_context);
  const uint64_t num_tokens =
      std::min({wanted, uint64_t{kMaxProbeTokens}, std::max<uint64_t>(room, 3) - 2});
  GenerateRequest request;
  request.request_id = "probe";
  request.model = from.model;
  request.probe = ProbedLink{prefill.lease, decode.lease};
  std::vector<TokenId> prompt;
  prompt.reserve(num_tokens);
  for (uint64_t i = 0; i < num_tokens; ++i) {
    const uint64_t draw = SplitMix(seed + i * kSplitMixStep);
    const uint64_t token = draw % std::max<uint64_t>(from.model->vocab_size, 1);
    prompt.push_back(static_cast<TokenId>(token));
  }
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = 2;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.received_us = now_us;
  request.timeout_us = kProbeTimeoutUs;
  return request;
}

}  // namespace

// A link that was bad has rested, or the speed of a slow one was found long ago: a prompt of the
// router's own tries it, so that no client waits for it.
void RouterCore::ProbeLinks(int64_t now_us) {
  for (const ProbedLink& link : links_.TakeDueProbes(now_us)) {
    const RegisteredWorker& from = *state_.registry.Find(link.prefill);
    const RegisteredWorker& to = *state_.registry.Find(link.decode);
    RequestUid uid;
    uid.hi = SplitMix(probe_draw_ += kSplitMixStep);
    uid.lo = SplitMix(uid.hi ^ static_cast<uint64_t>(now_us));
    Submit(uid, ProbeRequest(from, to, uid.lo, now_us), std::make_shared<ProbeSink>(), now_us);
  }
}

}  // namespace baton::router
