// ErrorDetails: google.rpc's messages about an error, which gRPC clients read besides its code and
// text. Pure; any thread.
#ifndef BATON_API_ERROR_DETAILS_H_
#define BATON_API_ERROR_DETAILS_H_

#include <cstddef>
#include <string>

#include "src/router/request_error.h"

namespace baton::api {

// Clients take 8 KiB of metadata, and the text stands there three times, twice in base64.
inline constexpr size_t kMaxDetailedMessageBytes = 1024;

// A google.rpc.Status as bytes for grpc::Status: a BadRequest where the request is at fault and the
// error names the field, a RetryInfo where the client may come back. "" where there is neither, and
// for a text above kMaxDetailedMessageBytes.
std::string ErrorDetails(const router::RequestError& error);

}  // namespace baton::api

#endif  // BATON_API_ERROR_DETAILS_H_
