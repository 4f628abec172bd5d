#include "kvcache/grant_park.h"

#include <algorithm>
#include <utility>

namespace baton::kv {
namespace {

auto Of(const RequestUid& uid, uint32_t attempt, Incarnation decode) {
  return [uid, attempt, decode](const auto& parked) {
    const Grant& grant = parked.grant;
    return grant.key.uid == uid && grant.key.attempt == attempt &&
           grant.decode_incarnation == decode;
  };
}

}  // namespace

GrantPark::GrantPark() { parked_.reserve(kCapacity); }

bool GrantPark::Park(Grant grant, int64_t now_us) {
  const auto same = std::find_if(parked_.begin(), parked_.end(),
                                 Of(grant.key.uid, grant.key.attempt, grant.decode_incarnation));
  // A repeated grant keeps its place and its deadline, or a chatty decode worker could hold a place
  // for ever.
  if (same != parked_.end()) {
    same->grant = std::move(grant);
    return true;
  }
  if (parked_.size() >= kCapacity) return false;
  parked_.push_back({std::move(grant), now_us});
  return true;
}

std::optional<Grant> GrantPark::Take(const RequestUid& uid, uint32_t attempt, Incarnation decode) {
  const auto found = std::find_if(parked_.begin(), parked_.end(), Of(uid, attempt, decode));
  if (found == parked_.end()) return std::nullopt;
  std::optional<Grant> grant(std::move(found->grant));
  parked_.erase(found);
  return grant;
}

bool GrantPark::Drop(const RequestUid& uid, uint32_t attempt, Incarnation decode) {
  return Take(uid, attempt, decode).has_value();
}

void GrantPark::Expire(int64_t now_us, std::vector<Grant>* expired) {
  size_t count = 0;
  while (count < parked_.size() && now_us - parked_[count].since_us >= kParkUs) {
    expired->push_back(std::move(parked_[count].grant));
    ++count;
  }
  parked_.erase(parked_.begin(), parked_.begin() + static_cast<std::ptrdiff_t>(count));
}

int64_t GrantPark::NextDeadlineUs() const {
  return parked_.empty() ? INT64_MAX : parked_.front().since_us + kParkUs;
}

}  // namespace baton::kv
