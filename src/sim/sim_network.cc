#include "src/sim/sim_network.h"

#include <algorithm>

namespace baton::sim {
namespace {

// Latency varies by up to this share of itself.
constexpr double kJitter = 0.5;

}  // namespace

bool SimNetwork::Meets(const ChannelFault& fault, int64_t now_us) {
  return now_us < fault.until_us && Happens(draws_, fault.share);
}

int64_t SimNetwork::Arrive(SimChannel& channel, int64_t sent_us, size_t num_bytes) {
  const double factor = sent_us < channel.slow_until_us ? channel.slow_factor : 1;
  const auto sending_us =
      static_cast<int64_t>(static_cast<double>(num_bytes) / channel.bytes_per_us * factor);
  channel.free_us = std::max(channel.free_us, sent_us) + sending_us;
  const double jitter = 1 + kJitter * draws_.Uniform();
  const auto latency_us = static_cast<int64_t>(static_cast<double>(channel.latency_us) * jitter);
  int64_t arrival_us = channel.free_us + latency_us;
  if (channel.blocked_until_us > sent_us) {
    ++counts_.held;
    arrival_us = std::max(arrival_us, channel.blocked_until_us + latency_us);
  }
  if (Meets(channel.delay, sent_us)) {
    ++counts_.delayed;
    arrival_us +=
        1 + static_cast<int64_t>(draws_.Below(static_cast<uint64_t>(channel.delay.max_us)));
  }
  channel.arrived_us = std::max(channel.arrived_us, arrival_us);
  return channel.arrived_us;
}

DataPassage SimNetwork::PassData(const SimProcess& from, const SimProcess& to, size_t num_bytes) {
  SimChannel& channel = Channel(from.index(), to.index());
  const int64_t sent_us = from.TrueNowUs();
  DataPassage passage;
  passage.arrival_us = Arrive(channel, sent_us, num_bytes);
  const auto extra_us = [this](const ChannelFault& fault) {
    return 1 + static_cast<int64_t>(draws_.Below(static_cast<uint64_t>(fault.max_us)));
  };
  if (Meets(channel.reorder, sent_us)) {
    ++counts_.reordered;
    passage.arrival_us += extra_us(channel.reorder);
  }
  if (Meets(channel.duplicate, sent_us)) {
    ++counts_.duplicated;
    passage.again_us = passage.arrival_us + extra_us(channel.duplicate);
  }
  if (Meets(channel.flip, sent_us)) {
    ++counts_.flipped;
    passage.flips_bit = true;
    passage.flip_place = draws_.NextU64();
  }
  return passage;
}

void SimNetwork::EndFaults() {
  for (SimChannel& channel : channels_) {
    channel.blocked_until_us = std::min(channel.blocked_until_us, events_->now_us());
    channel.slow_until_us = 0;
    channel.delay = channel.duplicate = channel.reorder = channel.flip = ChannelFault{};
  }
}

}  // namespace baton::sim
