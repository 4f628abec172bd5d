// A server on a free port with a handler of the test's choice, and waits that end.
#ifndef BATON_TESTS_HTTP_TEST_SERVER_H_
#define BATON_TESTS_HTTP_TEST_SERVER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

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

// A test that keeps the responder of the latest request, to drive it, and counts the clients that
// left.
class KeepsResponder {
 protected:
  HttpHandler Keep() {
    return [this](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      responder->OnClosed([this](HttpClientGone how) {
        how_closed_ = how;
        ++closed_;
      });
      std::lock_guard lock(mutex_);
      responder_ = std::move(responder);
    };
  }

  std::shared_ptr<HttpResponder> TakeResponder() {
    std::shared_ptr<HttpResponder> taken;
    EXPECT_TRUE(Eventually([&] {
      std::lock_guard lock(mutex_);
      taken = std::move(responder_);
      return taken != nullptr;
    }));
    return taken;
  }

  std::mutex mutex_;
  std::shared_ptr<HttpResponder> responder_;  // guarded by mutex_
  std::atomic<int> closed_{0};
  std::atomic<HttpClientGone> how_closed_{HttpClientGone::kLeft};
};

}  // namespace baton::http

#endif  // BATON_TESTS_HTTP_TEST_SERVER_H_
