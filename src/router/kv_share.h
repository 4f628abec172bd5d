// TenantKv and KvHold: the KV that the running requests of one tenant hold at decode workers, for
// the share of it that the tenant may hold at once (kv_share of the keys file).
//
// A request holds its prompt, the fixed states of its choices as so many tokens, and what has been
// generated for it, from its placement to its end.
// Prefixes that requests share count for each of them. A request is placed when it fits beside what
// its tenant holds; what running answers grow by afterwards is not cut off.
//
// Shares are set by any thread, the rest is the router's thread's.
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

// It counts what one tenant holds; see the file comment.
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

// It counts what one request holds, and gives that back when it is destroyed.
class KvHold {
 public:
  KvHold() = default;
  ~KvHold() { Release(); }
  KvHold(const KvHold&) = delete;
  KvHold& operator=(const KvHold&) = delete;

  // In place of what it held. A null tenant has no limit.
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
  uint64_t pool_tokens = 0;   // of all its decode workers that are there
  uint64_t state_tokens = 0;  // that each choice holds beside its own

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
