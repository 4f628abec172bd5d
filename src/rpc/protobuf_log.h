// Lines that protobuf and gRPC log themselves go to our log at level debug instead of stderr. Any
// peer can cause them, and a port that is in use gets one line of ours already.
#ifndef BATON_RPC_PROTOBUF_LOG_H_
#define BATON_RPC_PROTOBUF_LOG_H_

namespace baton::rpc {

// Once, before messages of others are parsed; again does no harm.
void TakeOverProtobufLog();
// Once, before the first server or channel; again does no harm.
void TakeOverGrpcLog();

}  // namespace baton::rpc

#endif  // BATON_RPC_PROTOBUF_LOG_H_
