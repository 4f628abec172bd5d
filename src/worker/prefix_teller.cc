#include "src/worker/prefix_teller.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/limits.h"

namespace baton::worker {

using kv::ChainLink;
using kv::ChainToBytes;
using kv::PrefixChange;

void PrefixCopy::Apply(std::span<const PrefixChange> changes) {
  for (const PrefixChange& change : changes) {
    if (change.added) {
      ordinals_[change.link] = change.ordinal;
    } else {
      ordinals_.erase(change.link);
    }
  }
}

std::vector<PrefixChange> PrefixCopy::InOrder() const {
  std::vector<PrefixChange> held;
  held.reserve(ordinals_.size());
  for (const auto& [link, ordinal] : ordinals_) held.push_back({link, true, ordinal});
  std::sort(held.begin(), held.end(),
            [](const PrefixChange& a, const PrefixChange& b) { return a.ordinal < b.ordinal; });
  return held;
}

void PrefixTeller::Take(std::span<const PrefixChange> changes, const PrefixCopy& held) {
  const size_t limit = 2 * held.size() + limits::kMaxPrefixChanges;
  if (!tell_all_ && waiting_.size() + changes.size() <= limit) {
    waiting_.insert(waiting_.end(), changes.begin(), changes.end());
    return;
  }
  tell_all_ = false;
  reset_ = true;
  const std::vector<PrefixChange> all = held.InOrder();
  waiting_.assign(all.begin(), all.end());
}

v1::PrefixEvents PrefixTeller::NextBatch() {
  const size_t num_changes = std::min(waiting_.size(), limits::kMaxPrefixChanges);
  std::vector<ChainLink> links;
  links.reserve(num_changes);
  std::string removed((num_changes + 7) / 8, '\0');
  for (size_t i = 0; i < num_changes; ++i) {
    const PrefixChange& change = waiting_[i];
    links.push_back(change.link);
    if (!change.added) removed[i / 8] = static_cast<char>(removed[i / 8] | 1 << (i % 8));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(num_changes));
  while (!removed.empty() && removed.back() == '\0') removed.pop_back();
  v1::PrefixEvents events;
  events.set_first_sequence(std::exchange(next_sequence_, next_sequence_ + num_changes));
  events.set_reset(std::exchange(reset_, false));
  events.set_links(ChainToBytes(links));
  events.set_removed(removed);
  return events;
}

}  // namespace baton::worker
