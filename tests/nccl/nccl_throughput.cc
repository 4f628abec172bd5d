// How fast slices cross from blocks to blocks through NcclTransport over the loopback, beside one
// memcpy of the same bytes: one line of JSON. It measures this transport's own work on a processor
// (gather, offer, grant, two copies of the loopback, checksum, scatter), not NCCL.
//
//   nccl_throughput [seconds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "nlohmann/json.hpp"

#include "tests/kvcache/transport/test_rig.h"
#include "tests/nccl/loopback_library.h"

namespace baton::kv::test {
namespace {

constexpr uint32_t kNumBlocks = 128;  // 47 MB of SmolLM2-135M's layout

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// GB/s of one transfer of all blocks, from its offer to its last verified slice.
double TransferOnce(const Worker& p, const Worker& d, const std::vector<SliceRef>& slices,
                    const Transfer& transfer) {
  BATON_CHECK(d.transport->OpenReceive(SpecFor(transfer, p.incarnation)).ok(), "open");
  const double begin = Now();
  BATON_CHECK(p.transport->SendSlices(d.incarnation, slices).ok(), "send");
  BATON_CHECK(d.sink->WaitComplete(transfer.id), "transfer {} does not arrive", transfer.id);
  const double seconds = Now() - begin;
  d.transport->CloseReceive(transfer.id);
  BATON_CHECK(d.sink->WaitReceiveClosed(transfer.id), "close");
  BATON_CHECK(EndSend(p, d.incarnation, transfer.id), "close");
  const size_t size = slices.size() * p.blocks().layout.SliceBytes();
  return static_cast<double>(size) / seconds / 1e9;
}

double CopyOnce(const KvMemory& to, const KvMemory& from) {
  const size_t size = kNumBlocks * from.layout.BlockStride();
  const double begin = Now();
  std::memcpy(to.base, from.base, size);
  return static_cast<double>(size) / (Now() - begin) / 1e9;
}

nlohmann::json Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"median", values[values.size() / 2]}, {"min", values.front()}, {"max", values.back()}};
}

int Main(double seconds) {
  nccl_test::Configure("");
  Rig rig(TransportKind::kNccl, ModelLayout(), kNumBlocks);
  rig.tweak_nccl = [](NcclTransportOptions* options) {
    options->limits.slot_bytes = uint64_t{8} << 20;
  };
  Worker d = rig.MakeDecode("decode-0");
  Worker p = rig.MakePrefill("prefill-0", {&d});
  BATON_CHECK(p.sink->WaitUp(1), "no connection");
  Transfer transfer = MakeTransfer(1, kNumBlocks, 0, 0);
  FillSource(transfer, p.blocks(), 1);
  const std::vector<SliceRef> first = SlicesOf(transfer, p.blocks());
  (void)TransferOnce(p, d, first, transfer);  // builds the communicator
  BATON_CHECK(Arrived(transfer, p.blocks(), d.blocks()), "other bytes");
  std::vector<double> transfers;
  std::vector<double> copies;
  const double end = Now() + seconds;
  for (uint64_t id = 2; Now() < end || transfers.empty(); ++id) {
    transfer.id = TransferId(id);
    std::vector<SliceRef> slices = first;
    for (SliceRef& slice : slices) slice.transfer = transfer.id;
    transfers.push_back(TransferOnce(p, d, slices, transfer));
    copies.push_back(CopyOnce(d.blocks(), p.blocks()));
  }
  const nlohmann::json line = {
      {"what", "KV slices through NcclTransport over the loopback, host memory"},
      {"bytes", first.size() * ModelLayout().SliceBytes()},
      {"runs", transfers.size()},
      {"transfer_gb_per_s", Spread(transfers)},
      {"memcpy_gb_per_s", Spread(copies)}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace baton::kv::test

int main(int argc, char** argv) {
  return baton::kv::test::Main(argc > 1 ? std::strtod(argv[1], nullptr) : 5);
}
