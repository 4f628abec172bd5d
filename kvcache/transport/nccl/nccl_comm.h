// NcclComm: one rank of a communicator of two, never waited for: every call returns at once, and
// Poll tells what has become of it. Rank 0 sends, rank 1 receives.
//
// Owned by one thread. Destroying it aborts what is under way; then NCCL touches no memory of ours
// any more. The table outlives it.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_COMM_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_COMM_H_

#include <cstddef>
#include <memory>
#include <span>

#include "kvcache/transport/nccl/nccl_library.h"

namespace baton {

// See the file comment.
class NcclComm {
 public:
  // Begins to build it on the device that is current. Unavailable with NCCL's words.
  static StatusOr<std::unique_ptr<NcclComm>> Start(const nccl::NcclTable* table,
                                                   const nccl::UniqueId& id, int rank);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Whether all that was asked of it so far is accepted: built, or the last operation in its
  // stream. Unavailable once it has failed; then it can only be destroyed.
  StatusOr<bool> Poll();
  // Tells NCCL of memory that operations will use, once it is built; what NCCL cannot use in a
  // better way for it is no error.
  void Register(std::span<std::byte> memory);
  // One operation of all bytes. An event of the stream is recorded when Poll says true.
  Status Send(std::span<const std::byte> bytes, void* stream);
  Status Receive(std::span<std::byte> bytes, void* stream);
  // Nothing is under way: ends it in agreement with the other side, as far as that needs none.
  // True when it is gone; else to be called again, or destroyed.
  bool Finish();

 private:
  NcclComm(const nccl::NcclTable* table, int rank) : table_(table), rank_(rank) {}

  const nccl::NcclTable* const table_;
  const int rank_;
  nccl::Comm* comm_ = nullptr;
  void* registration_ = nullptr;
  bool is_finalized_ = false;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_COMM_H_
