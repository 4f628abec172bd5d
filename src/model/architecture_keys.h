// ArchitectureKeys: the keys of one architecture in a file, read and checked against their ranges.
// Private to src/model. Any thread.
#ifndef BATON_MODEL_ARCHITECTURE_KEYS_H_
#define BATON_MODEL_ARCHITECTURE_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/gguf.h"

namespace baton::model {

// Inclusive range of an integer key.
struct UintRange {
  uint64_t min;
  uint64_t max;
};

// The keys of one architecture: "ARCH." and a name.
struct ArchitectureKeys {
  const GgufFile& file;
  std::string_view architecture;

  std::string Key(std::string_view name) const { return fmt::format("{}.{}", architecture, name); }

  static absl::StatusOr<uint32_t> Ranged(std::string_view key, uint64_t value, UintRange range) {
    if (value < range.min || value > range.max) {
      return InvalidArgument("key \"{}\" is {}, supported is [{}, {}]", key, value, range.min,
                             range.max);
    }
    return static_cast<uint32_t>(value);
  }
  absl::StatusOr<uint32_t> Uint(std::string_view name, UintRange range) const {
    BATON_ASSIGN_OR_RETURN(const uint64_t value, file.Uint(Key(name)));
    return Ranged(Key(name), value, range);
  }
  absl::StatusOr<uint32_t> UintOr(std::string_view name, uint64_t fallback, UintRange range) const {
    BATON_ASSIGN_OR_RETURN(const uint64_t value, file.UintOr(Key(name), fallback));
    return Ranged(Key(name), value, range);
  }
  // A number, or an array of as many equal ones as there are layers.
  absl::StatusOr<uint32_t> EqualUint(std::string_view name, uint32_t num_layers,
                                     UintRange range) const {
    const GgufValue* value = file.FindValue(Key(name));
    if (value == nullptr || !value->is_array()) return Uint(name, range);
    const std::optional<uint64_t> first = value->At(0).value_or(GgufValue()).AsUint();
    if (value->count() != num_layers || !first.has_value()) {
      return InvalidArgument("key \"{}\" must be a number, or {} equal ones", Key(name),
                             num_layers);
    }
    for (uint64_t i = 1; i < num_layers; ++i) {
      const std::optional<uint64_t> other = value->At(i).value_or(GgufValue()).AsUint();
      if (other == first) continue;
      return Unimplemented(
          "key \"{}\" is {} in layer 0 and {} in layer {}: only equal layers are "
          "supported",
          Key(name), *first, other.has_value() ? fmt::format("{}", *other) : "no number", i);
    }
    return Ranged(Key(name), *first, range);
  }
  // A number for all layers, or an array of one for each.
  absl::StatusOr<std::vector<uint32_t>> UintPerLayer(std::string_view name, uint32_t num_layers,
                                                     UintRange range) const {
    const std::string key = Key(name);
    const GgufValue* value = file.FindValue(key);
    if (value == nullptr || !value->is_array()) {
      BATON_ASSIGN_OR_RETURN(const uint32_t number, Uint(name, range));
      return std::vector<uint32_t>(num_layers, number);
    }
    if (value->count() != num_layers) {
      return InvalidArgument("key \"{}\" has {} numbers, the model has {} layers", key,
                             value->count(), num_layers);
    }
    std::vector<uint32_t> out;
    for (uint32_t i = 0; i < num_layers; ++i) {
      const std::optional<uint64_t> number = value->At(i).value_or(GgufValue()).AsUint();
      if (!number.has_value()) {
        return InvalidArgument("key \"{}\": element {} is no number", key, i);
      }
      BATON_ASSIGN_OR_RETURN(const uint32_t ranged,
                             Ranged(fmt::format("{}[{}]", key, i), *number, range));
      out.push_back(ranged);
    }
    return out;
  }
  absl::StatusOr<double> RopeBase(std::string_view name) const {
    BATON_ASSIGN_OR_RETURN(const double base, file.DoubleOr(Key(name), 10000.0));
    if (base >= 1.0 && base <= 1e12) return base;
    return InvalidArgument("key \"{}\" is {}, supported is [1, 1e12]", Key(name), base);
  }
};

}  // namespace baton::model

#endif  // BATON_MODEL_ARCHITECTURE_KEYS_H_
