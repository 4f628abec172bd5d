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
  std::sort(held.begin(), held.end(), [](const PrefixChange& a, const PrefixChange& b) {
    return a.ordinal != b.ordinal ? a.ordinal < b.ordinal : a.link < b.link;
  });
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

PrefixNews PrefixTeller::NextNews() {
  PrefixNews news;
  const size_t num_changes = std::min(waiting_.size(), limits::kMaxPrefixChanges);
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(num_changes);
  news.changes.assign(waiting_.begin(), end);
  waiting_.erase(waiting_.begin(), end);
  news.first_sequence = std::exchange(next_sequence_, next_sequence_ + num_changes);
  news.reset = std::exchange(reset_, false);
  return news;
}

v1::PrefixEvents PrefixTeller::NextBatch() {
  v1::PrefixEvents events;
  ToProto(NextNews(), &events);
  return events;
}

void ToProto(const PrefixNews& news, v1::PrefixEvents* out) {
  std::vector<ChainLink> links;
  links.reserve(news.changes.size());
  std::string removed((news.changes.size() + 7) / 8, '\0');
  for (size_t i = 0; i < news.changes.size(); ++i) {
    const PrefixChange& change = news.changes[i];
    links.push_back(change.link);
    if (!change.added) removed[i / 8] = static_cast<char>(removed[i / 8] | 1 << (i % 8));
  }
  while (!removed.empty() && removed.back() == '\0') removed.pop_back();
  out->set_first_sequence(news.first_sequence);
  out->set_reset(news.reset);
  out->set_links(ChainToBytes(links));
  out->set_removed(removed);
}

}  // namespace baton::worker
