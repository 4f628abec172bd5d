// PackWeights: packs the matrices of a model and hashes its tensors, alone or together with the
// other processes that were handed the same memory file (device::SharedSlots). Private to
// src/model.
//
// Together: each matrix is a slot, the hash is the last one. A process packs what no other one has
// packed or is packing, then waits for the rest in the order of loading. So a fault of the file
// gives each of them the same error: the first matrix that has one is packed by all. A matrix for
// which another process takes too long is packed once more, in memory of the process's own.
#ifndef BATON_MODEL_WEIGHT_SHARING_H_
#define BATON_MODEL_WEIGHT_SHARING_H_

#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/base/xxh3.h"
#include "src/model/model_weights.h"
#include "src/model/shared_weights.h"
#include "src/model/weight_packing.h"

namespace baton::model {

// The results; the matrices of the jobs have their bytes.
struct PackedWeights {
  std::string weights_id;  // HashWeights
  SharingReport report;
  std::shared_ptr<const void> memory;  // in which they lie
};

// Does the jobs of `packing`. Errors as PackJob::pack, of the first job that has one. Memory that
// cannot be shared is no error: the report says why, and the process has memory of its own.
absl::StatusOr<PackedWeights> PackWeights(const WeightSource& source, WeightPacking& packing,
                                          const SharedWeights& sharing);

// Equal for processes that would pack equal bytes into equal slots: by the files (device, inode,
// size, time of change), the names, types and shapes of all tensors, the config, and the matrices.
Hash128 PackingIdentity(const WeightSource& source, const WeightPacking& packing);

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_SHARING_H_
