// The router's index of prefixes with 1,000,000 blocks over 8 workers: memory, the time of a
// look-up, of a resync, and what lost events do to it.
//
//   prefix_index_bench            prints small tables; about ten seconds
//
// Every prompt has 4096 tokens in blocks of 16, the first 512 of them the one system prompt that
// all workers hold; the rest is held by two workers, as after a hand-off.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "fmt/format.h"

#include "kvcache/hash_chain.h"
#include "src/base/check.h"
#include "src/base/limits.h"
#include "src/router/router_prefix_index.h"

namespace baton::router {

using kv::ChainKey;
using kv::ChainLink;
using kv::ChainLinks;
using kv::DeriveChainKey;
using limits::kMaxPrefixChanges;

namespace {

constexpr uint32_t kBlockSize = 16;
constexpr uint32_t kNumWorkers = 8;
constexpr size_t kNumBlocks = 1'000'000;  // entries over all workers
constexpr size_t kPromptTokens = 4096;
constexpr size_t kSystemTokens = 512;
constexpr size_t kNumLookups = 20'000;

double NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

double Percentile(std::vector<double>& samples, double share) {
  const auto at = samples.begin() + static_cast<ptrdiff_t>(share * (samples.size() - 1));
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

// Prompts, who holds them, and the batches by which the workers tell it.
class Workload {
 public:
  Workload() {
    const ChainKey key = DeriveChainKey("a cluster's secret", "default");
    std::mt19937 random(1);
    std::vector<TokenId> tokens(kPromptTokens);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 50'000);
    const size_t own_blocks = (kPromptTokens - kSystemTokens) / kBlockSize;
    const size_t system_blocks = kSystemTokens / kBlockSize;
    held_.resize(kNumWorkers);
    const std::vector<ChainLink> first = ChainLinks(key, kBlockSize, tokens);
    for (auto& held : held_) held.assign(first.begin(), first.begin() + system_blocks);
    size_t num_entries = kNumWorkers * system_blocks;
    for (uint32_t i = 0; num_entries < kNumBlocks; ++i) {
      for (size_t t = kSystemTokens; t < kPromptTokens; ++t) {
        tokens[t] = static_cast<TokenId>(random() % 50'000);
      }
      prompts_.push_back(tokens);
      const std::vector<ChainLink> links = ChainLinks(key, kBlockSize, tokens);
      for (const uint32_t worker : {i % kNumWorkers, (i + 1 + i / 8 % 7) % kNumWorkers}) {
        held_[worker].insert(held_[worker].end(), links.begin() + system_blocks, links.end());
        num_entries += own_blocks;
      }
    }
    key_ = key;
  }

  const std::vector<std::vector<TokenId>>& prompts() const { return prompts_; }
  std::vector<ChainLink> Links(std::span<const TokenId> tokens) const {
    return ChainLinks(key_, kBlockSize, tokens);
  }
  // A worker's snapshot, in batches of the largest size.
  std::vector<PrefixBatch> Snapshot(uint32_t worker) const {
    std::vector<PrefixBatch> batches;
    const std::vector<ChainLink>& held = held_[worker];
    for (size_t i = 0; i < held.size(); i += kMaxPrefixChanges) {
      PrefixBatch& batch = batches.emplace_back();
      batch.first_sequence = i;
      batch.reset = i == 0;
      for (size_t j = i; j < std::min(i + kMaxPrefixChanges, held.size()); ++j) {
        batch.changes.push_back({held[j], true});
      }
    }
    return batches;
  }
  size_t NumHeld(uint32_t worker) const { return held_[worker].size(); }
  const ChainLink& Held(uint32_t worker, size_t i) const { return held_[worker][i]; }

 private:
  ChainKey key_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<std::vector<ChainLink>> held_;  // by worker
};

// Time of a worker's snapshot: all of it, and the longest that the router's thread is busy at once.
struct SnapshotTime {
  double total_us = 0;
  double longest_us = 0;
};

SnapshotTime Tell(const std::vector<PrefixBatch>& batches, LeaseId worker,
                  RouterPrefixIndex* index) {
  SnapshotTime time;
  for (const PrefixBatch& batch : batches) {
    const double start_us = NowUs();
    const PrefixOutcome outcome = index->Apply(worker, batch, 0);
    const double us = NowUs() - start_us;
    BATON_CHECK(outcome == PrefixOutcome::kApplied, "outcome {}", static_cast<int>(outcome));
    time.total_us += us;
    time.longest_us = std::max(time.longest_us, us);
  }
  return time;
}

void Fill(const Workload& workload, RouterPrefixIndex* index) {
  for (uint32_t w = 0; w < kNumWorkers; ++w) index->AddWorker(LeaseId(w + 1), 0);
  for (uint32_t w = 0; w < kNumWorkers; ++w) Tell(workload.Snapshot(w), LeaseId(w + 1), index);
}

void ShowMemory(const Workload& workload) {
  fmt::print("{:<34} {:>9} {:>10} {:>12} {:>13}\n", "table", "entries", "bytes", "bytes/block",
             "resident MiB");
  for (const uint32_t limit : {1u << 20, kMaxPrefixEntries}) {
    const size_t before = ResidentBytes();
    RouterPrefixIndex index(limit);
    Fill(workload, &index);
    const double resident = static_cast<double>(ResidentBytes() - before) / (1 << 20);
    fmt::print("{:<34} {:>9} {:>10} {:>12.1f} {:>13.1f}\n",
               fmt::format("limit of {} entries", limit), index.num_entries(), index.memory_bytes(),
               static_cast<double>(index.memory_bytes()) / index.num_entries(), resident);
  }
}

void ShowLookups(const Workload& workload, const RouterPrefixIndex& index) {
  fmt::print("\n{:<14} {:>10} {:>10} {:>12} {:>12} {:>12}\n", "prompt tokens", "find p50",
             "find p99", "+hash p50", "+hash p99", "unknown p99");
  std::mt19937 random(2);
  for (const size_t num_tokens : {128u, 512u, 1024u, 2048u, 4096u}) {
    std::vector<double> find_us;
    std::vector<double> both_us;
    std::vector<double> unknown_us;
    size_t found = 0;
    for (size_t i = 0; i < kNumLookups; ++i) {
      const auto& prompt = workload.prompts()[random() % workload.prompts().size()];
      const std::span<const TokenId> tokens = std::span(prompt).first(num_tokens);
      const double start_us = NowUs();
      const std::vector<ChainLink> links = workload.Links(tokens);
      const double hashed_us = NowUs();
      const auto hits = index.Find(links);
      const double end_us = NowUs();
      for (const auto& hit : hits) found += hit.num_blocks == links.size() ? 1 : 0;
      find_us.push_back(end_us - hashed_us);
      both_us.push_back(end_us - start_us);
      std::vector<ChainLink> unknown = links;
      for (ChainLink& link : unknown) link.hi = ~link.hi;
      const double unknown_start_us = NowUs();
      BATON_CHECK(index.Find(unknown).empty(), "an unknown prompt was found");
      unknown_us.push_back(NowUs() - unknown_start_us);
    }
    BATON_CHECK(found >= kNumLookups, "whole prompts were found {} times", found);
    fmt::print("{:<14} {:>7.1f} us {:>7.1f} us {:>9.1f} us {:>9.1f} us {:>9.1f} us\n", num_tokens,
               Percentile(find_us, 0.5), Percentile(find_us, 0.99), Percentile(both_us, 0.5),
               Percentile(both_us, 0.99), Percentile(unknown_us, 0.99));
  }
}

void ShowResync(const Workload& workload, RouterPrefixIndex* index) {
  std::vector<double> total_us;
  double longest_us = 0;
  double sweep_us = 0;
  for (uint32_t w = 0; w < kNumWorkers; ++w) {
    const std::vector<PrefixBatch> batches = workload.Snapshot(w);
    const SnapshotTime time = Tell(batches, LeaseId(w + 1), index);
    total_us.push_back(time.total_us);
    longest_us = std::max(longest_us, time.longest_us);
    while (index->num_stale() > 0) {
      const double start_us = NowUs();
      index->Sweep(1 << 16);
      sweep_us = std::max(sweep_us, NowUs() - start_us);
    }
  }
  fmt::print(
      "\nresync of one worker ({} blocks, {} batches): p50 {:.1f} ms of the router's "
      "thread,\n  at most {:.2f} ms at once; a piece of the sweep behind it at most {:.2f} "
      "ms\n",
      workload.NumHeld(0), workload.Snapshot(0).size(), Percentile(total_us, 0.5) / 1000,
      longest_us / 1000, sweep_us / 1000);
}

// Workers whose caches change, 64 blocks in and 64 out a batch, and who answer a question for a
// resync with what they hold.
class ChangingWorkers {
 public:
  explicit ChangingWorkers(RouterPrefixIndex* index) : index_(index), workers_(kNumWorkers) {
    for (uint32_t w = 0; w < kNumWorkers; ++w) SendAll(w);
  }

  // The next batch of one worker; false: it made the index see a gap.
  bool Change(bool is_lost) {
    const uint32_t w = random_() % kNumWorkers;
    Held& worker = workers_[w];
    PrefixBatch batch;
    batch.first_sequence = worker.next;
    for (size_t i = 0; i < 64; ++i) {
      if (worker.links.size() > 2'000) {
        std::swap(worker.links[random_() % worker.links.size()], worker.links.back());
        batch.changes.push_back({worker.links.back(), false});
        worker.links.pop_back();
      }
      worker.links.push_back({random_(), random_()});
      batch.changes.push_back({worker.links.back(), true});
    }
    worker.next += batch.changes.size();
    now_us_ += 10'000;
    return is_lost || index_->Apply(LeaseId(w + 1), batch, now_us_) != PrefixOutcome::kGap;
  }

  // Answers what the index asks now; how many questions.
  size_t Answer() {
    const std::vector<LeaseId> due = index_->TakeDueResyncs(now_us_);
    for (const LeaseId lease : due) SendAll(static_cast<uint32_t>(lease.value() - 1));
    return due.size();
  }
  void Wait(int64_t us) { now_us_ += us; }

  // Links that the index does not know, or knows and should not.
  size_t NumWrong() const {
    size_t num_wrong = 0;
    for (uint32_t w = 0; w < kNumWorkers; ++w) {
      size_t num_known = 0;
      for (const ChainLink& link : workers_[w].links) {
        const auto hits = index_->Find(std::span(&link, 1));
        num_known += std::count_if(hits.begin(), hits.end(),
                                   [&](const auto& hit) { return hit.worker == LeaseId(w + 1); });
      }
      num_wrong += workers_[w].links.size() - num_known;
      num_wrong += index_->num_links(LeaseId(w + 1)) - num_known;
    }
    return num_wrong;
  }
  size_t NumHeld() const {
    size_t num_held = 0;
    for (const Held& worker : workers_) num_held += worker.links.size();
    return num_held;
  }

 private:
  // One worker's cache and the number of its next change.
  struct Held {
    std::vector<ChainLink> links;
    uint64_t next = 0;
  };

  void SendAll(uint32_t w) {
    PrefixBatch batch;
    batch.reset = true;
    batch.first_sequence = workers_[w].next;
    for (const ChainLink& link : workers_[w].links) batch.changes.push_back({link, true});
    workers_[w].next += batch.changes.size();
    index_->Apply(LeaseId(w + 1), batch, now_us_);
  }

  RouterPrefixIndex* const index_;
  std::vector<Held> workers_;
  std::mt19937_64 random_{3};
  int64_t now_us_ = 0;
};

// One batch in a hundred is lost; at the end index and truth must agree.
void ShowLostEvents(RouterPrefixIndex* index) {
  constexpr int kBatches = 20'000;
  ChangingWorkers workers(index);
  int num_lost = 0;
  int num_gaps = 0;
  size_t num_resyncs = 0;
  for (int i = 0; i < kBatches; ++i) {
    // None of the last 1000 batches is lost, because no later batch might show the gap.
    const bool is_lost = i % 100 == 50 && i + 1'000 < kBatches;
    num_lost += is_lost ? 1 : 0;
    num_gaps += workers.Change(is_lost) ? 0 : 1;
    num_resyncs += workers.Answer();
    index->Sweep(4096);
  }
  // The last questions may still be waiting for their time.
  for (int i = 0; i < 100; ++i) {
    workers.Wait(1'000'000);
    num_resyncs += workers.Answer();
  }
  fmt::print(
      "lost events: {} of {} batches lost in {} s, {} gaps seen, {} resyncs; after them {} "
      "of {} links wrong\n",
      num_lost, kBatches, kBatches / 100, num_gaps, num_resyncs, workers.NumWrong(),
      workers.NumHeld());
  BATON_CHECK(workers.NumWrong() == 0, "{} links are wrong", workers.NumWrong());
}

int Run() {
  const Workload workload;
  ShowMemory(workload);
  RouterPrefixIndex index;
  Fill(workload, &index);
  ShowLookups(workload, index);
  ShowResync(workload, &index);
  ShowLostEvents(&index);
  return 0;
}

}  // namespace
}  // namespace baton::router

int main() { return baton::router::Run(); }
