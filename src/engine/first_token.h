// One token before a worker says that it is ready: proof that this model, on this device, in these
// blocks computes one. A worker whose weights, kernels or device give no numbers never becomes
// ready, so no request meets it. The thread that starts the engine, before it does.
#ifndef BATON_ENGINE_FIRST_TOKEN_H_
#define BATON_ENGINE_FIRST_TOKEN_H_

#include "kvcache/kv_view.h"
#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/model/forward_model.h"

namespace baton::engine {

// Computes a prompt of one token (id 0), takes the likeliest next one, and computes that one too:
// prefill and decode. Returns the second step's likeliest token. Uses the first blocks of `kv`,
// which must be free and are left with bytes that mean nothing. Internal with the values when a
// logit is not finite; what Forward says when it fails. Costs two steps of one row.
StatusOr<TokenId> ComputeFirstToken(model::ForwardModel* model, const kv::KvView& kv);

}  // namespace baton::engine

#endif  // BATON_ENGINE_FIRST_TOKEN_H_
