#include "src/rpc/protobuf_log.h"

#include <string>

#include "google/protobuf/stubs/logging.h"

#include "src/base/log.h"

namespace baton::rpc {
namespace {

void OnLine(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
            const std::string& message) {
  BATON_LOG_DEBUG("protobuf: {}", message);
}

}  // namespace

void TakeOverProtobufLog() { (void)google::protobuf::SetLogHandler(&OnLine); }

}  // namespace baton::rpc
