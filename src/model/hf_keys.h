// The keys that may stand in a config.json. THE table says which keys are read, which cannot change
// numbers, and which may only have their neutral value. Private to the folder reader; pure; any
// thread.
#ifndef BATON_MODEL_HF_KEYS_H_
#define BATON_MODEL_HF_KEYS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/status.h"
#include "src/model/architecture.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Which object of a config.json it is.
enum class HfObject : uint8_t {
  kModel = 0,  // of a text model: the whole file, or its text_config
  kOuter = 1,  // around the text_config of a model that reads images too
  kRope = 2,   // rope_scaling, or rope_parameters of one kind of layer
};

// kUnsupportedValue naming the first refused key of `object`, in the order of names. An unknown key
// is refused unless its value is null or empty. A known key is refused when it has a value other
// than its neutral ones.
absl::Status CheckHfKeys(const JsonObject& object, HfObject kind, const ArchitectureTraits& traits);

// The keys of a HfObject::kRope that are read; their values are checked where they are read.
std::span<const std::string_view> HfRopeKeys();

// Adds to `config`, an object, the values of absent keys. They are those that the configuration
// class of `model_type` in transformers has. Text models inside others are saved without them.
void AddHfDefaults(std::string_view model_type, nlohmann::json& config);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_KEYS_H_
