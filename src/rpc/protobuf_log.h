// Lines that protobuf and gRPC log themselves go to our log instead of stderr. gRPC's errors are
// warnings there, kMaxGrpcErrors in kGrpcErrorsUs, with the number of those held back: any peer can
// cause them. All other lines are at level debug.
#ifndef BATON_RPC_PROTOBUF_LOG_H_
#define BATON_RPC_PROTOBUF_LOG_H_

#include <cstddef>
#include <cstdint>

#include "src/base/status.h"

namespace baton::rpc {

// A start that fails has two or three. Twenty a minute of the longest lines are
// 15 MB in a day.
inline constexpr uint32_t kMaxGrpcErrors = 20;
inline constexpr int64_t kGrpcErrorsUs = 60'000'000;
// The limit of one such line. gRPC joins the errors of all addresses that it tried.
inline constexpr size_t kMaxGrpcErrorBytes = 512;

// Once, before messages of others are parsed; again does no harm.
void TakeOverProtobufLog();
// Once, before the first server or channel; again does no harm.
void TakeOverGrpcLog();

// True once gRPC has given up a port of this process, which only a new process mends: gRPC 1.51
// listens no more after a connection that it could not accept, mostly for want of descriptors.
// Needs TakeOverGrpcLog. Any thread.
bool HasLostPort();
// Ok while all ports listen, else an error with what to do.
Status LostPort();

}  // namespace baton::rpc

#endif  // BATON_RPC_PROTOBUF_LOG_H_
