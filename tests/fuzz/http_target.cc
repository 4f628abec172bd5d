// HTTP requests as bytes: one shipped HttpConnection over a socket pair, on this thread. The server
// must understand the same requests however the bytes were cut, and all it says must be HTTP.
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "src/base/unique_fd.h"
#include "src/http/http_connection.h"
#include "src/loadgen/http_reply.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using loadgen::HttpReply;
using namespace http;  // NOLINT(google-build-using-namespace)

namespace {

constexpr size_t kMaxBody = 4096;
constexpr size_t kMaxHeader = 2048;

// The requests and the answers that one connection made of its input.
struct Dialogue {
  std::vector<std::string> requests;  // method, target, fields and body of each
  std::string answers;                // all bytes that came back
};

std::string TextOfRequest(const HttpRequest& request) {
  std::string text = request.method + " " + request.target + "\n";
  for (const auto& [name, value] : request.headers.fields()) text += name + "=" + value + "\n";
  return text + "\n" + request.body;
}

void CheckRequest(const HttpRequest& request) {
  BATON_CHECK(!request.method.empty() && !request.target.empty());
  BATON_CHECK(request.body.size() <= kMaxBody, "a body of {} bytes", request.body.size());
  BATON_CHECK(request.headers.Count("Host") <= 1 && request.headers.Count("Content-Length") <= 1);
  const bool both = request.headers.Count("Content-Length") == 1 &&
                    request.headers.Count("Transfer-Encoding") == 1;
  BATON_CHECK(!both, "two framings in one request");
  for (const auto& [name, value] : request.headers.fields()) {
    const bool is_one_line =
        value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos;
    BATON_CHECK(!name.empty() && is_one_line, "a field with a line break");
  }
  BATON_CHECK(!request.path.empty(), "no path");
}

// Everything that is heard now.
void Hear(int fd, std::string* heard) {
  char bytes[8192];
  for (ssize_t size = 0; (size = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0;) {
    heard->append(bytes, static_cast<size_t>(size));
  }
}

Dialogue Talk(const std::vector<std::string_view>& pieces) {
  Dialogue dialogue;
  HttpServerShared shared;
  shared.options.max_body_bytes = kMaxBody;
  shared.options.max_header_bytes = kMaxHeader;
  shared.options.max_header_fields = 20;
  shared.options.error_formatter = PlainTextError;
  shared.handler = [&dialogue](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    CheckRequest(request);
    dialogue.requests.push_back(TextOfRequest(request));
    HttpResponse response;
    response.body = std::to_string(request.body.size());
    responder->Respond(std::move(response));
  };
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd peer(ends[1]);
  const auto loop = std::make_shared<boost::asio::io_context>(1);
  // Asio asks the socket for nothing that a unix socket lacks.
  boost::asio::ip::tcp::socket socket(*loop, boost::asio::ip::tcp::v4(), ends[0]);
  bool is_closed = false;
  StreamSweep sweep(loop.get());
  HandshakeTurns turns(loop.get());
  auto connection =
      std::make_shared<HttpConnection>(loop, HttpWire(std::move(socket), nullptr, &turns), &sweep,
                                       &shared, [&](HttpConnection*) { is_closed = true; });
  connection->Start(/*is_refused=*/false);
  for (const std::string_view piece : pieces) {
    if (is_closed) break;
    (void)!send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    loop->poll();
    loop->restart();
    Hear(peer.get(), &dialogue.answers);
  }
  (void)shutdown(peer.get(), SHUT_WR);
  for (int i = 0; i < 16 && !is_closed; ++i) {
    loop->poll();
    loop->restart();
    Hear(peer.get(), &dialogue.answers);
  }
  BATON_CHECK(is_closed, "the client left, and the connection stays");
  BATON_CHECK(shared.num_active_requests.load() == 0, "{} requests are still counted",
              shared.num_active_requests.load());
  return dialogue;
}

// All that came back is answers, one a request and at most one refusal after them.
void CheckAnswers(const Dialogue& dialogue) {
  std::string_view rest = dialogue.answers;
  size_t num_answers = 0;
  size_t num_refusals = 0;
  while (!rest.empty()) {
    // A HEAD request is answered without its body, so no parser can tell where the answer ends.
    const bool is_head = num_answers < dialogue.requests.size() &&
                         dialogue.requests[num_answers].starts_with("HEAD ");
    if (is_head) return;
    HttpReply reply;
    const auto used = reply.Push(rest, [](std::string_view) { return OkStatus(); });
    BATON_CHECK(used.ok(), "what came back is no HTTP: {}", used.status().ToString());
    // An interim answer (100) may be the last word before the client left.
    BATON_CHECK(reply.done() || reply.headers_done() || !reply.started(), "half an answer");
    BATON_CHECK(num_refusals == 0, "an answer behind a refusal");
    num_refusals += reply.status() >= 400 ? 1 : 0;
    num_answers += reply.status() == 200 ? 1 : 0;
    rest.remove_prefix(*used);
  }
  // The last one's answer may have met a closed socket.
  BATON_CHECK(num_answers <= dialogue.requests.size(), "{} answers to {} requests", num_answers,
              dialogue.requests.size());
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(http) {
  using namespace baton::fuzz;  // NOLINT: the whole target
  const std::string_view text = TextOf(input.first(std::min<size_t>(input.size(), 16384)));
  const Dialogue whole = Talk({text});
  CheckAnswers(whole);
  const Dialogue cut = Talk(CutPieces(text, 64));
  CheckAnswers(cut);
  BATON_CHECK(whole.requests == cut.requests, "{} requests in one piece, {} in many",
              whole.requests.size(), cut.requests.size());
}
