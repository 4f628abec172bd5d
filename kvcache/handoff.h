// The hand-off of one prompt's KV from a prefill worker (P) to a decode worker (D).
// kvcache/HANDOFF.md shows the messages in their order.
//
// Each side is a table-driven, pure, copyable state machine, so that both can be explored against a
// lossy network in one thread.
#ifndef BATON_KVCACHE_HANDOFF_H_
#define BATON_KVCACHE_HANDOFF_H_

#include "kvcache/grant_park.h"        // IWYU pragma: export
#include "kvcache/handoff_action.h"    // IWYU pragma: export
#include "kvcache/handoff_dest.h"      // IWYU pragma: export
#include "kvcache/handoff_messages.h"  // IWYU pragma: export
#include "kvcache/handoff_request.h"   // IWYU pragma: export
#include "kvcache/handoff_source.h"    // IWYU pragma: export

#endif  // BATON_KVCACHE_HANDOFF_H_
