// A router's list of peers as addresses to dial.
#include "src/worker/worker_load.h"

#include "gtest/gtest.h"

namespace baton::worker {

using engine::EngineSnapshot;
using kv::LinkInfo;
using kv::PeerAddress;
using kv::TransportKind;

namespace {

v1::Peer MakePeer(const char* id, std::vector<v1::TransportKind> kinds) {
  v1::Peer peer;
  peer.mutable_worker()->set_worker_id(id);
  peer.mutable_worker()->set_incarnation(7);
  peer.set_kv_address("127.0.0.1:9");
  for (const v1::TransportKind kind : kinds) peer.add_transports(kind);
  return peer;
}

std::vector<std::string> IdsOf(const std::vector<PeerAddress>& addresses) {
  std::vector<std::string> ids;
  for (const PeerAddress& address : addresses) ids.push_back(address.worker_id);
  return ids;
}

TEST(FillLoadTest, OnlyALinkThatIsDownSaysWhyInOneLine) {
  const std::vector<LinkInfo> links = {
      {.worker_id = "a", .dialled = true, .last_failure = "another\ncluster \xff secret"},
      {.worker_id = "b", .dialled = true, .up = true, .last_failure = "of before"},
      {.worker_id = "c", .dialled = false}};
  v1::WorkerLoad load;
  FillLoad(EngineSnapshot(), links, &load);
  ASSERT_EQ(load.links_size(), 2);
  EXPECT_EQ(load.links(0).failure(), "another?cluster ? secret");
  EXPECT_EQ(load.links(1).failure(), "");
}

TEST(CanHandOffTest, SaysWhyOnceEveryLinkHasFailed) {
  const LinkInfo up{.worker_id = "decode-0", .dialled = true, .up = true};
  const LinkInfo not_tried{.worker_id = "decode-1", .dialled = true};
  const LinkInfo failed{.worker_id = "decode-2", .dialled = true, .last_failure = "another secret"};
  const LinkInfo answered{.worker_id = "decode-3", .up = true};  // the other side dialled
  for (const std::vector<LinkInfo>& links : std::vector<std::vector<LinkInfo>>{
           {}, {answered}, {failed, up}, {failed, not_tried}, {up, failed}}) {
    EXPECT_TRUE(CanHandOff(links).ok());
  }
  const Status none = CanHandOff({failed, failed, answered});
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(none.message().find("decode-2: another secret"), std::string::npos) << none;
}

TEST(PeerAddressesTest, OnlyPeersWithACommonTransportAreDialled) {
  const std::vector<v1::Peer> peers = {
      MakePeer("both", {v1::TRANSPORT_KIND_SHM, v1::TRANSPORT_KIND_TCP}),
      MakePeer("tcp", {v1::TRANSPORT_KIND_TCP}),
      MakePeer("nccl", {v1::TRANSPORT_KIND_NCCL}),
      MakePeer("ipc", {v1::TRANSPORT_KIND_CUDA_IPC}),
      MakePeer("silent", {}),
      MakePeer("later", {static_cast<v1::TransportKind>(99)}),
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(IdsOf(PeerAddresses(peers, {TransportKind::kShm, TransportKind::kTcp})),
            (Ids{"both", "tcp"}));
  EXPECT_EQ(IdsOf(PeerAddresses(peers, {TransportKind::kShm})), Ids{"both"});
  EXPECT_EQ(IdsOf(PeerAddresses(peers, {TransportKind::kNccl})), Ids{"nccl"});
  EXPECT_EQ(IdsOf(PeerAddresses(peers, {TransportKind::kCudaIpc})), Ids{"ipc"});
}

TEST(PeerAddressesTest, EntriesWithoutANameOrIncarnationAreLeftOut) {
  v1::Peer nameless = MakePeer("", {v1::TRANSPORT_KIND_TCP});
  v1::Peer unborn = MakePeer("unborn", {v1::TRANSPORT_KIND_TCP});
  unborn.mutable_worker()->set_incarnation(0);
  EXPECT_TRUE(PeerAddresses({nameless, unborn}, {TransportKind::kTcp}).empty());
}

}  // namespace
}  // namespace baton::worker
