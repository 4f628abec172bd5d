#include "src/loadgen/http_reply.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"

#include "src/base/trimmed_text.h"

namespace baton::loadgen {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string Lower(std::string_view text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

}  // namespace

StatusOr<size_t> HttpReply::Push(std::string_view bytes,
                                 const std::function<Status(std::string_view)>& on_body) {
  size_t used = 0;
  while (used < bytes.size() && state_ != State::kDone) {
    const std::string_view rest = bytes.substr(used);
    const bool in_body = state_ == State::kBody || state_ == State::kChunkData;
    BATON_ASSIGN_OR_RETURN(const size_t taken,
                           in_body ? TakeBodyBytes(rest, on_body) : TakeLineBytes(rest));
    used += taken;
  }
  return used;
}

StatusOr<size_t> HttpReply::TakeBodyBytes(std::string_view bytes,
                                          const std::function<Status(std::string_view)>& on_body) {
  size_t take = bytes.size();
  if (framing_ != Framing::kUntilEnd) take = std::min<uint64_t>(left_, take);
  BATON_RETURN_IF_ERROR(on_body(bytes.substr(0, take)));
  if (framing_ == Framing::kUntilEnd) return take;
  left_ -= take;
  if (left_ == 0) state_ = state_ == State::kChunkData ? State::kChunkEnd : State::kDone;
  return take;
}

StatusOr<size_t> HttpReply::TakeLineBytes(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  const size_t take = end == std::string_view::npos ? bytes.size() : end + 1;
  header_bytes_ += take;
  if (header_bytes_ > kMaxHeaderBytes) {
    return DataLoss("the header of the answer is longer than {} bytes", kMaxHeaderBytes);
  }
  line_.append(bytes.substr(0, take));
  if (end == std::string_view::npos) return take;
  line_.pop_back();
  if (line_.ends_with('\r')) line_.pop_back();
  BATON_RETURN_IF_ERROR(TakeLine(line_));
  line_.clear();
  return take;
}

Status HttpReply::TakeLine(std::string_view line) {
  switch (state_) {
    case State::kStatusLine:
      return TakeStatusLine(line);
    case State::kHeaders:
      return line.empty() ? EndHeaders() : TakeHeader(line);
    case State::kChunkSize:
      return TakeChunkSize(line);
    case State::kChunkEnd:
      if (!line.empty()) return DataLoss("a chunk is longer than its size says");
      state_ = State::kChunkSize;
      header_bytes_ = 0;
      return OkStatus();
    default:  // kTrailers
      if (line.empty()) state_ = State::kDone;
      return OkStatus();
  }
}

Status HttpReply::TakeStatusLine(std::string_view line) {
  const bool shaped = line.starts_with("HTTP/1.") && line.size() >= 12 && line[8] == ' ';
  const std::string_view code = shaped ? line.substr(9, 3) : "";
  const auto [end, error] = std::from_chars(code.data(), code.data() + code.size(), status_);
  if (!shaped || error != std::errc() || end != code.data() + 3 || status_ < 100) {
    return DataLoss("the answer is not HTTP/1.x: '{}'", line.substr(0, 80));
  }
  keep_alive_ = line[7] != '0';
  state_ = State::kHeaders;
  return OkStatus();
}

Status HttpReply::TakeHeader(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) {
    return DataLoss("a header of the answer has no name: '{}'", line.substr(0, 80));
  }
  const std::string name = Lower(line.substr(0, colon));
  const std::string_view value = Trimmed(line.substr(colon + 1), kBlanks);
  if (name == "content-type") {
    content_type_ = Lower(Trimmed(value.substr(0, value.find(';')), kBlanks));
  } else if (name == "connection") {
    const std::string option = Lower(value);
    if (option == "close") keep_alive_ = false;
    if (option == "keep-alive") keep_alive_ = true;
  } else if (name == "transfer-encoding") {
    if (Lower(value) != "chunked") return DataLoss("Transfer-Encoding '{}' is unknown", value);
    framing_ = Framing::kChunked;
  } else if (name == "content-length" && framing_ != Framing::kChunked) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), left_);
    if (error != std::errc() || end != value.data() + value.size()) {
      return DataLoss("Content-Length '{}' is no number", value);
    }
    framing_ = Framing::kLength;
  }
  return OkStatus();
}

Status HttpReply::EndHeaders() {
  if (status_ < 200) {
    Reset();
  } else if (status_ == 204 || status_ == 304) {
    framing_ = Framing::kLength;
    state_ = State::kDone;
  } else if (framing_ == Framing::kChunked) {
    state_ = State::kChunkSize;
    header_bytes_ = 0;
  } else {
    state_ = framing_ == Framing::kLength && left_ == 0 ? State::kDone : State::kBody;
  }
  return OkStatus();
}

Status HttpReply::TakeChunkSize(std::string_view line) {
  const std::string_view size = Trimmed(line.substr(0, line.find(';')), kBlanks);
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), left_, 16);
  if (size.empty() || error != std::errc() || end != size.data() + size.size()) {
    return DataLoss("a chunk's size is no number: '{}'", line.substr(0, 80));
  }
  state_ = left_ == 0 ? State::kTrailers : State::kChunkData;
  return OkStatus();
}

Status HttpReply::PushEnd() {
  if (state_ == State::kDone) return OkStatus();
  if (state_ == State::kBody && framing_ == Framing::kUntilEnd) {
    state_ = State::kDone;
    return OkStatus();
  }
  return DataLoss("the connection closed {}",
                  started() ? "in the middle of the answer" : "before the answer");
}

}  // namespace baton::loadgen
