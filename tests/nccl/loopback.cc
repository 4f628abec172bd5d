#include "tests/nccl/loopback.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "tests/nccl/loopback_comm.h"
#include "tests/nccl/loopback_faults.h"

namespace baton::kv::nccl_test {
namespace {

using nccl::Comm;
using nccl::Result;

// The fields of a unique id. They say which file of which process is the shared memory.
struct IdFields {
  uint64_t magic;
  uint64_t cookie;
  int32_t process;
  int32_t descriptor;
};
constexpr uint64_t kIdMagic = 0x4c6f6f704e43434cull;
// Between two looks at what moves, when nothing did: well below a transfer's time.
constexpr auto kPause = std::chrono::microseconds(20);

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Segment* Map(int file) {
  void* const memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Segment*>(memory);
}

// Everything of this process; one thread moves the bytes of all pairs.
class Loopback {
 public:
  static Loopback& Get() {
    static Loopback* const loopback = new Loopback;  // its thread outlives main
    return *loopback;
  }

  int Configure(const char* text) {
    std::optional<LoopbackFaults> faults = LoopbackFaults::Parse(text);
    if (!faults.has_value()) return -1;
    std::lock_guard lock(mutex_);
    faults_ = *faults;
    counts_ = {};
    return 0;
  }

  LoopbackCounts Counts() {
    std::lock_guard lock(mutex_);
    LoopbackCounts counts = counts_;
    counts.communicators = comms_.size();
    counts.unique_ids = ids_.size();
    for (const auto& entry : comms_) {
      counts.operations += entry.second->sends.size() + entry.second->receives.size();
      counts.registrations += entry.second->num_registered;
    }
    return counts;
  }

  int version() {
    std::lock_guard lock(mutex_);
    return faults_.version;
  }

  Result MakeId(nccl::UniqueId* id) {
    std::lock_guard lock(mutex_);
    if (faults_.Draw(kCall, &counts_)) return nccl::kInternalError;
    UniqueFd file(memfd_create("nccl-loopback", MFD_CLOEXEC));
    if (!file.valid() || ftruncate(file.get(), sizeof(Segment)) != 0) return nccl::kSystemError;
    Segment* const segment = Map(file.get());
    if (segment == nullptr) return nccl::kSystemError;
    std::random_device random;
    segment->cookie = uint64_t{random()} << 32 | random();
    const IdFields fields = {kIdMagic, segment->cookie, getpid(), file.get()};
    munmap(segment, sizeof(Segment));
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id, &fields, sizeof(fields));
    ids_.emplace(fields.cookie, std::move(file));
    ++counts_.made_ids;
    return nccl::kSuccess;
  }

  Result Build(Comm** out, const nccl::UniqueId& id, int rank) {
    IdFields fields;
    std::memcpy(&fields, &id, sizeof(fields));
    if (fields.magic != kIdMagic) return nccl::kInvalidArgument;
    std::lock_guard lock(mutex_);
    if (faults_.Draw(kCall, &counts_)) return nccl::kInternalError;
    auto comm = std::make_unique<Comm>();
    comm->rank = rank;
    Join(fields, comm.get());
    if (faults_.Draw(kInitError, &counts_)) comm->error = nccl::kSystemError;
    if (faults_.Draw(kInitHang, &counts_)) comm->never_built = true;
    *out = comm.get();
    comms_.emplace(comm.get(), std::move(comm));
    return nccl::kInProgress;
  }

  Result Poll(Comm* comm, Result* result) {
    std::lock_guard lock(mutex_);
    if (!comms_.contains(comm)) return nccl::kInvalidArgument;
    (void)comm->Progress(NowUs());
    *result = comm->Poll();
    return nccl::kSuccess;
  }

  Result Put(Comm* comm, Operation operation, bool is_send) {
    std::unique_lock lock(mutex_);
    if (!comms_.contains(comm) || operation.stream == nullptr) return nccl::kInvalidArgument;
    if (comm->Poll() != nccl::kSuccess) return comm->Refuse();
    if (faults_.Draw(kCall, &counts_)) return nccl::kInternalError;
    if (faults_.Draw(kDelay, &counts_)) operation.not_before_us = NowUs() + faults_.delay_us;
    if (faults_.Draw(kHang, &counts_)) operation.stop_at = 0;
    if (is_send && faults_.Draw(kCorrupt, &counts_)) operation.corrupts = true;
    if (faults_.Draw(kDeath, &counts_)) operation.stop_at = operation.size / 2;
    if (faults_.Draw(kRemote, &counts_)) comm->segment->told_remote_error[1 - comm->rank] = 1;
    if (faults_.Draw(kError, &counts_)) comm->error = nccl::kSystemError;
    operation.stream->num_put.fetch_add(1, std::memory_order_acq_rel);
    (is_send ? comm->sends : comm->receives).push_back(operation);
    lock.unlock();
    wake_.notify_one();
    return nccl::kSuccess;
  }

  // Ends the handle. An abort drops what is under way; nothing touches its memory any more.
  Result End(Comm* comm, bool is_abort) {
    std::lock_guard lock(mutex_);
    const auto entry = comms_.find(comm);
    if (entry == comms_.end()) return nccl::kInvalidArgument;
    if (!is_abort && comm->IsActive()) return nccl::kInvalidUsage;
    if (is_abort) ++counts_.aborts;
    comm->DropOperations();
    if (comm->segment != nullptr) {
      const bool is_silent = is_abort && faults_.Draw(kSilent, &counts_);
      if (is_abort && !is_silent) comm->segment->told_remote_error[1 - comm->rank] = 1;
      munmap(comm->segment, sizeof(Segment));
    }
    comms_.erase(entry);
    return nccl::kSuccess;
  }

