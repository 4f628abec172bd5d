// Errors as google.rpc's messages.
#include "src/api/error_details.h"

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace baton::api {
namespace {

using router::ErrorCode;
using router::FieldError;
using router::PlainError;
using router::RequestError;

google::rpc::Status Parsed(const RequestError& error) {
  google::rpc::Status status;
  EXPECT_TRUE(status.ParseFromString(ErrorDetails(error)));
  return status;
}

TEST(ErrorDetailsTest, AFieldAtFaultIsABadRequest) {
  const RequestError error =
      FieldError(ErrorCode::kInvalidValue, "temperature", "a number from 0 to 100");
  const google::rpc::Status status = Parsed(error);
  EXPECT_EQ(status.code(), 3);
  EXPECT_EQ(status.message(), error.Message());
  ASSERT_EQ(status.details_size(), 1);
  EXPECT_EQ(status.details(0).type_url(), "type.googleapis.com/google.rpc.BadRequest");
  google::rpc::BadRequest bad;
  ASSERT_TRUE(status.details(0).UnpackTo(&bad));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "temperature");
  EXPECT_EQ(bad.field_violations(0).description(), error.Message());
  EXPECT_EQ(bad.field_violations(0).reason(), "INVALID_VALUE");
}

TEST(ErrorDetailsTest, AFullServerSaysWhenToComeBack) {
  RequestError error = PlainError(ErrorCode::kQueueFull);
  error.retry_after_s = 7;
  const google::rpc::Status status = Parsed(error);
  EXPECT_EQ(status.code(), 8);
  ASSERT_EQ(status.details_size(), 1);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(status.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 7);
  EXPECT_EQ(retry.retry_delay().nanos(), 0);
}

TEST(ErrorDetailsTest, ErrorsWithoutAFieldOrWithALongTextHaveNone) {
  EXPECT_EQ(ErrorDetails(PlainError(ErrorCode::kInternal)), "");
  const std::string expected(kMaxDetailedMessageBytes, 'x');
  EXPECT_EQ(ErrorDetails(FieldError(ErrorCode::kInvalidValue, "stop", expected)), "");
}

}  // namespace
}  // namespace baton::api
