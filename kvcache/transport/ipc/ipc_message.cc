#include "kvcache/transport/ipc/ipc_message.h"

namespace baton::kv {

std::string EncodeIpcMessage(const IpcMessage& message) {
  std::string bytes = EncodeSliceHead(
      kIpcForm, {.kind = static_cast<uint8_t>(message.kind), .batch = message.batch});
  AppendSlices(kIpcForm, message.slices, &bytes);
  return bytes;
}

StatusOr<IpcMessage> DecodeIpcMessage(std::string_view bytes) {
  BATON_ASSIGN_OR_RETURN(const SliceMessageHead head, DecodeSliceHead(kIpcForm, &bytes));
  if (head.flag != 0 || head.number != 0) {
    return DataLoss("flag {} and number {}, not 0", head.flag, head.number);
  }
  IpcMessage message{.kind = static_cast<IpcMessageKind>(head.kind), .batch = head.batch};
  if (message.kind == IpcMessageKind::kOffer) {
    BATON_ASSIGN_OR_RETURN(message.slices, DecodeSlices(kIpcForm, bytes));
    return message;
  }
  if (message.kind == IpcMessageKind::kDone && bytes.empty()) return message;
  return DataLoss("kind {} with {} bytes of payload", head.kind, bytes.size());
}

}  // namespace baton::kv
