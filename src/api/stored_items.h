// StoredItems: items of answers of OpenAI's Responses API that a later request names by id.
// @ai-sdk/openai sends {"type":"item_reference"} for an item that it got, unless `store` is false.
// Any thread.
//
// 1. The sizes of all kept items together are at most the limit. The oldest make room for new ones.
// 2. An id keeps its first item: every retry of an answer has the same items.
// 3. A tenant finds its own items alone. Among clients without keys, whoever knows an id gets the
//    item. Ids hold 128 random bits.
#ifndef BATON_API_STORED_ITEMS_H_
#define BATON_API_STORED_ITEMS_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "src/base/mutex.h"

namespace baton::api {

// One router's items: about 30,000 answers of 500 tokens (2 KiB).
inline constexpr size_t kMaxStoredItemsBytes = size_t{64} << 20;
// A larger item is not kept: it would displace too many others.
inline constexpr size_t kMaxStoredItemBytes = size_t{1} << 20;
// Bytes that an item takes besides its text and its id, which stands in both containers.
inline constexpr size_t kStoredItemOverhead = 256;

// See the file comment.
class StoredItems {
 public:
  explicit StoredItems(size_t max_bytes = kMaxStoredItemsBytes)
      : shelf_(std::make_shared<Shelf>(max_bytes)) {}

  // The items of one tenant, among those that share the limit; "" = of clients without keys.
  StoredItems Of(std::string tenant) const { return StoredItems(shelf_, std::move(tenant)); }

  // Keeps the JSON of an item, if it is small enough.
  void Put(const std::string& id, std::string json);
  // The JSON of an item; nothing = it was not kept, or made room for newer ones.
  std::optional<std::string> Find(const std::string& id) const;

 private:
  // The items of all tenants, within one limit.
  struct Shelf {
    explicit Shelf(size_t max) : max_bytes(max) {}

    const size_t max_bytes;
    Mutex mutex;
    std::unordered_map<std::string, std::string> items BATON_GUARDED_BY(mutex);  // by KeyOf
    std::deque<std::string> keys BATON_GUARDED_BY(mutex);                        // oldest first
    size_t num_bytes BATON_GUARDED_BY(mutex) = 0;
  };

  StoredItems(std::shared_ptr<Shelf> shelf, std::string tenant)
      : shelf_(std::move(shelf)), tenant_(std::move(tenant)) {}
  // The id, after the tenant where there is one. No id has a line break.
  std::string KeyOf(const std::string& id) const;

  const std::shared_ptr<Shelf> shelf_;
  const std::string tenant_;
};

}  // namespace baton::api

#endif  // BATON_API_STORED_ITEMS_H_
