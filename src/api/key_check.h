// From a request to its tenant: where a client's key stands over HTTP and gRPC, what refuses it,
// and the sink that counts what an answer takes. Any thread.
#ifndef BATON_API_KEY_CHECK_H_
#define BATON_API_KEY_CHECK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/api/answer_sink.h"
#include "src/api/api_paths.h"
#include "src/api/key_ring.h"
#include "src/http/http_message.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace baton::api {

struct BuiltRequest;

using Tenant = std::shared_ptr<TenantUse>;

// The tenant of a request; null: `error` is the refusal, which has been counted and logged.
// `known`: the row of its path; null = there is none. Looks for `Authorization: Bearer KEY`, else
// `x-api-key: KEY`. A key in the URL is refused whatever else the request has.
Tenant TenantOfHttp(KeyRing* keys, const http::HttpRequest& request, const ApiPath* known,
                    router::RequestError* error);
// True when the query has a field in which clients send keys.
bool HasKeyInQuery(std::string_view query);
// Finds the tenant by the metadata of a call; `method`: "ChatCompletion".
Tenant TenantOfGrpc(KeyRing* keys, const grpc::CallbackServerContext& context,
                    std::string_view method, router::RequestError* error);

// 429 with the limit and when to come again. `verdict` is not ok.
router::RequestError QuotaError(const TenantVerdict& verdict);
// Takes a request; false: `error`. A null tenant has no limits.
bool TakeRequest(const Tenant& tenant, const Clock& clock, router::RequestError* error);
// The fields of an answer to this tenant, which may be null.
void AddRateFields(const Tenant& tenant, const Clock& clock, http::HttpHeaders* headers);
void AddRateFields(const Tenant& tenant, const Clock& clock, grpc::CallbackServerContext* context);

// Names the tenant, which may be null, to the router, for its share of KV.
void SetKv(const Tenant& tenant, BuiltRequest* built);
// Counts an answered request of a tenant, which may be null.
void CountAnswered(const Tenant& tenant, int http_status);

// A tenant's place for one answer that is being made; gives it back when it ends. Movable.
class TenantPlace {
 public:
  TenantPlace() = default;
  // False: `error` is 429. A null tenant has room for all.
  static bool Take(const Tenant& tenant, const Clock& clock, uint64_t num_prompt_tokens,
                   TenantPlace* place, router::RequestError* error);
  ~TenantPlace() { End(0); }
  TenantPlace(TenantPlace&& other) noexcept
      : tenant_(std::move(other.tenant_)), clock_(other.clock_) {}
  TenantPlace& operator=(TenantPlace&& other) noexcept;

  bool is_taken() const { return tenant_ != nullptr; }
  const Tenant& tenant() const { return tenant_; }
  // Only the first call counts.
  void End(uint64_t num_answer_tokens);

 private:
  Tenant tenant_;
  const Clock* clock_ = nullptr;
};

// `sink`, or where `place` is taken a sink before it that counts what the answer takes, and the
// answer itself. `has_tokens`: of its requests.
std::shared_ptr<AnswerSink> Metered(TenantPlace place, bool has_tokens,
                                    std::shared_ptr<AnswerSink> sink);

}  // namespace baton::api

#endif  // BATON_API_KEY_CHECK_H_
