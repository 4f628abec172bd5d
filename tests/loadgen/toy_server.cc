#include "tests/loadgen/toy_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "fmt/format.h"

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/open_files.h"

namespace baton::loadgen {
namespace {

constexpr int64_t kTickUs = 50'000;  // how often the stop flag is looked at

// The number after `"key":` in a JSON text.
uint64_t NumberAfter(const std::string& text, const std::string& key) {
  const size_t at = text.find("\"" + key + "\":");
  return at == std::string::npos ? 1
                                 : std::strtoull(text.c_str() + at + key.size() + 3, nullptr, 10);
}

// The value of a header, or "".
std::string Header(const std::string& head, const std::string& name) {
  const size_t at = head.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const size_t from = at + name.size() + 4;
  return head.substr(from, head.find("\r\n", from) - from);
}

std::string Chunk(const std::string& bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace

std::string ToyServer::Token(uint64_t i) { return fmt::format(" w{}", i); }

std::string ToyServer::Text(uint64_t count) {
  std::string text;
  for (uint64_t i = 0; i < count; ++i) text += Token(i);
  return text;
}

ToyServer::ToyServer(const ToyOptions& options)
    : options_(options),
      draws_(options.seed),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  RaiseOpenFilesLimit();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BATON_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  BATON_CHECK(listen(listener_.get(), 4096) == 0);
  socklen_t size = sizeof address;
  (void)getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener_.get();
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  thread_ = Thread("toy-server", [this] { Run(); });
}

ToyServer::~ToyServer() { Stop(); }

void ToyServer::Stop() {
  stop_.store(true);
  thread_.Join();
}

void ToyServer::Run() {
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  epoll_event events[256];
  while (!stop_.load() && listener_) {
    int64_t wait_us = kTickUs;
    if (!due_.empty()) {
      wait_us = std::clamp<int64_t>(due_.top().at_us - SystemClock().NowUs(), 0, kTickUs);
    }
    const timespec timeout = {wait_us / 1'000'000, wait_us % 1'000'000 * 1000};
    const int ready = epoll_pwait2(epoll_.get(), events, 256, &timeout, nullptr);
    for (int i = 0; i < ready && listener_; ++i) {
      if (events[i].data.fd == listener_.get()) {
        Accept();
      } else if (auto peer = peers_.find(events[i].data.fd); peer != peers_.end()) {
        Read(peer->second);
      }
    }
    SendDue();
  }
  peers_.clear();
}

void ToyServer::Accept() {
  while (true) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    const int on = 1;
    (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd.get();
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event);
    const int number = fd.get();
    peers_[number].fd = std::move(fd);
  }
}

void ToyServer::Read(Peer& peer) {
  char buffer[65536];
  const ssize_t got = recv(peer.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (got <= 0) {
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) peers_.erase(peer.fd.get());
    return;
  }
  peer.in.append(buffer, static_cast<size_t>(got));
  const size_t end = peer.in.find("\r\n\r\n");
  if (end == std::string::npos) return;
  const std::string head = peer.in.substr(0, end + 2);
  const size_t length = std::strtoull(Header(head, "Content-Length").c_str(), nullptr, 10);
  if (peer.in.size() < end + 4 + length) return;
  std::string body = peer.in.substr(end + 4, length);
  peer.in.erase(0, end + 4 + length);
  Begin(peer, head, std::move(body));
}

void ToyServer::Begin(Peer& peer, const std::string& head, std::string body) {
  if (head.starts_with("GET ")) {
    const std::string models = "{\"data\":[{\"id\":\"toy\"}]}";
    SendBytes(peer, fmt::format("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                "Content-Length: {}\r\n\r\n{}",
                                models.size(), models));
    return;
  }
  peer.serial = ++num_requests_;
  if (options_.gone_after > 0 && peer.serial > options_.gone_after) {
    listener_.reset();
    return;
  }
  peer.name = Header(head, "X-Request-Id");
  peer.num_tokens = NumberAfter(body, "max_tokens");
  peer.fault = peer.serial % options_.fault_every == 0 ? options_.fault : ToyFault::kNone;
  if (peer.fault == ToyFault::kShortAnswer) --peer.num_tokens;
  if (peer.fault == ToyFault::kEndless) peer.num_tokens = UINT64_MAX;
  peer.next_token = 0;
  peer.log = &sent_us_[peer.name];
  bodies_.push_back(std::move(body));
  const double factor = std::exp(options_.noise * draws_.Normal());
  peer.first_us =
      static_cast<double>(SystemClock().NowUs()) + factor * static_cast<double>(options_.ttft_us);
  peer.gap_us = factor * static_cast<double>(options_.itl_us);
  if (peer.fault == ToyFault::kSilent) return;
  due_.push({static_cast<int64_t>(peer.first_us), peer.fd.get(), peer.serial});
}

void ToyServer::SendDue() {
  while (!due_.empty() && due_.top().at_us <= SystemClock().NowUs()) {
    const Due due = due_.top();
    due_.pop();
    const auto found = peers_.find(due.fd);
    if (found == peers_.end() || found->second.serial != due.serial) continue;
    SendToken(found->second);
  }
}

void ToyServer::SendToken(Peer& peer) {
  if (peer.next_token == 0 && peer.fault == ToyFault::kStatus503) {
    const std::string busy = "{\"error\":{\"message\":\"too busy\"}}";
    SendBytes(peer,
              fmt::format("HTTP/1.1 503 Busy\r\nContent-Length: {}\r\n\r\n{}", busy.size(), busy));
    return;
  }
  if (peer.next_token == 0 && peer.fault == ToyFault::kNotStreamed) {
    SendBytes(peer,
              "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n"
              "\r\n{\"choices\":[]}");
    return;
  }
  if (peer.fault == ToyFault::kCloseUnanswered) {
    peers_.erase(peer.fd.get());
    return;
  }
  const bool middle = peer.next_token == peer.num_tokens / 2;
  std::string out;
  if (peer.next_token == 0) {
    out =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    out += Chunk("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n");
  }
  if (middle && peer.fault == ToyFault::kMalformedEvent) out += Chunk("data: {\"choices\":[\n\n");
  if (middle && peer.fault == ToyFault::kBareJson) out += Chunk("{\"error\":\"oops\"}\n\n");
  if (middle && peer.fault == ToyFault::kErrorEvent) {
    out += Chunk("data: {\"error\":{\"message\":\"worker died\",\"code\":500}}\n\n");
  }
  const bool wrong = middle && peer.fault == ToyFault::kWrongText;
  out += Chunk(fmt::format(
      "data: {{\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":"
      "\"toy\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}},\"finish_reason\":null}}"
      "]"
      ",\"usage\":null}}\n\n",
      wrong ? " WRONG" : Token(peer.next_token)));
  peer.log->push_back(SystemClock().NowUs());
  SendBytes(peer, out);
  if (middle && peer.fault == ToyFault::kBreakOff) {
    peers_.erase(peer.fd.get());
    return;
  }
  if (++peer.next_token >= peer.num_tokens) {
    SendEnd(peer);
    return;
  }
  const double at_us = peer.first_us + peer.gap_us * static_cast<double>(peer.next_token);
  due_.push({static_cast<int64_t>(at_us), peer.fd.get(), peer.serial});
}

void ToyServer::SendEnd(Peer& peer) {
  std::string out =
      Chunk("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n");
  out += Chunk(fmt::format(
      "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{},"
      "\"prompt_tokens_details\":{{\"cached_tokens\":3}}}},\"timings\":{{\"path\":\"disagg\","
      "\"queue_ms\":1.5,\"prefill_ms\":{},\"kv_wait_ms\":0.5,\"first_step_ms\":2,\"decode_ms\":{}}}"
      "}}\n\n",
      peer.num_tokens, static_cast<double>(options_.ttft_us) / 1e3,
      peer.gap_us * static_cast<double>(peer.num_tokens) / 1e3));
  if (peer.fault != ToyFault::kNoDone) out += Chunk("data: [DONE]\n\n");
  SendBytes(peer, out + "0\r\n\r\n");
}

void ToyServer::SendBytes(Peer& peer, const std::string& bytes) {
  // A toy's answers fit into the socket's buffer unless the client stands still; then they are cut,
  // and the client reports it.
  (void)send(peer.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace baton::loadgen
