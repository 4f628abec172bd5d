#include "kvcache/transport/ipc/device_pools.h"

#include <algorithm>

#include "src/base/checked_math.h"

namespace baton {

StatusOr<std::unique_ptr<DevicePools>> DevicePools::Create(Accelerator* device,
                                                           const KvMemory& memory) {
  std::unique_ptr<DevicePools> pools(new DevicePools(memory));
  device->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(pools->fd_, device->ExportShared(memory.base));
  BATON_ASSIGN_OR_RETURN(pools->importer_, device->Share());
  device->MakeCurrent();
  return pools;
}

Status DevicePools::Take(Incarnation peer, uint32_t num_blocks, UniqueFd fd) {
  const auto size_bytes = CheckedMul(num_blocks, memory_.layout.BlockStride());
  if (!size_bytes.has_value() || *size_bytes == 0) {
    return FailedPrecondition("the peer's pool claims {} blocks", num_blocks);
  }
  if (!fd.valid()) return FailedPrecondition("the peer passed no pool");
  std::lock_guard lock(mutex_);
  importer_->MakeCurrent();
  StatusOr<const std::byte*> base = importer_->ImportShared(fd, *size_bytes);
  if (!base.ok()) {
    return FailedPrecondition("the peer's pool of {} bytes: {}", *size_bytes,
                              std::string(base.status().message()));
  }
  ++num_mapped_;
  taken_.emplace_back(
      peer, std::shared_ptr<const PeerPool>(new PeerPool{*base, num_blocks},
                                            [this](const PeerPool* pool) { Release(pool); }));
  return OkStatus();
}

void DevicePools::Release(const PeerPool* pool) {
  std::lock_guard lock(mutex_);
  importer_->MakeCurrent();
  importer_->ReleaseShared(pool->base);
  --num_mapped_;
  delete pool;
}

std::shared_ptr<const PeerPool> DevicePools::Claim(Incarnation peer) {
  std::lock_guard lock(mutex_);
  const auto entry = std::find_if(taken_.begin(), taken_.end(),
                                  [peer](const auto& taken) { return taken.first == peer; });
  if (entry == taken_.end()) return nullptr;
  std::shared_ptr<const PeerPool> pool = std::move(entry->second);
  taken_.erase(entry);
  return pool;
}

uint32_t DevicePools::num_mapped() const {
  std::lock_guard lock(mutex_);
  return num_mapped_;
}

}  // namespace baton
