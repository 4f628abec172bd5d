// Peers of an IpcTransport that hand over what they like: plain endpoints with a pool exchange of
// the test's, whose owner writes the messages itself.
#ifndef BATON_TESTS_IPC_IPC_PEERS_H_
#define BATON_TESTS_IPC_IPC_PEERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/ipc/ipc_message.h"
#include "tests/kvcache/transport/test_rig.h"

namespace baton::kv::test {

inline IpcTransport* IpcOf(const Worker& worker) {
  return static_cast<IpcTransport*>(worker.transport.get());
}
inline device::FakeAccelerator* FakeOf(const Worker& worker) {
  return static_cast<device::FakeAccelerator*>(worker.device.device.get());
}

// Hands over any descriptors and takes all.
class AnyPool final : public PoolExchange {
 public:
  AnyPool(std::vector<UniqueFd> fds, uint32_t num_blocks)
      : fds_(std::move(fds)), num_blocks_(num_blocks) {}
  std::vector<int> fds() const override {
    std::vector<int> numbers;
    for (const UniqueFd& fd : fds_) numbers.push_back(fd.get());
    return numbers;
  }
  uint32_t num_blocks() const override { return num_blocks_; }
  Status Take(Incarnation, uint32_t, std::vector<UniqueFd>) override { return OkStatus(); }

 private:
  const std::vector<UniqueFd> fds_;
  const uint32_t num_blocks_;
};

// A plain endpoint over unix sockets that says it has a pool.
struct PlainPeer {
  std::unique_ptr<AnyPool> pool;
  std::unique_ptr<Rig> rig;
  Worker worker;

  void Post(const Worker& to, const IpcMessage& message) const {
    EXPECT_TRUE(worker.transport->SendControl(to.incarnation, EncodeIpcMessage(message)).ok());
  }
  // The CUDA IPC messages that the peer got.
  std::vector<IpcMessage> Messages() const {
    std::vector<IpcMessage> messages;
    for (const auto& [peer, bytes] : worker.sink->Snapshot().controls) {
      StatusOr<IpcMessage> message = DecodeIpcMessage(bytes);
      if (message.ok()) messages.push_back(*std::move(message));
    }
    return messages;
  }
  // The one with this number.
  IpcMessage MessageAt(size_t index) const {
    EXPECT_TRUE(Eventually([&] { return Messages().size() > index; }));
    return Messages().at(index);
  }
};

inline PlainPeer MakePlainPeer(const std::string& worker_id, std::vector<UniqueFd> fds,
                               uint32_t num_blocks) {
  PlainPeer peer;
  peer.pool = std::make_unique<AnyPool>(std::move(fds), num_blocks);
  peer.rig = std::make_unique<Rig>(TransportKind::kShm, SmallLayout(), 1);
  peer.rig->tweak = [pool = peer.pool.get()](KvEndpointOptions* options) { options->pools = pool; };
  // Listens, and can dial as well.
  peer.worker = peer.rig->MakeDecode(worker_id);
  return peer;
}

// The address of a worker on this host.
inline PeerAddress AddressOf(const Worker& worker, const std::string& worker_id) {
  return {.worker_id = worker_id,
          .incarnation = worker.incarnation,
          .host_id = HostId(),
          .unix_name = worker.endpoint->unix_name()};
}

// `from` dials these.
inline void Dial(const Worker& from, const std::vector<PeerAddress>& peers) {
  EXPECT_TRUE(from.endpoint->SetPeers(peers).ok());
}

}  // namespace baton::kv::test

#endif  // BATON_TESTS_IPC_IPC_PEERS_H_
