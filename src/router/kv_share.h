// TenantKv and KvHold: count the KV that the running requests of one tenant hold at decode workers.
// A tenant may hold a share of all KV at once (kv_share of the keys file).
//
// From its placement to its end, a request holds its prompt, its generated tokens, and the fixed
// states of its choices, counted in tokens. Shared prefixes count for each request. A request is
// placed when it fits beside the other requests of its tenant. Running answers may grow beyond the
// share.
//
// Any thread may set the share. All other calls are the router's thread's.
#ifndef BATON_ROUTER_KV_SHARE_H_
#define BATON_ROUTER_KV_SHARE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace baton::router {

class WorkerRegistry;

// Counts the KV of one tenant; see the file comment.
class TenantKv {
 public:
  // Above 0 and at most 1; 0 = no limit.
  void SetShare(double share) { share_.store(share, std::memory_order_relaxed); }
  double share() const { return share_.load(std::memory_order_relaxed); }

  // Tokens that its requests of one model hold. The reference stays valid.
  uint64_t& HeldOf(std::string_view model_id);

 private:
  std::atomic<double> share_{0};
  std::map<std::string, uint64_t, std::less<>> held_;  // by model id
};

// Counts the KV of one request, and gives it back at its destruction.
class KvHold {
 public:
  KvHold() = default;
  ~KvHold() { Release(); }
  KvHold(const KvHold&) = delete;
  KvHold& operator=(const KvHold&) = delete;

  // Replaces the earlier count. A null tenant has no limit.
  void Begin(const std::shared_ptr<TenantKv>& tenant, std::string_view model_id,
             uint64_t num_tokens);
  // One more token.
  void Grow();
  void Release();

 private:
  std::shared_ptr<TenantKv> tenant_;  // null: it holds nothing
  uint64_t* held_ = nullptr;          // of the tenant's
  uint64_t num_tokens_ = 0;
};

// A share of a model's KV as tokens.
struct KvLimit {
  double share = 0;
  uint64_t pool_tokens = 0;   // of all decode workers that are there
  uint64_t state_tokens = 0;  // for the fixed state of one choice

  uint64_t tokens() const {
    return static_cast<uint64_t>(share * static_cast<double>(pool_tokens));
  }
  // "kv_share 0.25, 400 of 1600 tokens of KV".
  std::string Text() const;
};
KvLimit KvLimitOf(const TenantKv& tenant, const WorkerRegistry& registry,
                  std::string_view model_id);

}  // namespace baton::router

#endif  // BATON_ROUTER_KV_SHARE_H_
