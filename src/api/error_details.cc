#include "src/api/error_details.h"

#include <string_view>

#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace baton::api {

using router::ErrorNameOf;
using router::GrpcCodeOf;
using router::HttpStatusOf;
using router::RequestError;

namespace {

// "invalid_value" -> "INVALID_VALUE", the form that google.rpc asks for.
std::string ReasonOf(std::string_view name) {
  std::string reason(name);
  for (char& c : reason) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return reason;
}

}  // namespace

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
    violation->set_reason(ReasonOf(ErrorNameOf(error.code)));
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
