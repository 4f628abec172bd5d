#include "src/model/hf_pooling.h"

#include <array>
#include <filesystem>
#include <string_view>

#include "src/model/file_mapping.h"
#include "src/model/folder_error.h"
#include "src/model/hf_json.h"

namespace baton::model {

absl::StatusOr<std::optional<Pooling>> ReadHfPooling(const std::string& folder) {
  constexpr std::string_view kName = "1_Pooling/config.json";
  const std::filesystem::path path = std::filesystem::path(folder) / kName;
  const auto file = FileMapping::OpenIfThere(path.string());
  if (!file.ok()) return CannotOpenFile(kName, file.status());
  if (!file->has_value()) return std::optional<Pooling>();
  const std::string_view text(reinterpret_cast<const char*>((*file)->bytes().data()),
                              (*file)->bytes().size());
  BATON_ASSIGN_OR_RETURN(const nlohmann::json json, ParseHfConfigJson(text, kName));
  const JsonObject config(json, std::string(kName));
  // All modes that sentence-transformers 5 has.
  struct Mode {
    std::string_view key;
    Pooling pooling;
  };
  constexpr std::array kModes = {Mode{"pooling_mode_cls_token", Pooling::kClass},
                                 Mode{"pooling_mode_mean_tokens", Pooling::kMean},
                                 Mode{"pooling_mode_lasttoken", Pooling::kLast},
                                 Mode{"pooling_mode_max_tokens", Pooling::kNone},
                                 Mode{"pooling_mode_mean_sqrt_len_tokens", Pooling::kNone},
                                 Mode{"pooling_mode_weightedmean_tokens", Pooling::kNone}};
  std::optional<Pooling> pooling;
  for (const Mode& mode : kModes) {
    BATON_ASSIGN_OR_RETURN(const bool is_on, config.BoolOr(mode.key, false));
    if (is_on) pooling = pooling.has_value() ? Pooling::kNone : mode.pooling;
  }
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(folder) / "2_Dense", ignored)) {
    pooling = Pooling::kNone;
  }
  return std::optional<Pooling>(pooling.value_or(Pooling::kNone));
}

}  // namespace baton::model
