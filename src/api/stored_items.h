// StoredItems: items of answers of OpenAI's Responses API that a later request names by id.
// @ai-sdk/openai sends {"type":"item_reference"} for an item that it got, unless `store` is false.
// Any thread.
//
// 1. The sizes of all kept items together are at most the limit. The oldest make room for new ones.
// 2. An id keeps its first item: every retry of an answer has the same items.
// 3. Whoever knows an id gets the item. Ids hold 128 random bits.
#ifndef BATON_API_STORED_ITEMS_H_
#define BATON_API_STORED_ITEMS_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "src/base/mutex.h"

namespace baton::api {

// One router's items: about 30,000 answers of 500 tokens (2 KiB).
inline constexpr size_t kMaxStoredItemsBytes = size_t{64} << 20;
// A larger item is not kept: it would displace too many others.
inline constexpr size_t kMaxStoredItemBytes = size_t{1} << 20;
// What an item takes besides its text and its id, which stands in both containers.
inline constexpr size_t kStoredItemOverhead = 256;

// See the file comment.
class StoredItems {
 public:
  explicit StoredItems(size_t max_bytes = kMaxStoredItemsBytes) : max_bytes_(max_bytes) {}

  // Keeps the JSON of an item, if it is small enough.
  void Put(const std::string& id, std::string json);
  // The JSON of an item; nothing = it was not kept, or made room for newer ones.
  std::optional<std::string> Find(const std::string& id) const;

 private:
  const size_t max_bytes_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::string> items_ BATON_GUARDED_BY(mutex_);  // by id
  std::deque<std::string> ids_ BATON_GUARDED_BY(mutex_);                         // oldest first
  size_t num_bytes_ BATON_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::api

#endif  // BATON_API_STORED_ITEMS_H_
