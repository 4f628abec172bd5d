// Rank 1 of a loopback communicator in a process of its own: receives so many bytes and sends them
// back. Arguments: the unique id in hexadecimal, the number of bytes. Exit status 0 = done.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "src/base/hex.h"
#include "tests/nccl/loopback_pair.h"

int main(int argc, char** argv) {
  using namespace baton;      // NOLINT: a program of one function
  using namespace baton::kv;  // NOLINT
  if (argc != 3) return 2;
  nccl::UniqueId id;
  const auto bytes = BytesFromHex(argv[1]);
  if (!bytes.has_value() || bytes->size() != sizeof(id)) return 2;
  std::memcpy(&id, bytes->data(), sizeof(id));
  const size_t size = std::strtoull(argv[2], nullptr, 10);
  nccl::Config config = nccl_test::NonBlocking();
  nccl::Comm* comm = nullptr;
  const nccl::NcclTable& table = nccl_test::LoopbackTable();
  table.ncclCommInitRankConfig(&comm, 2, id, 1, &config);
  if (!nccl_test::Eventually([&] { return nccl_test::PollOnce(comm) == nccl::kSuccess; })) return 3;
  std::vector<std::byte> memory(size);
  device::HostStream stream;
  table.ncclRecv(memory.data(), size, nccl::kUint8, 0, comm, &stream);
  if (!nccl_test::Eventually([&] { return stream.num_done.load() == 1; })) return 4;
  table.ncclSend(memory.data(), size, nccl::kUint8, 0, comm, &stream);
  if (!nccl_test::Eventually([&] { return stream.num_done.load() == 2; })) return 5;
  return table.ncclCommDestroy(comm) == nccl::kSuccess ? 0 : 6;
}
