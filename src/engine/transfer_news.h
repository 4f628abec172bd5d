// TransferNews: carries what the hand-offs tell to the requests that they work for. A request whose
// hand-off is over ends here; one whose KV has arrived begins to decode here. Engine thread.
#ifndef BATON_ENGINE_TRANSFER_NEWS_H_
#define BATON_ENGINE_TRANSFER_NEWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "src/engine/choice_tokens.h"
#include "src/engine/engine_state.h"
#include "src/engine/guide_waits.h"
#include "src/engine/request_life.h"
#include "src/engine/transfer_parts.h"

namespace baton::engine {

// See the file comment.
class TransferNews final : public TransferOwner {
 public:
  // All outlive it.
  TransferNews(EngineState* state, RequestLife* life, GuideWaits* guides, ChoiceTokens* tokens);

  void OnSourceGranted(const RequestKey& key) override;
  void OnSourceDone(const RequestKey& key) override;
  void OnSourceStranded(const RequestKey& key, kv::HandoffOutcome outcome,
                        const Status& status) override;
  void OnDestProgress(const RequestKey& key, uint64_t kv_bytes) override;
  void OnDestVerified(const RequestKey& key, const TransferResult& result) override;
  void OnDestBound(const RequestKey& key, const kv::Seal& seal,
                   std::span<const kv::BlockHandle> blocks) override;
  void OnTransferFailed(const RequestKey& key, kv::HandoffOutcome outcome,
                        const Status& status) override;

 private:
  EngineState* const state_;
  RequestLife* const life_;
  GuideWaits* const guides_;
  ChoiceTokens* const tokens_;
  std::vector<model::SampledToken> first_tokens_;  // of the seal being bound, by choice
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_TRANSFER_NEWS_H_
