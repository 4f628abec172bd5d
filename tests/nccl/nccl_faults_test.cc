// NcclTransport under thousands of injected faults: every transfer that is not given up arrives,
// with the right bytes and no other; what is closed stays untouched; nothing is left behind.
//
// BATON_NCCL_FAULTS: how many faults (1000). The seed is that of every property
// (tests/test_seed.h).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "tests/count_open_files.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/nccl/loopback_library.h"
#include "tests/patience.h"
#include "tests/test_seed.h"

namespace baton::kv::test {
namespace {

constexpr uint32_t kNumSenders = 3;
constexpr uint32_t kNumReceivers = 2;
constexpr uint32_t kBlocks = 8;  // of one sender, at its own and at each receiver's side
constexpr std::byte kCanary{0xA5};
constexpr const char* kFaults =
    "delay=0.06,delay_us=500,error=0.03,hang=0.02,remote=0.03,death=0.02,corrupt=0.03,call=0.02,"
    "init_hang=0.03,init_error=0.03,silent=0.3";

uint64_t NumFaults() {
  const char* const text = std::getenv("BATON_NCCL_FAULTS");
  return text == nullptr ? 1000 : std::strtoull(text, nullptr, 10);
}

// The counts of one sender.
struct Tally {
  uint64_t transfers = 0;
  uint64_t arrived = 0;
  uint64_t given_up = 0;
  uint64_t resent = 0;
  uint64_t deaths = 0;  // of the sender itself
};

// The ranks of a worker, whose peers have other numbers: 1, 2 and 4 send to 1 and 4.
uint32_t RanksOf(uint32_t index) { return 1u << index; }

// Deadlines as short as a busy machine allows, so that hangs cost little.
void ShortDeadlines(NcclTransportOptions* options) {
  options->timers.build_us = 100'000 * kPatienceFactor;
  options->timers.credit_us = 200'000 * kPatienceFactor;
  options->timers.operation_us = 20'000 * kPatienceFactor;
  options->timers.backoff_min_us = 500;
  options->timers.backoff_max_us = 5'000;
  options->limits.slot_bytes = 6 * SmallLayout().SliceBytes();
  options->limits.max_failures = ~uint32_t{0};  // nobody is given up
  // A slice that is not given back soon fills it.
  options->inbox.max_slices = 64;
}

class Cluster {
 public:
  explicit Cluster(uint64_t seed) : seed_(seed) {
    rig_.tweak_nccl = ShortDeadlines;
    for (uint32_t i = 0; i < kNumReceivers; ++i) {
      rig_.decode_ranks = RanksOf(2 * i);
      receivers_.push_back(rig_.MakeDecode("decode-" + std::to_string(i)));
      for (uint32_t block = 0; block < kNumSenders * kBlocks; ++block) {
        SetBlock(receivers_[i].blocks(), BlockIndex(block), kCanary);
      }
    }
    for (uint32_t i = 0; i < kNumSenders; ++i) senders_.emplace_back(MakeSender(i));
  }

