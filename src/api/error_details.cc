#include "src/api/error_details.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace baton::api {

using router::ErrorNameOf;
using router::GrpcCodeOf;
using router::HttpStatusOf;
using router::RequestError;

std::string ErrorDetails(const RequestError& error) {
  const std::string message = error.Message();
  if (message.size() > kMaxDetailedMessageBytes) return "";
  google::rpc::Status status;
  const int http_status = HttpStatusOf(error.code);
  if (!error.param.empty() && http_status >= 400 && http_status < 500) {
    google::rpc::BadRequest bad;
    google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
    violation->set_field(error.param);
    violation->set_description(message);
    std::string reason(ErrorNameOf(error.code));
    absl::AsciiStrToUpper(&reason);  // the form that google.rpc asks for
    violation->set_reason(std::move(reason));
    status.add_details()->PackFrom(bad);
  }
  if (error.retry_after_s > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(error.retry_after_s);
    status.add_details()->PackFrom(retry);
  }
  if (status.details().empty()) return "";
  status.set_code(GrpcCodeOf(error.code));
  status.set_message(message);
  return status.SerializeAsString();
}

}  // namespace baton::api
