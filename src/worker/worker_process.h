// WorkerProcess: everything a prefill or decode worker is made of, joined and running: model,
// arena, engine, KV endpoint, gRPC service, registration, admin port. Most have a process of their
// own; WorkerGroup joins two in one.
//
// Start and Stop: the main thread. The accessors: any thread.
#ifndef BATON_WORKER_WORKER_PROCESS_H_
#define BATON_WORKER_WORKER_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "src/base/status.h"
#include "src/worker/worker_config.h"

namespace baton::kv {
class LocalHub;
}  // namespace baton::kv

namespace baton::worker {

class WorkerProcess;

// The things that a worker shares with another worker of its process; both outlive it.
struct Colocation {
  kv::LocalHub* hub = nullptr;     // KV crosses here and nowhere else; null: the worker is alone
  WorkerProcess* first = nullptr;  // whose weights and device it uses; null: it is the first
};

// See the file comment.
class WorkerProcess {
 public:
  // Loads the model and starts serving; registration goes on in the background. Any failure is one
  // sentence with the values and the flag that mends it, and leaves nothing running.
  static StatusOr<std::unique_ptr<WorkerProcess>> Start(WorkerConfig config,
                                                        const Colocation& colocation = {});
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  WorkerRole role() const;
  const std::string& worker_id() const;
  // As bound and advertised, "host:port"; the address for KV is "" when it is colocated.
  const std::string& grpc_address() const;
  const std::string& kv_address() const;
  // The name of what computes. It is "avx512 on the processor", with the reason when auto chose
  // that in a build with CUDA, or the device's name.
  std::string DescribeDevice() const;
  const std::string& admin_address() const;
  // 16 hexadecimal digits.
  const std::string& incarnation() const;

  // A router asked this worker to leave.
  bool drain_asked() const;
  // Why this worker can never serve: every router has refused it (registration.h), with the field
  // that differs; Ok while there is hope.
  Status failure() const;
  // Tells the routers, refuses new requests, and waits until the running ones have ended, at most
  // the drain timeout or until `*stop_now` is true; what is left then fails. OK = the ledger was
  // empty. Stop follows.
  Status Drain(const std::atomic<bool>* stop_now);
  // Drains workers that leave together: all are told first, and each goes on until all have nothing
  // to do. When routers asked some of them to leave, the routers' time holds.
  static Status DrainTogether(std::span<WorkerProcess* const> workers,
                              const std::atomic<bool>* stop_now);
  // Ends everything at once. Idempotent.
  void Stop();

 private:
  struct Parts;
  explicit WorkerProcess(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_PROCESS_H_
