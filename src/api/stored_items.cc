#include "src/api/stored_items.h"

#include <utility>

namespace baton::api {

namespace {

size_t SizeOf(const std::string& id, const std::string& json) {
  return 2 * id.size() + json.size() + kStoredItemOverhead;
}

}  // namespace

void StoredItems::Put(const std::string& id, std::string json) {
  const size_t size = SizeOf(id, json);
  if (json.size() > kMaxStoredItemBytes || size > max_bytes_) return;
  MutexLock lock(mutex_);
  if (!items_.emplace(id, std::move(json)).second) return;
  ids_.push_back(id);
  num_bytes_ += size;
  while (num_bytes_ > max_bytes_) {
    const auto oldest = items_.find(ids_.front());
    num_bytes_ -= SizeOf(oldest->first, oldest->second);
    items_.erase(oldest);
    ids_.pop_front();
  }
}

std::optional<std::string> StoredItems::Find(const std::string& id) const {
  MutexLock lock(mutex_);
  const auto found = items_.find(id);
  if (found == items_.end()) return std::nullopt;
  return found->second;
}

}  // namespace baton::api
