// The forms in which model folders keep packed matrices, and what their config says of each.
#ifndef BATON_TESTS_MODEL_PACKED_FORMS_H_
#define BATON_TESTS_MODEL_PACKED_FORMS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton::model {

inline constexpr uint64_t kPackedGroup = 32;
inline constexpr uint64_t kFp4Group = 16;

// Which program's form the matrices have.
struct PackedForm {
  const char* name;  // letters and digits
  const char* method;
  uint32_t bits;
  bool has_zeros;
  bool in_order = false;  // columns of a group lie anywhere
  bool is_float = false;  // NVFP4
  bool is_mx = false;     // MXFP4 instead
};

inline std::vector<PackedForm> PackedForms() {
  return {{"awq", "awq", 4, true},
          {"gptq4", "gptq", 4, false},
          {"gptq4_zeros", "gptq", 4, true},
          {"gptq8", "gptq", 8, false},
          {"gptq8_zeros", "gptq", 8, true},
          {"gptq4_order", "gptq", 4, true, true},
          {"ct4", "compressed-tensors", 4, false},
          {"ct4_zeros", "compressed-tensors", 4, true},
          {"ct8", "compressed-tensors", 8, false},
          {"ct_nvfp4", "compressed-tensors", 4, false, false, true},
          {"modelopt_nvfp4", "modelopt", 4, false, false, true},
          {"ct_mxfp4", "compressed-tensors", 4, false, false, true, true},
          {"ar4", "auto-round", 4, false},
          {"ar4_zeros", "auto-round", 4, true},
          {"ar_mxfp4", "auto-round", 4, false, false, true, true}};
}

// The quantization_config of a folder whose matrices have this form.
inline nlohmann::json QuantizationConfigOf(const PackedForm& form) {
  if (form.method == std::string_view("awq")) {
    return {{"quant_method", "awq"}, {"bits", 4},          {"group_size", kPackedGroup},
            {"version", "gemm"},     {"zero_point", true}, {"modules_to_not_convert", {"lm_head"}}};
  }
  if (form.method == std::string_view("gptq")) {
    return {{"quant_method", "gptq"},    {"bits", form.bits},      {"group_size", kPackedGroup},
            {"desc_act", form.in_order}, {"sym", !form.has_zeros}, {"checkpoint_format", "gptq"}};
  }
  if (form.method == std::string_view("modelopt")) {
    return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}};
  }
  if (form.method == std::string_view("auto-round")) {
    return {{"quant_method", "auto-round"},
            {"bits", form.bits},
            {"group_size", kPackedGroup},
            {"sym", !form.has_zeros},
            {"data_type", form.is_float ? "mx_fp" : "int"},
            {"packing_format", form.is_float    ? "auto_round:llm_compressor"
                               : form.has_zeros ? "auto_round"
                                                : "auto_round:auto_gptq"},
            {"autoround_version", "0.16.1"}};
  }
  const uint64_t float_group = form.is_mx ? kPackedGroup : kFp4Group;
  const nlohmann::json weights = {{"num_bits", form.bits},
                                  {"type", form.is_float ? "float" : "int"},
                                  {"symmetric", !form.has_zeros},
                                  {"strategy", "group"},
                                  {"group_size", form.is_float ? float_group : kPackedGroup}};
  return {{"quant_method", "compressed-tensors"},
          {"format", form.is_mx      ? "mxfp4-pack-quantized"
                     : form.is_float ? "nvfp4-pack-quantized"
                                     : "pack-quantized"},
          {"ignore", {"lm_head"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_PACKED_FORMS_H_
