#include "src/model/hf_pooling.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "src/base/byte_text.h"
#include "src/model/file_mapping.h"
#include "src/model/folder_error.h"
#include "src/model/hf_json.h"

namespace baton::model {
namespace {

// All modes that sentence-transformers 6 has: its name for each, and the key that is true for it in
// the files of older releases.
struct Mode {
  std::string_view name;
  std::string_view key;
  Pooling pooling;
};
constexpr std::array kModes = {
    Mode{"cls", "pooling_mode_cls_token", Pooling::kClass},
    Mode{"mean", "pooling_mode_mean_tokens", Pooling::kMean},
    Mode{"lasttoken", "pooling_mode_lasttoken", Pooling::kLast},
    Mode{"max", "pooling_mode_max_tokens", Pooling::kNone},
    Mode{"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::kNone},
    Mode{"weightedmean", "pooling_mode_weightedmean_tokens", Pooling::kNone}};

// `names`: the value of `pooling_mode`, a name or a list of names.
absl::StatusOr<Pooling> PoolingOfNames(const JsonObject& config, const nlohmann::json& names) {
  constexpr const char* kWanted = "a pooling mode or a list of them";
  if (names.is_array() && names.size() != 1) return Pooling::kNone;
  const nlohmann::json& name = names.is_array() ? names[0] : names;
  const auto mode = std::ranges::find_if(kModes, [&](const Mode& row) { return name == row.name; });
  if (mode == kModes.end()) return config.Bad("pooling_mode", kWanted);
  return mode->pooling;
}

// As sentence-transformers reads it: the new key goes first, and a file that says neither means
// the mean.
absl::StatusOr<Pooling> PoolingOf(const JsonObject& config) {
  if (const nlohmann::json* names = config.Find("pooling_mode"); names != nullptr) {
    return PoolingOfNames(config, *names);
  }
  std::optional<Pooling> pooling;
  bool says = false;
  for (const Mode& mode : kModes) {
    says = says || config.Has(mode.key);
    BATON_ASSIGN_OR_RETURN(const bool is_on, config.BoolOr(mode.key, false));
    if (is_on) pooling = pooling.has_value() ? Pooling::kNone : mode.pooling;
  }
  return pooling.value_or(says ? Pooling::kNone : Pooling::kMean);
}

}  // namespace

absl::StatusOr<std::optional<Pooling>> ReadHfPooling(const std::string& folder) {
  constexpr std::string_view kName = "1_Pooling/config.json";
  const std::filesystem::path path = std::filesystem::path(folder) / kName;
  const auto file = FileMapping::OpenIfThere(path.string());
  if (!file.ok()) return CannotOpenFile(kName, file.status());
  if (!file->has_value()) return std::optional<Pooling>();
  BATON_ASSIGN_OR_RETURN(const nlohmann::json json,
                         ParseHfConfigJson(AsChars((*file)->bytes()), kName));
  BATON_ASSIGN_OR_RETURN(Pooling pooling, PoolingOf(JsonObject(json, std::string(kName))));
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(folder) / "2_Dense", ignored)) {
    pooling = Pooling::kNone;
  }
  return std::optional<Pooling>(pooling);
}

}  // namespace baton::model
