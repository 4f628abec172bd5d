// The counters behind TransportStats: written by the transport's thread, read by any.
#ifndef BATON_KVCACHE_TRANSPORT_TRANSPORT_COUNTERS_H_
#define BATON_KVCACHE_TRANSPORT_TRANSPORT_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/transport/transport_types.h"
#include "src/base/mutex.h"

namespace baton::kv {

// A number that only grows; relaxed, since nobody orders anything by it.
class EventCounter {
 public:
  void Add(uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// One field per field of TransportStats.
struct TransportCounters {
  std::array<EventCounter, kNumBadSliceReasons> bad_slices;
  std::array<EventCounter, kNumCloseReasons> closes;
  EventCounter slices_received;
  EventCounter bytes_received;
  EventCounter slices_sent;
  EventCounter controls_sent;
  EventCounter controls_received;
  EventCounter controls_expired;
  EventCounter connections;
  EventCounter tls_connections;
  EventCounter tls_bytes_received;

  void AddBadSlice(BadSliceReason reason) { bad_slices[static_cast<size_t>(reason)].Add(); }
  void AddClose(CloseReason reason) { closes[static_cast<size_t>(reason)].Add(); }

  TransportStats Snapshot() const {
    TransportStats stats;
    for (size_t i = 0; i < kNumBadSliceReasons; ++i) stats.bad_slices[i] = bad_slices[i].value();
    for (size_t i = 0; i < kNumCloseReasons; ++i) stats.closes[i] = closes[i].value();
    stats.slices_received = slices_received.value();
    stats.bytes_received = bytes_received.value();
    stats.slices_sent = slices_sent.value();
    stats.controls_sent = controls_sent.value();
    stats.controls_received = controls_received.value();
    stats.controls_expired = controls_expired.value();
    stats.connections = connections.value();
    stats.tls_connections = tls_connections.value();
    stats.tls_bytes_received = tls_bytes_received.value();
    return stats;
  }
};

// Byte counts of one connection.
struct LinkCounters {
  EventCounter bytes_sent;
  EventCounter bytes_received;
};

// The published facts about one peer, with its live counters.
struct LinkEntry {
  LinkInfo info;
  std::shared_ptr<const LinkCounters> counters;  // null while not connected
};

// The list of links that the transport's thread publishes and any thread reads.
class LinkBoard {
 public:
  void Publish(std::vector<LinkEntry> links) {
    MutexLock lock(mutex_);
    links_ = std::move(links);
  }
  std::vector<LinkInfo> Read() const {
    std::vector<LinkInfo> result;
    MutexLock lock(mutex_);
    for (const LinkEntry& entry : links_) {
      LinkInfo& link = result.emplace_back(entry.info);
      if (entry.counters == nullptr) continue;
      link.bytes_sent = entry.counters->bytes_sent.value();
      link.bytes_received = entry.counters->bytes_received.value();
    }
    return result;
  }

 private:
  mutable Mutex mutex_;
  std::vector<LinkEntry> links_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_TRANSPORT_COUNTERS_H_
