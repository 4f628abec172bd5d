// Protobuf's own log lines, which any peer with a malformed message can cause, go to our log at
// level debug instead of stderr.
#ifndef BATON_RPC_PROTOBUF_LOG_H_
#define BATON_RPC_PROTOBUF_LOG_H_

namespace baton::rpc {

// Once, before messages of others are parsed; again does no harm.
void TakeOverProtobufLog();

}  // namespace baton::rpc

#endif  // BATON_RPC_PROTOBUF_LOG_H_
