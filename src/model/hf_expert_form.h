// Tensors of gpt_oss folders that hold something of all experts, and the tensors of GGUF that they
// become. Private to the folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_EXPERT_FORM_H_
#define BATON_MODEL_HF_EXPERT_FORM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/model/hf_tensors.h"
#include "src/model/safetensors.h"

namespace baton::model {

// The numbers that the config and the name of a tensor give it.
struct HfExpertCount {
  uint32_t experts = 0;
  uint32_t parts = 1;  // 2 where gates and ups take turns
};

// One of the tensors of GGUF that come out: [experts, n, k], of biases [experts, n].
struct HfExpertShape {
  uint64_t experts = 0;
  uint64_t parts = 1;
  uint64_t n = 0;          // rows of one part of one expert
  uint64_t k = 0;          // of biases 1
  uint64_t row_bytes = 0;  // of a row that comes out

  uint64_t PartBytes() const { return experts * n * row_bytes; }
};

// kBadShape naming the tensor and what it needs; kBadDtype; kBadScale where blocks have no scales
// (`scales` null) or scales of another shape.
absl::StatusOr<HfExpertShape> HfExpertShapeOf(HfExpertForm form, const SafetensorsTensor& tensor,
                                              const SafetensorsTensor* scales,
                                              const HfExpertCount& count);

// "X_blocks" to "X_scales" and back.
std::string HfScalesName(std::string_view blocks);
std::string HfBlocksName(std::string_view scales);

// Each writes part `part` of all experts to `out`, PartBytes() of it. The sizes of the inputs are
// those that HfExpertShapeOf checked.
void TransposeExperts(const HfExpertShape& shape, std::span<const std::byte> in, uint64_t part,
                      std::byte* out);
void CopyExpertBiases(const HfExpertShape& shape, const SafetensorsTensor& in, uint64_t part,
                      float* out);
// A block of GGUF is the scale and 16 bytes, element j below element j + 16; of a folder element 2j
// below element 2j + 1.
void RepackMxfp4Experts(const HfExpertShape& shape, std::span<const std::byte> blocks,
                        std::span<const std::byte> scales, uint64_t part, std::byte* out);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_EXPERT_FORM_H_
