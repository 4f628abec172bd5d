// CallName: the name by which the client of a gRPC call knows it. Every call that generates has
// one.
#ifndef BATON_API_GRPC_CALL_STATE_H_
#define BATON_API_GRPC_CALL_STATE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "src/base/limits.h"

namespace baton::api {

// Names the call in the initial metadata: every answer, a refusal too, has `x-request-id`. `known`:
// the request's name; "" = the client's from the metadata if it is usable, else a new one. Fields
// that nothing read stand in `x-baton-ignored-fields`: `ignored`, and a name that is not usable.
void AddRequestId(std::string_view known, std::vector<std::string> ignored,
                  grpc::CallbackServerContext* context);

// The largest metadata of a call that is answered: the client's own and 4 KiB of its
// library's.
inline constexpr size_t kMaxMetadataBytes = limits::kMaxClientMetadataBytes + (4 << 10);
// Above this the gRPC library ends the whole connection and all its calls.
inline constexpr int kMaxConnectionMetadataBytes = 1 << 20;
static_assert(kMaxMetadataBytes < kMaxConnectionMetadataBytes, "else no call is refused alone");

// True when the names and values of the call's metadata have at most kMaxMetadataBytes.
bool MetadataFits(const grpc::CallbackServerContext& context);

// Tells a call's name once, before anything else is sent. One thread at a time: the API's worker
// up to Submit, the router's thread after it.
class CallName {
 public:
  explicit CallName(grpc::CallbackServerContext* context) : context_(context) {}

  // Fields that nothing read, for Tell.
  void Ignore(std::vector<std::string> fields) { ignored_ = std::move(fields); }
  // As AddRequestId; only the first call counts.
  void Tell(std::string_view known) {
    if (!told_) AddRequestId(known, std::move(ignored_), context_);
    told_ = true;
  }

 private:
  grpc::CallbackServerContext* const context_;
  std::vector<std::string> ignored_;
  bool told_ = false;
};

}  // namespace baton::api

#endif  // BATON_API_GRPC_CALL_STATE_H_