  // They end with their communicator at the latest.
  Result Register(Comm* comm, bool is_more) {
    std::lock_guard lock(mutex_);
    const auto entry = comms_.find(comm);
    if (entry == comms_.end()) return nccl::kInvalidArgument;
    entry->second->num_registered += is_more ? 1 : -1;
    return nccl::kSuccess;
  }

  // Nothing may be under way; there is nothing to flush then.
  Result Finalize(Comm* comm) {
    std::lock_guard lock(mutex_);
    if (!comms_.contains(comm)) return nccl::kInvalidArgument;
    if (comm->Poll() != nccl::kSuccess) return comm->Refuse();
    return comm->IsActive() ? nccl::kInvalidUsage : nccl::kSuccess;
  }

 private:
  Loopback() {
    if (const char* const text = std::getenv("BATON_NCCL_LOOPBACK")) {
      if (const auto faults = LoopbackFaults::Parse(text)) faults_ = *faults;
    }
    std::thread([this] { Run(); }).detach();
  }

  // Maps the id's memory, or leaves the communicator in an error that a poll finds.
  void Join(const IdFields& fields, Comm* comm) {
    const auto own = ids_.find(fields.cookie);
    if (own != ids_.end() && comm->rank == 0) {
      comm->file = std::move(own->second);
      ids_.erase(own);
    } else {
      const std::string path =
          "/proc/" + std::to_string(fields.process) + "/fd/" + std::to_string(fields.descriptor);
      comm->file = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    }
    struct stat status {};
    const bool fits = comm->file.valid() && fstat(comm->file.get(), &status) == 0 &&
                      status.st_size == static_cast<off_t>(sizeof(Segment));
    if (fits) comm->segment = Map(comm->file.get());
    if (comm->segment == nullptr || comm->segment->cookie != fields.cookie) {
      // The descriptor is another file by now: the other side is gone.
      if (comm->segment != nullptr) munmap(comm->segment, sizeof(Segment));
      comm->segment = nullptr;
      comm->error = nccl::kSystemError;
      return;
    }
    comm->segment->joined[comm->rank].store(1, std::memory_order_release);
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      bool is_active = false;
      bool has_moved = false;
      const int64_t now_us = NowUs();
      for (const auto& entry : comms_) {
        has_moved |= entry.second->Progress(now_us);
        is_active |= entry.second->IsActive();
      }
      if (!is_active) {
        wake_.wait(lock);
        continue;
      }
      lock.unlock();
      if (!has_moved) std::this_thread::sleep_for(kPause);
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards everything
  std::condition_variable wake_;
  LoopbackFaults faults_;
  LoopbackCounts counts_;
  std::map<uint64_t, UniqueFd> ids_;  // by cookie: made here, not used yet
  std::map<Comm*, std::unique_ptr<Comm>> comms_;
};

}  // namespace
}  // namespace baton::kv::nccl_test

using baton::kv::nccl_test::Loopback;
using baton::kv::nccl_test::Operation;
using namespace baton::kv::nccl;  // NOLINT: the functions below have NCCL's signatures

extern "C" {

int loopback_configure(const char* faults) { return Loopback::Get().Configure(faults); }
void loopback_counts(baton::kv::nccl_test::LoopbackCounts* counts) {
  *counts = Loopback::Get().Counts();
}

Result ncclGetVersion(int* version) {
  *version = Loopback::Get().version();
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) { return Loopback::Get().MakeId(id); }

Result ncclCommInitRankConfig(Comm** comm, int num_ranks, UniqueId id, int rank, Config* config) {
  const bool is_known = config != nullptr && config->magic == Config{}.magic &&
                        config->size >= sizeof(Config) && config->blocking == 0;
  if (!is_known || num_ranks != 2 || rank < 0 || rank > 1) return kInvalidArgument;
  return Loopback::Get().Build(comm, id, rank);
}

Result ncclCommGetAsyncError(Comm* comm, Result* result) {
  return Loopback::Get().Poll(comm, result);
}

Result ncclCommFinalize(Comm* comm) { return Loopback::Get().Finalize(comm); }
Result ncclCommDestroy(Comm* comm) { return Loopback::Get().End(comm, false); }
Result ncclCommAbort(Comm* comm) { return Loopback::Get().End(comm, true); }

Result ncclCommRegister(Comm* comm, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return Loopback::Get().Register(comm, true);
}
Result ncclCommDeregister(Comm* comm, void*) { return Loopback::Get().Register(comm, false); }

Result ncclSend(const void* from, size_t count, DataType type, int peer, Comm* comm,
                Stream stream) {
  if (type != kUint8 || peer != 1 - comm->rank) return kInvalidArgument;
  // Sending only reads it.
  auto* const memory = static_cast<std::byte*>(const_cast<void*>(from));
  return Loopback::Get().Put(
      comm,
      {.memory = memory, .size = count, .stream = static_cast<baton::device::HostStream*>(stream)},
      true);
}

Result ncclRecv(void* to, size_t count, DataType type, int peer, Comm* comm, Stream stream) {
  if (type != kUint8 || peer != 1 - comm->rank) return kInvalidArgument;
  return Loopback::Get().Put(comm,
                             {.memory = static_cast<std::byte*>(to),
                              .size = count,
                              .stream = static_cast<baton::device::HostStream*>(stream)},
                             false);
}

const char* ncclGetErrorString(Result result) {
  static constexpr const char* kNames[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result >= kSuccess && result <= kInProgress ? kNames[result] : "unknown result code";
}

}  // extern "C"
