#include "kvcache/transport/ipc/device_pools.h"

#include <algorithm>

#include "kvcache/transport/slice_device.h"
#include "src/base/checked_math.h"

namespace baton::kv {

using device::Accelerator;
using device::LaunchGate;

StatusOr<std::unique_ptr<DevicePools>> DevicePools::Create(std::span<Accelerator* const> ranks,
                                                           const KvMemory& memory,
                                                           LaunchGate* gate) {
  std::unique_ptr<DevicePools> pools(new DevicePools(memory, gate));
  for (size_t rank = 0; rank < memory.num_ranks(); ++rank) {
    ranks[rank]->MakeCurrent();
    BATON_ASSIGN_OR_RETURN(
        pools->fds_.emplace_back(),
        ranks[rank]->ExportShared(memory.ranks.empty() ? memory.base : memory.ranks[rank]));
  }
  ranks[0]->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Accelerator> importer, ranks[0]->Share());
  {
    MutexLock lock(pools->importer_mutex_);
    pools->importer_ = std::move(importer);
  }
  ranks[0]->MakeCurrent();
  return pools;
}

std::vector<int> DevicePools::fds() const {
  std::vector<int> fds;
  for (const UniqueFd& fd : fds_) fds.push_back(fd.get());
  return fds;
}

Status DevicePools::Take(Incarnation peer, uint32_t num_blocks, std::vector<UniqueFd> fds) {
  if (fds.empty()) return FailedPrecondition("the peer passed no pool");
  const auto num_ranks = static_cast<uint32_t>(fds.size());
  BATON_RETURN_IF_ERROR(WithPrefix(CheckSliceSize(memory_.layout, num_ranks), "the peer's pool"));
  KvMemory memory{nullptr, memory_.layout, num_blocks};
  const auto size_bytes =
      CheckedMul(num_blocks, RankLayout(memory_.layout, num_ranks).BlockStride());
  if (!size_bytes.has_value() || *size_bytes == 0) {
    return FailedPrecondition("the peer's pool claims {} blocks", num_blocks);
  }
  BATON_RETURN_IF_ERROR(Map(fds, *size_bytes, &memory));
  MutexLock lock(mutex_);
  ++num_mapped_;
  taken_.emplace_back(
      peer, std::shared_ptr<const PeerPool>(new PeerPool{std::move(memory)},
                                            [this](const PeerPool* pool) { Release(pool); }));
  return OkStatus();
}

// A step may be launched between two parts.
Status DevicePools::Map(const std::vector<UniqueFd>& fds, uint64_t size_bytes, KvMemory* memory) {
  MutexLock lock(importer_mutex_);
  Accelerator& importer = *importer_;
  importer.MakeCurrent();
  for (const UniqueFd& fd : fds) {
    const StatusOr<const std::byte*> base = [&] {
      const LaunchGate::Call call(gate_);
      return importer.ImportShared(fd, size_bytes);
    }();
    if (!base.ok()) {
      Unmap(*memory);
      return FailedPrecondition("the peer's pool of {} bytes, part {} of {}: {}", size_bytes,
                                memory->ranks.size() + 1, fds.size(),
                                std::string(base.status().message()));
    }
    memory->ranks.push_back(const_cast<std::byte*>(*base));  // see PeerPool
  }
  memory->base = memory->ranks[0];
  return OkStatus();
}

void DevicePools::Unmap(const KvMemory& memory) {
  importer_->MakeCurrent();
  for (const std::byte* const rank : memory.ranks) {
    const LaunchGate::Call call(gate_);
    importer_->ReleaseShared(rank);
  }
}

void DevicePools::Release(const PeerPool* pool) {
  {
    MutexLock lock(importer_mutex_);
    Unmap(pool->memory);
  }
  delete pool;
  MutexLock lock(mutex_);
  --num_mapped_;
}

std::shared_ptr<const PeerPool> DevicePools::Claim(Incarnation peer) {
  MutexLock lock(mutex_);
  const auto entry = std::find_if(taken_.begin(), taken_.end(),
                                  [peer](const auto& taken) { return taken.first == peer; });
  if (entry == taken_.end()) return nullptr;
  std::shared_ptr<const PeerPool> pool = std::move(entry->second);
  taken_.erase(entry);
  return pool;
}

uint32_t DevicePools::num_mapped() const {
  MutexLock lock(mutex_);
  return num_mapped_;
}

}  // namespace baton::kv
