// UploadWeights: one pass over a model's tensors, by ascending name. It hashes and checks them,
// puts them into the form in which devices keep them, and copies them there. Three things go on at
// once. The file is read ahead (TensorReader), the pool's threads encode or pack what was read, and
// devices copy what is done (WeightUpload). Private to src/model.
//
// Memory: the reader's ring and two pinned buffers a device. No tensor is held whole, but one whose
// rows a part takes in another order (TensorCut::picked): it is read as one piece, and copied.
#ifndef BATON_MODEL_WEIGHT_LOADER_H_
#define BATON_MODEL_WEIGHT_LOADER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"
#include "src/model/tensor_reader.h"
#include "src/model/weight_load_report.h"
#include "src/model/weight_parts.h"
#include "src/model/weight_upload.h"

namespace baton::model {

// The devices to upload to, and the sizes of the pieces.
struct WeightUploadOptions {
  std::vector<device::Accelerator*> devices;  // by device_idx of the parts
  device::ThreadPool* pool = nullptr;
  // A piece of the file has so many bytes, or 16 rows if they are more: long enough for a disk's
  // full speed, and below kPieceBytes in bf16 from 4 bits a weight on.
  size_t read_bytes = size_t{8} << 20;
  size_t upload_bytes = WeightUpload::kPieceBytes;  // at least 16 rows
  TensorReaderOptions reader = {};
  const Clock* clock = &SystemClock();
};

// The results that are known once all is copied.
struct UploadedWeights {
  std::string weights_id;  // HashWeights
  WeightLoadReport report;
};

// Errors: InvalidArgument naming tensor and row as CheckVectors, CheckElements, EncodeRows and
// PackTensor do; those of TensorReader and of the devices. After an error nothing is under way.
absl::StatusOr<UploadedWeights> UploadWeights(const GgufFile& file, const ModelConfig& config,
                                              const WeightParts& parts,
                                              const WeightUploadOptions& options);

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_LOADER_H_
