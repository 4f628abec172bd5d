// HfQuantization: what the quantization_config of a folder says about its weights. Private to the
// folder reader; pure; any thread.
//
// The numbers of a matrix (bits, group, zero points) are read from its tensors, hf_packed.h. The
// config must declare them, and is refused by name where it says what is not computed.
#ifndef BATON_MODEL_HF_QUANTIZATION_H_
#define BATON_MODEL_HF_QUANTIZATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Programs that write quantised folders, by the names of their tensors.
enum class HfQuantMethod : uint8_t {
  kNone = 0,
  kFp8 = 1,         // fp8, fbgemm_fp8, auto-round: X.weight in F8_E4M3
  kMxfp4 = 2,       // experts of gpt_oss
  kCompressed = 3,  // compressed-tensors, auto-round: X.weight_packed, X.weight in I8 or F8_E4M3
  kAwq = 4,         // AutoAWQ version gemm, auto-round: X.qweight [k, n / 8]
  kGptq = 5,        // GPTQ, auto-round: X.qweight [k * bits / 32, n]
  kModelOpt = 6,    // NVFP4: X.weight in U8; or F8_E4M3
};

// One kind of packed weights that a config declares.
struct HfWeightKind {
  uint32_t bits = 4;
  uint32_t group = 0;     // elements of a row that share a scale; 0: the whole row
  bool is_float = false;  // e2m1 (4 bits) or e4m3 (8 bits)
  bool has_zeros = false;
  bool has_order = false;  // columns of a group lie anywhere: the tensor g_idx says where

  friend bool operator==(const HfWeightKind&, const HfWeightKind&) = default;
};

// See the file comment.
struct HfQuantization {
  HfQuantMethod method = HfQuantMethod::kNone;
  std::string name;             // of the method, as the config has it
  bool zeros_less_one = false;  // GPTQ's first checkpoint format stores zero points less one
  std::vector<HfWeightKind> kinds;
  // Where it is not empty, a module has the kind of its own name, or of the nearest module around
  // it that is listed (ModelOpt's MIXED_PRECISION); modules without one are not quantised.
  std::map<std::string, HfWeightKind, std::less<>> layers;
  // Keys that quantise activations or KV, which are computed as they are ("input_activations").
  std::set<std::string, std::less<>> unused;
  // Modules that are not quantised, by their names or ends of them, and by how names begin.
  std::set<std::string, std::less<>> plain_modules;
  std::set<std::string, std::less<>> plain_prefixes;

  friend bool operator==(const HfQuantization&, const HfQuantization&) = default;
};

// A config.json without a quantization_config, or with an empty one, has method kNone. Else
// kQuantized (an unknown method), kBadValue (also for a compression_config that says something
// else), kMissingKey or kUnsupportedValue naming the field; every key that is not known is refused
// (hf_quantization_keys.h).
absl::StatusOr<HfQuantization> ReadHfQuantization(const JsonObject& config);

// Reads the hf_quant_config.json that ModelOpt used to write instead. Errors as above, and
// kBadJson.
absl::StatusOr<HfQuantization> ReadHfQuantConfigFile(std::string_view text);

// The kinds that the config declares for a module; views of `quantization`.
std::span<const HfWeightKind> KindsOf(const HfQuantization& quantization, std::string_view module);

// A copy of `quantization` in which modules and prefixes also have the names that `name_of` gives
// the tensors MODULE.weight and whatever begins with the prefix; "" adds none.
HfQuantization WithNames(const HfQuantization& quantization,
                         const std::function<std::string(std::string_view)>& name_of);

// Whether the config names the module as one that is not quantised. Regular expressions ("re:...")
// and "*" inside a name are not looked at: the tensors tell.
bool SaysPlain(const HfQuantization& quantization, std::string_view module);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_QUANTIZATION_H_
