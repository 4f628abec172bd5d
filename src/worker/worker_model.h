// WorkerModel: the model of a worker and what computes it: tokenizer, cores, threads, device and
// weights. The main thread loads it, or takes it from the other worker of the process. Afterwards
// it is constant.
#ifndef BATON_WORKER_WORKER_MODEL_H_
#define BATON_WORKER_WORKER_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/device/core_share.h"
#include "src/device/thread_pool.h"
#include "src/model/compute_device.h"
#include "src/model/gguf.h"
#include "src/model/model.h"
#include "src/worker/model_text.h"
#include "src/worker/worker_config.h"

namespace baton::worker {

// See the file comment. The members are in the order of construction; they are destroyed in
// reverse.
struct WorkerModel {
  ModelText text;
  int64_t loaded_unix_s = 0;
  std::unique_ptr<device::CoreShare> cores;  // null: the pool's threads may always run
  std::unique_ptr<device::ThreadPool> pool;
  model::ComputeDevice device;
  std::unique_ptr<device::Accelerator> part_of_next;  // of the device, until Share takes it
  std::unique_ptr<model::LoadedModel> loaded;

  // Reads config.model_path. `is_first`: another worker of the process will call Share. Errors name
  // the flag; the cores are held until the engine takes over.
  Status Load(const WorkerConfig& config, bool is_first);
  // Takes what `first` has read, which outlives this: its weights are there once.
  Status Share(const WorkerConfig& config, WorkerModel& first);

  // A device's steps leave the cores of the host to other workers, where there are any.
  bool LeavesCores() const;
  // Its steps compute on cores that it lends to others and borrows from them.
  bool SharesCores() const;
  // The threads that sample. Null: the engine thread reads all rows of logits itself.
  device::ThreadPool* SamplingPool() const;
  // "4 threads".
  std::string ThreadsText() const;

 private:
  void MakePool(const WorkerConfig& config);
  Status LoadWeights(const WorkerConfig& config, const model::GgufFile& file, bool is_first);
  Status LoadOnDevice(const WorkerConfig& config, const model::GgufFile& file, bool is_first);
};

// A fault of the model, with --model as the operator wrote it.
Status FaultOfModel(const WorkerConfig& config, const Status& fault);

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_MODEL_H_
