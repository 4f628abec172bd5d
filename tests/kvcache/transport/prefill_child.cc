// A prefill worker as a process of its own, for two_process_test: dials the decode worker named on
// the command line, and obeys its control messages until that hangs up.
//   prefill_child shm|tcp DECODE_INCARNATION TCP_ADDRESS UNIX_NAME OWN_INCARNATION SEED
//   "send T N": offers blocks 0..N-1 as transfer T, once; "flood T N": again and again.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/kvcache/transport/test_rig.h"

namespace baton::kv::test {
namespace {

int Run(char** argv) {
  const bool is_shm = std::string(argv[1]) == "shm";
  const Incarnation decode(std::strtoull(argv[2], nullptr, 10));
  const auto arena = MakeArena(ModelLayout(), 40);
  KvEndpointOptions options;
  options.worker_id = "prefill-child";
  options.incarnation = Incarnation(std::strtoull(argv[5], nullptr, 10));
  options.cluster_secret = "a secret";
  options.numerics_id = "numerics";
  options.kind = is_shm ? TransportKind::kShm : TransportKind::kTcp;
  RecordingSink sink;  // outlives the endpoint, whose destructor stops it
  auto endpoint = KvEndpoint::Create(options, arena.get());
  if (!endpoint.ok() || !(*endpoint)->Start(&sink).ok()) return 1;
  const PeerAddress peer{"decode-0", decode, HostId(), argv[3], argv[4]};
  if (!(*endpoint)->SetPeers({&peer, 1}).ok() || !sink.WaitUp(1)) return 1;
  const uint64_t seed = std::strtoull(argv[6], nullptr, 10);
  for (size_t next = 0;; ++next) {
    const bool went_on = sink.WaitFor(
        [&](const Recorded& r) { return r.controls.size() > next || !r.downs.empty(); });
    const Recorded recorded = sink.Snapshot();
    if (!went_on || !recorded.downs.empty()) return 0;
    std::istringstream order(recorded.controls[next].second);
    std::string verb;
    uint64_t id = 0;
    uint32_t num_blocks = 0;
    order >> verb >> id >> num_blocks;
    const Transfer transfer = MakeTransfer(id, num_blocks, 0, 0);
    FillSource(transfer, arena->memory(), seed);
    const std::vector<SliceRef> slices = SlicesOf(transfer, arena->memory());
    do {
      // Refused while the queue is full: then offer again.
      (void)(*endpoint)->SendSlices(decode, slices);
    } while (verb == "flood" && sink.Snapshot().downs.empty());
  }
}

}  // namespace
}  // namespace baton::kv::test

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "prefill_child needs 6 arguments\n");
    return 2;
  }
  return baton::kv::test::Run(argv);
}
