// Checks before anything begins: of an engine's numbers and parts, and of a router's order. Pure.
#ifndef BATON_ENGINE_ENGINE_CHECKS_H_
#define BATON_ENGINE_ENGINE_CHECKS_H_

#include "src/base/status.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_types.h"

namespace baton::engine {

// InvalidArgument naming the number that is outside its range, or the part that is missing.
Status CheckEngine(const EngineConfig& config, const EngineParts& parts);

// Whether an order is a request that this engine can serve when it has room. InvalidArgument naming
// the number that is outside its range; FailedPrecondition naming what this worker does not do.
Status CheckSpec(const RequestSpec& spec, const EngineConfig& config, const EngineParts& parts);

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_CHECKS_H_
