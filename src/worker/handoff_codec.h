// The wire form of hand-off messages: kvcache's plain structs to and from handoff.proto. Pure; any
// thread. Peers are not trusted: Decode checks every size and every field's presence.
#ifndef BATON_WORKER_HANDOFF_CODEC_H_
#define BATON_WORKER_HANDOFF_CODEC_H_

#include <string>
#include <string_view>

#include "src/engine/engine_types.h"

namespace baton::worker {

// The HandoffWire between workers.
class ProtoHandoffWire : public engine::HandoffWire {
 public:
  std::string Encode(const kv::HandoffMessage& message) const override;
  StatusOr<kv::HandoffMessage> Decode(std::string_view bytes) const override;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_HANDOFF_CODEC_H_
