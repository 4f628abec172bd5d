// A server on a free port with a handler of the test's choice, and waits that end.
#ifndef BATON_TESTS_HTTP_TEST_SERVER_H_
#define BATON_TESTS_HTTP_TEST_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/http/http_server.h"

namespace baton::http {

inline std::unique_ptr<HttpServer> StartTestServer(HttpHandler handler,
                                                   HttpServerOptions options = {},
                                                   int num_threads = 2) {
  options.num_threads = num_threads;
  StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(std::move(options), std::move(handler));
  BATON_CHECK(server.ok(), "{}", server.status().ToString());
  return *std::move(server);
}

// Answers with the method, the path and the body.
inline void EchoHandler(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  HttpResponse response;
  response.headers.Add("Content-Type", "text/plain");
  response.body = request.method + " " + request.path + " " + request.body;
  responder->Respond(std::move(response));
}

// True as soon as `condition` holds; false after a minute, which ends a broken test.
inline bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline_us = SystemClock().NowUs() + 60'000'000;
  while (!condition()) {
    if (SystemClock().NowUs() > deadline_us) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace baton::http

#endif  // BATON_TESTS_HTTP_TEST_SERVER_H_
