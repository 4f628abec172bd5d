// SimNetwork: when what one process sends reaches another. A directed channel for each pair, with
// latency, bandwidth, order, and the faults that are at work on it. One thread.
//
// Two kinds of traffic:
//   streams  (router <-> worker) in order, whole, or broken: what a partition holds up arrives when
//            it ends, as TCP sends again
//   data     (prefill <-> decode) as streams, but each message may also come twice, late, out
//            of order, or with a bit flipped: the hand-off calls all of that legal
#ifndef BATON_SIM_SIM_NETWORK_H_
#define BATON_SIM_SIM_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/sim/event_queue.h"
#include "src/sim/sim_draws.h"
#include "src/sim/sim_process.h"

namespace baton::sim {

// A fault at work on one channel until a time: each message meets it with `share`.
struct ChannelFault {
  int64_t until_us = 0;
  double share = 0;
  int64_t max_us = 0;  // longest extra delay
};

// One direction between two processes.
struct SimChannel {
  int64_t latency_us = 50;
  double bytes_per_us = 1000;
  int64_t free_us = 0;     // the sender has sent what it had
  int64_t arrived_us = 0;  // of the last message in order
  int64_t blocked_until_us = 0;
  int64_t slow_until_us = 0;
  double slow_factor = 1;
  ChannelFault delay;
  ChannelFault duplicate;
  ChannelFault reorder;
  ChannelFault flip;
};

// How a data message fares.
struct DataPassage {
  int64_t arrival_us = 0;
  int64_t again_us = -1;    // a second copy arrives then; -1 = none
  bool flips_bit = false;   // in the first copy
  uint64_t flip_place = 0;  // a random number that says where
};

// Messages that met a fault.
struct NetworkCounts {
  uint64_t delayed = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  uint64_t flipped = 0;
  uint64_t held = 0;  // by a partition
};

// See the file comment.
class SimNetwork {
 public:
  SimNetwork(EventQueue* events, uint32_t num_processes, uint64_t seed)
      : events_(events),
        num_processes_(num_processes),
        channels_(size_t{num_processes} * num_processes),
        draws_(StreamSeed(seed, DrawPurpose::kNetwork)) {}

  SimChannel& Channel(uint32_t from, uint32_t to) {
    return channels_[size_t{from} * num_processes_ + to];
  }
  bool IsBlocked(uint32_t from, uint32_t to) const {
    return channels_[size_t{from} * num_processes_ + to].blocked_until_us > events_->now_us();
  }

  // Sends a stream message: `action` runs in `to` when it arrives, unless `from` died before it
  // sent it or `to` is in another life by then.
  template <typename F>
  void Send(const SimProcess& from, SimProcess& to, size_t num_bytes, F&& action) {
    const int64_t sent_us = from.TrueNowUs();
    const int64_t arrival_us = Arrive(Channel(from.index(), to.index()), sent_us, num_bytes);
    to.Post(arrival_us,
            [&from, life = from.life(), sent_us, f = std::forward<F>(action)]() mutable {
              if (from.DidHappen(life, sent_us)) f();
            });
  }

  // When a data message that is sent now arrives, and what happens to it.
  DataPassage PassData(const SimProcess& from, const SimProcess& to, size_t num_bytes);

  // Ends all faults; what a partition holds arrives at its time all the same.
  void EndFaults();
  const NetworkCounts& counts() const { return counts_; }

 private:
  // The time at which a message arrives, in order: after what was sent before.
  int64_t Arrive(SimChannel& channel, int64_t sent_us, size_t num_bytes);
  bool Meets(const ChannelFault& fault, int64_t now_us);

  EventQueue* const events_;
  const uint32_t num_processes_;
  std::vector<SimChannel> channels_;  // [from][to]
  loadgen::RandomDraws draws_;
  NetworkCounts counts_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_NETWORK_H_
