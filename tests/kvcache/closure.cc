#include "tests/kvcache/closure.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace baton::kv {
namespace {

// Hashes are uniform already.
struct TakeLow {
  size_t operator()(const Hash128& hash) const { return hash.lo; }
};

// A breadth-first search; see closure.h.
class Search {
 public:
  Search(const ClusterShape& shape, uint64_t max_states) : shape_(shape), max_states_(max_states) {}

  Closure Run() {
    const auto begin = std::chrono::steady_clock::now();
    Visit(ClusterWorld(&shape_), 0, {}, /*good=*/false);
    while (!open_.empty() && result_.bug.empty() && known_.size() <= max_states_) {
      std::vector<Open> level = std::exchange(open_, {});
      result_.peak_frontier = std::max<uint64_t>(result_.peak_frontier, level.size());
      ++result_.depth;
      for (Open& open : level) {
        Expand(open);
        open.world.reset();
        if (!result_.bug.empty()) break;
      }
    }
    result_.states = known_.size();
    result_.closed = result_.bug.empty() && open_.empty();
    if (result_.closed) CheckRest();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    result_.seconds = spent.count();
    return result_;
  }

 private:
  // A state that was reached and not left yet.
  struct Open {
    std::optional<ClusterWorld> world;
    uint32_t id = 0;
  };
  // How a state was reached first.
  struct Origin {
    uint32_t from = 0;
    ClusterStep step;
  };

  void Expand(const Open& open) {
    open.world->Steps(&steps_);
    for (const ClusterStep& step : steps_) {
      ClusterWorld next = *open.world;
      next.Do(step);
      ++result_.transitions;
      Visit(std::move(next), open.id, step, !step.is_fault());
      if (!result_.bug.empty()) return;
    }
  }

  void Visit(ClusterWorld world, uint32_t from, ClusterStep step, bool good) {
    Hash128 hash;
    world.Fingerprint(&scratch_, &hash);
    const auto next_id = static_cast<uint32_t>(origins_.size());
    const auto [it, is_new] = known_.try_emplace(hash, next_id);
    if (good && it->second != from) edges_.push_back({from, it->second});
    if (!world.Bug().empty() && result_.bug.empty()) {
      result_.bug = world.Bug() + " in " + world.ToString() + "\nafter:\n" + Path(from, step);
    }
    if (!is_new) return;
    origins_.push_back({from, step});
    if (world.IsAtRest()) {
      ++result_.at_rest;
      result_.done += world.IsDone();
      resting_.push_back(next_id);
    }
    open_.push_back({std::move(world), next_id});
  }

  // Backwards from the states at rest over the steps that are no faults: what is not met can leak.
  void CheckRest() {
    std::vector<uint32_t> starts(origins_.size() + 1);
    for (const auto& [from, to] : edges_) ++starts[to];
    uint32_t sum = 0;
    for (uint32_t& start : starts) sum += std::exchange(start, sum);
    std::vector<uint32_t> into(edges_.size());
    for (const auto& [from, to] : edges_) into[starts[to]++] = from;
    // Now starts[i] is the end of i's edges, and starts[i - 1] their begin.
    std::vector<bool> ends(origins_.size());
    std::vector<uint32_t> stack = resting_;
    for (const uint32_t id : stack) ends[id] = true;
    while (!stack.empty()) {
      const uint32_t id = stack.back();
      stack.pop_back();
      for (uint32_t e = id == 0 ? 0 : starts[id - 1]; e < starts[id]; ++e) {
        if (ends[into[e]]) continue;
        ends[into[e]] = true;
        stack.push_back(into[e]);
      }
    }
    const auto stuck = std::find(ends.begin(), ends.end(), false);
    if (stuck == ends.end()) return;
    const auto id = static_cast<uint32_t>(stuck - ends.begin());
    result_.bug = "no way to rest from " + Replay(id).ToString() + "\nafter:\n" +
                  Path(origins_[id].from, origins_[id].step);
  }

  std::vector<ClusterStep> StepsTo(uint32_t id) const {
    std::vector<ClusterStep> steps;
    for (; id != 0; id = origins_[id].from) steps.push_back(origins_[id].step);
    std::reverse(steps.begin(), steps.end());
    return steps;
  }
  ClusterWorld Replay(uint32_t id) const {
    ClusterWorld world(&shape_);
    for (const ClusterStep& step : StepsTo(id)) world.Do(step);
    return world;
  }
  std::string Path(uint32_t from, ClusterStep last) const {
    ClusterWorld world(&shape_);
    std::string text;
    std::vector<ClusterStep> steps = StepsTo(from);
    steps.push_back(last);
    for (const ClusterStep& step : steps) {
      text += fmt::format("  step {} ({}, {}) at: {}\n", static_cast<int>(step.kind), step.a,
                          step.b, world.ToString());
      world.Do(step);
    }
    return text;
  }

  const ClusterShape shape_;
  const uint64_t max_states_;
  Closure result_;
  absl::flat_hash_map<Hash128, uint32_t, TakeLow> known_;
  std::vector<Origin> origins_;                       // by id
  std::vector<std::pair<uint32_t, uint32_t>> edges_;  // steps that are no faults
  std::vector<uint32_t> resting_;
  std::vector<Open> open_;
  std::vector<ClusterStep> steps_;
  std::string scratch_;
};

}  // namespace

Closure ExploreToClosure(const ClusterShape& shape, uint64_t max_states) {
  return Search(shape, max_states).Run();
}

}  // namespace baton::kv
