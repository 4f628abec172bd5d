// The hand-off of one prompt's KV from a prefill worker (P) to a decode worker (D).
//
//   D                                     P
//   reserve blocks, open the receive      compute the prompt, chunk by chunk, layer by layer
//   Grant ------------------------------> sealed slices may leave (again = lease renewed)
//   verify each slice  <================= (block, layer) slices, while later layers compute
//   lease renewed      <----------------- Renew
//   Nack(slices) -----------------------> resent from the sealed blocks, <= 8 times each
//   chain equal?       <----------------- Seal: first tokens, hash chain, number of slices
//   Applied ----------------------------> release the blocks
//   close the receive, bind, decode
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