  // Transfers of all senders at once until so many faults were injected.
  void Run(uint64_t num_faults) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kNumSenders; ++i) {
      threads.emplace_back([this, i, num_faults] { RunSender(i, num_faults); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Tally Sum() const {
    Tally sum;
    for (const Tally& tally : tallies_) {
      sum.transfers += tally.transfers;
      sum.arrived += tally.arrived;
      sum.given_up += tally.given_up;
      sum.resent += tally.resent;
      sum.deaths += tally.deaths;
    }
    return sum;
  }

 private:
  Worker MakeSender(uint32_t index) {
    std::vector<const Worker*> peers;
    for (const Worker& receiver : receivers_) peers.push_back(&receiver);
    std::lock_guard lock(rig_mutex_);
    rig_.prefill_ranks = RanksOf(index);
    Worker worker = rig_.MakePrefill("prefill-" + std::to_string(index), peers);
    BATON_CHECK(worker.sink->WaitUp(kNumReceivers), "no connection");
    return worker;
  }

  void RunSender(uint32_t index, uint64_t num_faults) {
    TestRandom random(seed_ * 1000 + index);
    while (nccl_test::Counts().injected() < num_faults && !testing::Test::HasFailure()) {
      // Now and then the whole worker goes, in the middle of a transfer.
      const bool dies = random.OneIn(60);
      RunTransfer(index, &random, dies);
      if (!dies) continue;
      senders_[index].reset();
      senders_[index].emplace(MakeSender(index));
      ++tallies_[index].deaths;
    }
  }

  void RunTransfer(uint32_t index, TestRandom* random, bool dies) {
    Worker& p = *senders_[index];
    Worker& d = receivers_[random->Below(kNumReceivers)];
    Tally& tally = tallies_[index];
    ++tally.transfers;
    const uint32_t count = random->Between(1, kBlocks);
    const Transfer transfer =
        MakeTransfer(next_id_.fetch_add(1), count, random->Below(kBlocks - count + 1),
                     index * kBlocks + random->Below(kBlocks - count + 1));
    FillSource(transfer, p.blocks(), random->Next());
    const std::vector<SliceRef> slices = SlicesOf(transfer, p.blocks());
    ASSERT_TRUE(d.transport->OpenReceive(SpecFor(transfer, p.incarnation)).ok());
    ASSERT_TRUE(Send(&p, d, slices));
    const bool gives_up = dies || random->OneIn(4);
    const uint32_t wanted = random->Below(static_cast<uint32_t>(slices.size()));
    size_t num_bad = 0;
    ASSERT_TRUE(WaitFor([&] {
      const Recorded r = d.sink->Snapshot();
      if (r.complete.contains(transfer.id.value())) return true;
      const auto done = r.slices_done.find(transfer.id.value());
      if (gives_up && (done == r.slices_done.end() ? 0 : done->second) >= wanted) return true;
      // As the hand-off does on a Nack.
      num_bad = Resend(index, d, slices, num_bad);
      return false;
    })) << "transfer "
        << transfer.id.value() << " hangs";
    if (dies) p.transport->Stop();
    const bool is_complete = d.sink->Snapshot().complete.contains(transfer.id.value());
    d.transport->CloseReceive(transfer.id);
    p.transport->CloseSend(d.incarnation, transfer.id);
    ASSERT_TRUE(d.sink->WaitReceiveClosed(transfer.id));
    ASSERT_TRUE(dies || p.sink->WaitSendClosed(d.incarnation, transfer.id));
    if (is_complete) {
      ASSERT_TRUE(Arrived(transfer, p.blocks(), d.blocks())) << "transfer " << transfer.id.value();
    }
    (is_complete ? tally.arrived : tally.given_up) += 1;
    tally.resent += num_bad;
    CheckUntouched(index, transfer, d);
  }

  // Blocks that the transfer did not name hold what they held; its own are set back, and whatever
  // comes late is found the next time.
  static void CheckUntouched(uint32_t index, const Transfer& transfer, const Worker& d) {
    for (uint32_t i = index * kBlocks; i < (index + 1) * kBlocks; ++i) {
      const bool is_own =
          std::any_of(transfer.dest.begin(), transfer.dest.end(),
                      [i](const ReceiveBlock& block) { return block.index == BlockIndex(i); });
      if (is_own) {
        SetBlock(d.blocks(), BlockIndex(i), kCanary);
      } else {
        ASSERT_TRUE(BlockIs(d.blocks(), BlockIndex(i), kCanary)) << "block " << i;
      }
    }
  }

  // Until it is taken: back-pressure is no fault.
  static bool Send(Worker* p, const Worker& d, std::span<const SliceRef> slices) {
    return WaitFor([&] { return p->transport->SendSlices(d.incarnation, slices).ok(); });
  }

  // Sends the slices that were refused after the first `num_known` refusals; returns how many
  // refusals there are.
  size_t Resend(uint32_t index, const Worker& d, const std::vector<SliceRef>& slices,
                size_t num_known) {
    const Recorded recorded = d.sink->Snapshot();
    size_t num_bad = 0;
    for (const BadSlice& bad : recorded.bad_slices) {
      if (bad.transfer != slices[0].transfer || ++num_bad <= num_known) continue;
      const auto slice = std::find_if(slices.begin(), slices.end(), [&](const SliceRef& s) {
        return s.ordinal == bad.ordinal && s.layer == bad.layer;
      });
      EXPECT_TRUE(Send(&*senders_[index], d, {&*slice, 1}));
    }
    return num_bad;
  }

  template <typename Condition>
  static bool WaitFor(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60) * kPatienceFactor;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }

  const uint64_t seed_;
  Rig rig_{TransportKind::kNccl, SmallLayout(), kNumSenders* kBlocks};
  std::mutex rig_mutex_;  // guards rig_
  std::vector<Worker> receivers_;
  std::vector<std::optional<Worker>> senders_;
  std::atomic<uint64_t> next_id_{1};
  Tally tallies_[kNumSenders];
};

TEST(NcclFaults, NoTransferIsWrongOrHangsAndNothingIsLeftBehind) {
  const uint64_t seed = TestSeed();
  nccl_test::Configure("");
  const size_t files = CountOpenFiles();
  const auto begin = std::chrono::steady_clock::now();
  Tally sum;
  {
    Cluster cluster(seed);
    const nccl_test::ScopedFaults faults("seed=" + std::to_string(seed) + "," + kFaults);
    cluster.Run(NumFaults());
    sum = cluster.Sum();
    const nccl_test::LoopbackCounts counts = nccl_test::Counts();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf(
        "seed %llu: %llu faults (delay %llu, error %llu, hang %llu, remote %llu, death %llu, "
        "corrupt %llu, call %llu, init hang %llu, init error %llu, silent abort %llu) and %llu "
        "senders that died in %.1f s: %llu transfers, %llu arrived, %llu given up, %llu slices "
        "sent again after a bad checksum\n",
        static_cast<unsigned long long>(seed), static_cast<unsigned long long>(counts.injected()),
        static_cast<unsigned long long>(counts.delays),
        static_cast<unsigned long long>(counts.errors),
        static_cast<unsigned long long>(counts.hangs),
        static_cast<unsigned long long>(counts.remote_errors),
        static_cast<unsigned long long>(counts.deaths),
        static_cast<unsigned long long>(counts.corruptions),
        static_cast<unsigned long long>(counts.call_errors),
        static_cast<unsigned long long>(counts.init_hangs),
        static_cast<unsigned long long>(counts.init_errors),
        static_cast<unsigned long long>(counts.silent_aborts),
        static_cast<unsigned long long>(sum.deaths), seconds,
        static_cast<unsigned long long>(sum.transfers),
        static_cast<unsigned long long>(sum.arrived), static_cast<unsigned long long>(sum.given_up),
        static_cast<unsigned long long>(sum.resent));
    EXPECT_GE(counts.injected(), NumFaults());
    // Every kind was met, and faults were not all that happened.
    for (const uint64_t count : {counts.delays, counts.errors, counts.hangs, counts.remote_errors,
                                 counts.deaths, counts.corruptions, counts.call_errors,
                                 counts.init_hangs, counts.init_errors, counts.silent_aborts}) {
      EXPECT_GT(count, 0u);
    }
    EXPECT_GT(sum.arrived, sum.transfers / 2);
    EXPECT_GT(sum.resent, 0u);
  }
  const nccl_test::LoopbackCounts left = nccl_test::Counts();
  EXPECT_EQ(left.communicators, 0u);
  EXPECT_EQ(left.operations, 0u);
  EXPECT_EQ(left.registrations, 0u);
  // NCCL has no call that takes back an id; one is lost where the next call failed.
  EXPECT_EQ(CountOpenFiles(), files + left.unique_ids);
}

}  // namespace
}  // namespace baton::kv::test
