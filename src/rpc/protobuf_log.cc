#include "src/rpc/protobuf_log.h"

#include <string>

#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"

#include "src/base/log.h"

namespace baton::rpc {
namespace {

void OnLine(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
            const std::string& message) {
  BATON_LOG_DEBUG("protobuf: {}", message);
}

void OnGrpcLine(gpr_log_func_args* line) { BATON_LOG_DEBUG("gRPC: {}", line->message); }

}  // namespace

void TakeOverProtobufLog() { (void)google::protobuf::SetLogHandler(&OnLine); }

void TakeOverGrpcLog() { gpr_set_log_function(&OnGrpcLine); }

}  // namespace baton::rpc
