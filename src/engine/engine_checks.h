// Checks of an engine's numbers and parts before it starts, and of a router's order. Pure.
#ifndef BATON_ENGINE_ENGINE_CHECKS_H_
#define BATON_ENGINE_ENGINE_CHECKS_H_

#include "src/base/status.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_types.h"

namespace baton::engine {

// InvalidArgument naming the number that is outside its range, or the part that is missing.
Status CheckEngine(const EngineConfig& config, const EngineParts& parts);

// Ok when this engine can serve the order once it has room. InvalidArgument names the number that
// is outside its range; FailedPrecondition names the feature that this worker lacks.
Status CheckSpec(const RequestSpec& spec, const EngineConfig& config, const EngineParts& parts);

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_CHECKS_H_
