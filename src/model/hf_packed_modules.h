// HfPackedModules: the packed matrices of a folder, found by the names of their parts. Private to
// the folder reader; one thread.
#ifndef BATON_MODEL_HF_PACKED_MODULES_H_
#define BATON_MODEL_HF_PACKED_MODULES_H_

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/hf_packed.h"
#include "src/model/hf_quantization.h"
#include "src/model/safetensors.h"

namespace baton::model {

// See the file comment.
class HfPackedModules {
 public:
  // Takes the parts of packed modules out of `taken`. For each module comes in a tensor X.weight
  // [n, k] of U8 that has no data; Find gives its matrix. Checks every module (HfPackedMatrixOf),
  // so nothing is copied of a folder that is refused: also kDuplicateTensor where X.weight is there
  // too, kUnsupportedValue where the config says that the module is not quantised.
  absl::Status Join(const HfQuantization& quantization,
                    std::vector<const SafetensorsTensor*>& taken);

  // nullptr for a tensor that is not packed.
  const HfPackedMatrix* Find(const SafetensorsTensor& tensor) const;
  // Whether there is a packed matrix MODULE.weight.
  bool HasModule(std::string_view module) const;

  // Notes that a matrix was repacked in `type`.
  void Count(const HfPackedMatrix& matrix, GgmlType type);
  // "gptq: 14 of 4 bits in groups of 128 as Q4_0, 1 of 8 bits ..." of what was counted, and keys of
  // the config that are not used; or empty.
  std::string Summary() const;

 private:
  HfQuantization quantization_;
  std::deque<SafetensorsTensor> tensors_;                       // that stand for matrices
  std::map<std::string, HfPackedMatrix, std::less<>> modules_;  // by X.weight
  std::map<std::string, uint64_t> counts_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_HF_PACKED_MODULES_H_
