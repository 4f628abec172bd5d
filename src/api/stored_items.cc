#include "src/api/stored_items.h"

#include <utility>

namespace baton::api {

namespace {

size_t SizeOf(const std::string& key, const std::string& json) {
  return 2 * key.size() + json.size() + kStoredItemOverhead;
}

}  // namespace

std::string StoredItems::KeyOf(const std::string& id) const {
  return tenant_.empty() ? id : tenant_ + "\n" + id;
}

void StoredItems::Put(const std::string& id, std::string json) {
  std::string key = KeyOf(id);
  const size_t size = SizeOf(key, json);
  Shelf& shelf = *shelf_;
  if (json.size() > kMaxStoredItemBytes || size > shelf.max_bytes) return;
  MutexLock lock(shelf.mutex);
  if (!shelf.items.emplace(key, std::move(json)).second) return;
  shelf.keys.push_back(std::move(key));
  shelf.num_bytes += size;
  while (shelf.num_bytes > shelf.max_bytes) {
    const auto oldest = shelf.items.find(shelf.keys.front());
    shelf.num_bytes -= SizeOf(oldest->first, oldest->second);
    shelf.items.erase(oldest);
    shelf.keys.pop_front();
  }
}

std::optional<std::string> StoredItems::Find(const std::string& id) const {
  const std::string key = KeyOf(id);
  MutexLock lock(shelf_->mutex);
  const auto found = shelf_->items.find(key);
  if (found == shelf_->items.end()) return std::nullopt;
  return found->second;
}

}  // namespace baton::api
