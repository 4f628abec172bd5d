// NcclComm: one rank of a communicator of two. Until its end every call returns at once, and Poll
// tells what has become of it; Finish and the destructor may wait (comm_ender.h). Rank 0 sends,
// rank 1 receives.
//
// A call that may allocate, map or wait on a device is a Call of the gate. The building is one,
// from its start until a poll says that it is built, or is not. Each operation is one until NCCL
// has taken it, since the first connects and allocates in a thread of NCCL's. Registering and
// ending are Calls too. Calls lapse (LaunchGate::kMaxHoldUs), so that a peer that hangs holds up no
// step for longer.
//
// Owned by one thread at a time. Destroying it aborts what is under way; then NCCL touches no
// memory of ours any more. The table and the gate outlive it.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_COMM_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_COMM_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "kvcache/transport/nccl/nccl_library.h"
#include "src/device/launch_gate.h"

namespace baton::kv {

// See the file comment.
class NcclComm {
 public:
  // Makes the id that names a communicator for both sides. A thread of NCCL's waits until both have
  // joined, for ever where one does not. Unavailable with NCCL's words.
  static Status MakeId(const nccl::NcclTable* table, device::LaunchGate* gate, nccl::UniqueId* id);
  // Begins to build it on the device that is current. Unavailable with NCCL's words. `gate` may be
  // null.
  static StatusOr<std::unique_ptr<NcclComm>> Start(const nccl::NcclTable* table,
                                                   device::LaunchGate* gate,
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
  NcclComm(const nccl::NcclTable* table, device::LaunchGate* gate, int rank)
      : table_(table), gate_(gate), rank_(rank) {}
  void Hold() {
    if (!call_.has_value()) call_.emplace(gate_);
  }

  const nccl::NcclTable* const table_;
  device::LaunchGate* const gate_;
  const int rank_;
  nccl::Comm* comm_ = nullptr;
  void* registration_ = nullptr;
  bool is_finalized_ = false;
  std::optional<device::LaunchGate::Call>
      call_;  // while something is asked that a poll has not confirmed
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_COMM_H_
