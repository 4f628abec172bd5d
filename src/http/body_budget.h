// BodyBudget: the bytes that the request bodies of one server may take together, from their first
// byte on until whoever handles the request has dropped it. Without it 1024 connections could
// collect 8 GiB in the minute that a body may take.
//
// The first kFreeBodyBytes of each body are not counted: requests of ordinary size are never
// refused for the large ones of others, and come to 64 MiB at most for 1024 connections.
//
// Threads: a lease is used by one thread at a time; leases of one budget by any.
#ifndef BATON_HTTP_BODY_BUDGET_H_
#define BATON_HTTP_BODY_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace baton::http {

inline constexpr size_t kFreeBodyBytes = size_t{64} << 10;

// See the file comment.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  // False: not so much is left, and nothing was taken. When two calls run at once, the second may
  // be refused for what the first is refused for.
  bool TryTake(size_t num_bytes) {
    if (num_taken_.fetch_add(num_bytes) + num_bytes <= max_bytes_) return true;
    num_taken_.fetch_sub(num_bytes);
    return false;
  }
  size_t num_taken() const { return num_taken_.load(); }
  void GiveBack(size_t num_bytes) { num_taken_.fetch_sub(num_bytes); }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> num_taken_{0};
};

// Bytes that one body has taken; given back by the destructor, which may run after the server's.
class BodyLease {
 public:
  explicit BodyLease(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyLease() { budget_->GiveBack(num_taken_); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  // The body has so many bytes now, not fewer than before. False: the budget is spent.
  bool GrowTo(size_t num_body_bytes) {
    const size_t wanted = num_body_bytes - std::min(num_body_bytes, kFreeBodyBytes);
    if (!budget_->TryTake(wanted - num_taken_)) return false;
    num_taken_ = wanted;
    return true;
  }

 private:
  const std::shared_ptr<BodyBudget> budget_;
  size_t num_taken_ = 0;
};

}  // namespace baton::http

#endif  // BATON_HTTP_BODY_BUDGET_H_
