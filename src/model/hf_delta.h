// Parts that only folders of qwen3_5 have: the keys of its gated delta nets, the order of their
// heads, and the names of the layers that predict several tokens; and the shape of a recurrence,
// which other folders have by other keys. Private to the folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_DELTA_H_
#define BATON_MODEL_HF_DELTA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/delta_shape.h"
#include "src/base/status.h"
#include "src/model/hf_json.h"

namespace baton::model {

struct HfConfig;

// Where a tensor holds heads of v. In folders those of one head of k are neighbours; in GGUF head h
// of v goes with head h % num_k_heads of k. With as many heads of k as of v both orders are one.
enum class HfVHeads : uint8_t {
  kNone = 0,
  kOneEach = 1,    // a row, or an element, for each head
  kRows = 2,       // v_dim rows for each
  kAfterKeys = 3,  // v_dim rows for each, after the rows of q and k
  kColumns = 4,    // v_dim columns for each
};

// The keys of a recurrence's shape.
struct HfDeltaKeys {
  const char* num_taps;
  const char* k_dim;
  const char* v_dim;
  const char* num_k_heads;
  const char* num_v_heads;
};

// Reads the five sizes into `shape`, whose other members stay. Errors as ReadHfConfig.
absl::Status ReadHfDeltaShape(const JsonObject& config, const HfDeltaKeys& keys,
                              kernels::DeltaShape& shape);

// Reads linear_*, layer_types and what may only have one value. Errors as ReadHfConfig.
absl::Status ReadHfDeltaNets(const JsonObject& config, HfConfig& out);

// The bytes of a tensor of `num_rows` equal rows with its heads of v in GGUF's order. `out` has as
// many bytes and is another memory. InvalidArgument when the heads do not divide it.
absl::Status TileVHeads(const kernels::DeltaShape& shape, HfVHeads form, uint64_t num_rows,
                        std::span<const std::byte> in, std::byte* out);

// The name of a tensor "mtp.X" as one of a layer after the model's `num_layers`; of any other
// tensor its own. `num_layers_of_prediction` becomes at least as large as it says.
std::string NameOfPrediction(std::string_view name, uint32_t num_layers,
                             uint32_t* num_layers_of_prediction);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_DELTA_H_
