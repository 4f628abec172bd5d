#include "src/model/gguf_types.h"

#include <array>

namespace baton::model {
namespace {

constexpr auto kYes = GgufTypeSupport::kSupported;
constexpr auto kSized = GgufTypeSupport::kSized;
constexpr auto kName = GgufTypeSupport::kUnsized;
constexpr auto kGone = GgufTypeSupport::kRemoved;

// Sizes: the block layouts in ggml-common.h of llama.cpp.
constexpr std::array kTensorTypes = {
    GgufTensorType{0, "F32", 1, 4, kYes},           GgufTensorType{1, "F16", 1, 2, kYes},
    GgufTensorType{2, "Q4_0", 32, 18, kYes},        GgufTensorType{3, "Q4_1", 32, 20, kYes},
    GgufTensorType{4, "Q4_2", 0, 0, kGone},         GgufTensorType{5, "Q4_3", 0, 0, kGone},
    GgufTensorType{6, "Q5_0", 32, 22, kYes},        GgufTensorType{7, "Q5_1", 32, 24, kYes},
    GgufTensorType{8, "Q8_0", 32, 34, kYes},        GgufTensorType{9, "Q8_1", 32, 36, kSized},
    GgufTensorType{10, "Q2_K", 256, 84, kYes},      GgufTensorType{11, "Q3_K", 256, 110, kYes},
    GgufTensorType{12, "Q4_K", 256, 144, kYes},     GgufTensorType{13, "Q5_K", 256, 176, kYes},
    GgufTensorType{14, "Q6_K", 256, 210, kYes},     GgufTensorType{15, "Q8_K", 256, 292, kSized},
    GgufTensorType{16, "IQ2_XXS", 256, 66, kSized}, GgufTensorType{17, "IQ2_XS", 256, 74, kSized},
    GgufTensorType{18, "IQ3_XXS", 256, 98, kSized}, GgufTensorType{19, "IQ1_S", 256, 50, kSized},
    GgufTensorType{20, "IQ4_NL", 32, 18, kYes},     GgufTensorType{21, "IQ3_S", 256, 110, kSized},
    GgufTensorType{22, "IQ2_S", 256, 82, kSized},   GgufTensorType{23, "IQ4_XS", 256, 136, kYes},
    GgufTensorType{24, "I8", 1, 1, kSized},         GgufTensorType{25, "I16", 1, 2, kSized},
    GgufTensorType{26, "I32", 1, 4, kSized},        GgufTensorType{27, "I64", 1, 8, kSized},
    GgufTensorType{28, "F64", 1, 8, kSized},        GgufTensorType{29, "IQ1_M", 256, 56, kSized},
    GgufTensorType{30, "BF16", 1, 2, kYes},         GgufTensorType{31, "Q4_0_4_4", 0, 0, kGone},
    GgufTensorType{32, "Q4_0_4_8", 0, 0, kGone},    GgufTensorType{33, "Q4_0_8_8", 0, 0, kGone},
    GgufTensorType{34, "TQ1_0", 256, 54, kSized},   GgufTensorType{35, "TQ2_0", 256, 66, kSized},
    GgufTensorType{36, "IQ4_NL_4_4", 0, 0, kGone},  GgufTensorType{37, "IQ4_NL_4_8", 0, 0, kGone},
    GgufTensorType{38, "IQ4_NL_8_8", 0, 0, kGone},  GgufTensorType{39, "MXFP4", 32, 17, kYes},
    GgufTensorType{40, "NVFP4", 64, 36, kYes},      GgufTensorType{41, "Q1_0", 128, 18, kSized},
    GgufTensorType{42, "Q2_0", 0, 0, kName},
};

// The rows are in id order without holes, so that an id is an index.
constexpr bool RowsAreIndexedById() {
  for (size_t i = 0; i < kTensorTypes.size(); ++i) {
    if (kTensorTypes[i].id != i) return false;
  }
  return true;
}
static_assert(RowsAreIndexedById());

struct ValueTypeRow {
  std::string_view name;
  size_t bytes;
};

constexpr std::array<ValueTypeRow, 13> kValueTypes = {{{"u8", 1},
                                                       {"i8", 1},
                                                       {"u16", 2},
                                                       {"i16", 2},
                                                       {"u32", 4},
                                                       {"i32", 4},
                                                       {"f32", 4},
                                                       {"bool", 1},
                                                       {"string", 0},
                                                       {"array", 0},
                                                       {"u64", 8},
                                                       {"i64", 8},
                                                       {"f64", 8}}};

}  // namespace

size_t GgufValueBytes(GgufValueType type) {
  const size_t idx = static_cast<size_t>(type);
  return idx < kValueTypes.size() ? kValueTypes[idx].bytes : 0;
}

std::string_view GgufValueTypeName(GgufValueType type) {
  const size_t idx = static_cast<size_t>(type);
  return idx < kValueTypes.size() ? kValueTypes[idx].name : "?";
}

const GgufTensorType* FindGgufTensorType(uint32_t id) {
  return id < kTensorTypes.size() ? &kTensorTypes[id] : nullptr;
}

}  // namespace baton::model
