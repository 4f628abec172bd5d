#include "kvcache/transport/nccl/nccl_comm.h"

#include <utility>

namespace baton::kv {

using device::LaunchGate;

namespace {

// Streaming multiprocessors that a transfer may take from the kernels of a step.
constexpr int kMaxCtas = 4;
constexpr int kNumRanks = 2;

}  // namespace

Status NcclComm::MakeId(const nccl::NcclTable* table, LaunchGate* gate, nccl::UniqueId* id) {
  // The first one initialises NCCL.
  const LaunchGate::Call call(gate);
  return nccl::ToStatus(*table, "ncclGetUniqueId", table->ncclGetUniqueId(id));
}

StatusOr<std::unique_ptr<NcclComm>> NcclComm::Start(const nccl::NcclTable* table, LaunchGate* gate,
                                                    const nccl::UniqueId& id, int rank) {
  std::unique_ptr<NcclComm> comm(new NcclComm(table, gate, rank));
  comm->Hold();
  nccl::Config config;
  config.blocking = 0;
  config.max_ctas = kMaxCtas;
  const nccl::Result result =
      table->ncclCommInitRankConfig(&comm->comm_, kNumRanks, id, rank, &config);
  BATON_RETURN_IF_ERROR(nccl::ToStatus(*table, "ncclCommInitRankConfig", result));
  return comm;
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
  // This Call comes beside the one that the communicator holds already, which may have lapsed.
  const LaunchGate::Call call(gate_);
  (void)table_->ncclCommAbort(comm_);
}

StatusOr<bool> NcclComm::Poll() {
  nccl::Result state = nccl::kInProgress;
  const nccl::Result asked = table_->ncclCommGetAsyncError(comm_, &state);
  if (asked != nccl::kSuccess || state != nccl::kInProgress) call_.reset();
  BATON_RETURN_IF_ERROR(nccl::ToStatus(*table_, "ncclCommGetAsyncError", asked));
  BATON_RETURN_IF_ERROR(nccl::ToStatus(*table_, "NCCL", state));
  return state == nccl::kSuccess;
}

void NcclComm::Register(std::span<std::byte> memory) {
  if (table_->ncclCommRegister == nullptr || table_->ncclCommDeregister == nullptr) return;
  const LaunchGate::Call call(gate_);
  const nccl::Result result =
      table_->ncclCommRegister(comm_, memory.data(), memory.size(), &registration_);
  if (result != nccl::kSuccess) registration_ = nullptr;
}

Status NcclComm::Send(std::span<const std::byte> bytes, void* stream) {
  Hold();
  return nccl::ToStatus(
      *table_, "ncclSend",
      table_->ncclSend(bytes.data(), bytes.size(), nccl::kUint8, 1 - rank_, comm_, stream));
}

Status NcclComm::Receive(std::span<std::byte> bytes, void* stream) {
  Hold();
  return nccl::ToStatus(
      *table_, "ncclRecv",
      table_->ncclRecv(bytes.data(), bytes.size(), nccl::kUint8, 1 - rank_, comm_, stream));
}

bool NcclComm::Finish() {
  if (comm_ == nullptr) return true;
  Hold();
  StatusOr<bool> polled = Poll();
  if (polled.ok() && *polled && !is_finalized_) {
    Hold();
    if (registration_ != nullptr) {
      (void)table_->ncclCommDeregister(comm_, std::exchange(registration_, nullptr));
    }
    // NCCL would refuse to finalize a communicator that is not ready, which would then fail.
    (void)table_->ncclCommFinalize(comm_);
    is_finalized_ = true;
    polled = Poll();
  }
  if (polled.ok() && !*polled) return false;
  Hold();
  // A communicator that has failed can only be aborted.
  if (polled.ok() && table_->ncclCommDestroy(comm_) == nccl::kSuccess) comm_ = nullptr;
  if (comm_ != nullptr) (void)table_->ncclCommAbort(std::exchange(comm_, nullptr));
  call_.reset();
  return true;
}

}  // namespace baton::kv
