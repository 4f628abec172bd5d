#include "src/cli/download.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "src/base/clock.h"
#include "src/base/hex.h"
#include "src/base/print.h"
#include "src/base/quoted_text.h"
#include "src/base/size_text.h"
#include "src/cli/arrival.h"
#include "src/cli/known_digest.h"
#include "src/cli/part_file.h"
#include "src/cli/web_client.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kRedirectLimit = 5;
constexpr int64_t kRedrawUs = 100'000;

// The sha256 that the hub names for the file, or "".
std::string NamedSha256(const WebHead& head) {
  for (const char* name : {"x-linked-etag", "etag"}) {
    const std::string header = head.Header(name);
    absl::string_view text = header;
    absl::ConsumePrefix(&text, "W/");
    absl::ConsumePrefix(&text, "\"");
    absl::ConsumeSuffix(&text, "\"");
    if (text.size() == 64 && BytesFromHex(std::string_view(text.data(), text.size()))) {
      return absl::AsciiStrToLower(text);
    }
  }
  return "";
}

// Content-Length, or 0 when the answer does not say it.
uint64_t ContentLength(const WebHead& head) {
  uint64_t length = 0;
  return absl::SimpleAtoi(head.Header("content-length"), &length) ? length : 0;
}

// Lines of PartFile::Origin(): the digest that the hub named, else the validator of the answer that
// the bytes came with.
constexpr std::string_view kFromDigest = "sha256 ";
constexpr std::string_view kFromEtag = "etag ";
constexpr std::string_view kFromTime = "modified ";

// "" for an answer without a validator that stands for the very bytes, as a weak ETag does not.
std::string OriginOf(const WebHead& head) {
  const std::string etag = head.Header("etag");
  if (etag.starts_with('"')) return fmt::format("{}{}", kFromEtag, etag);
  const std::string time = head.Header("last-modified");
  return time.empty() ? "" : fmt::format("{}{}", kFromTime, time);
}

// Makes the request go on where the part file ends, if its bytes can be told from those of another
// version: by the digest at the end, or by the server, which is told their validator. Else the part
// file is emptied and begins anew.
Status GoOn(PartFile& part, const std::string& sha256, WebRequest& request) {
  const std::string origin = part.Origin();
  bool is_same = false;
  if (!sha256.empty()) {
    is_same =
        !origin.starts_with(kFromDigest) || origin == fmt::format("{}{}", kFromDigest, sha256);
  }
  for (const std::string_view kind : {kFromEtag, kFromTime}) {
    if (!sha256.empty() || !origin.starts_with(kind)) continue;
    request.if_range = origin.substr(kind.size());
    is_same = !request.if_range.empty();
  }
  if (!is_same && part.size() > 0) BATON_RETURN_IF_ERROR(part.Cut(0));
  request.begin = part.size();
  return OkStatus();
}

// A GGUF file, and each part of a split one, begins with it.
constexpr std::string_view kMagic = "GGUF";
// So many first bytes tell a text from a model.
constexpr size_t kKindBytes = 16;

// OK, or the text that the file at `path` begins with instead of a model. A hub may answer with a
// page for people, with an error in JSON, or with the pointer that stands for a large file.
Status CheckKind(const std::string& path, std::string_view label) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(kKindBytes, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  const auto is_text = [](unsigned char byte) {
    return absl::ascii_isprint(byte) || absl::ascii_isspace(byte);
  };
  if (begin.starts_with(kMagic) || !std::all_of(begin.begin(), begin.end(), is_text)) {
    return OkStatus();
  }
  return FailedPrecondition("{} is no GGUF file: it begins with {}", label,
                            QuotedForMessage(begin));
}

// Writes an answer's body into the part file; a 200 instead of a 206 starts it anew.
class PartWriter {
 public:
  // `sha256` is what the hub named, or "".
  PartWriter(PartFile& part, std::string label, std::string sha256)
      : part_(part), label_(std::move(label)), sha256_(std::move(sha256)) {}

  Status OnHead(const WebHead& head) {
    const std::string said = head.Header("content-range");
    if (head.status == 206 || head.status == 416) BATON_RETURN_IF_ERROR(CheckVersion(head));
    if (head.status == 416 && part_.size() > 0) return OnNothingLeft(said);
    if (head.status != 200 && head.status != 206) {
      return Unavailable("the hub answered {} for {}", head.status, label_);
    }
    if (head.status == 206) {
      const StatusOr<ByteRange> range = ParseContentRange(said);
      if (!range.ok() || range->begin != part_.size()) {
        return Unavailable("the hub answered the bytes '{}' of {}, asked were those from {}", said,
                           label_, part_.size());
      }
      total_ = range->total > 0 ? range->total : range->end;
    } else {
      BATON_RETURN_IF_ERROR(part_.Cut(0));
      const std::string origin =
          sha256_.empty() ? OriginOf(head) : fmt::format("{}{}", kFromDigest, sha256_);
      total_ = ContentLength(head);
      BATON_RETURN_IF_ERROR(part_.SetOrigin(origin, total_));
    }
    bar_ = std::make_unique<ProgressBar>(label_, total_);
    return OkStatus();
  }

  Status OnBody(std::string_view piece) {
    if (bar_ == nullptr) return OkStatus();  // the body of a 416
    BATON_RETURN_IF_ERROR(part_.Append(piece));
    bar_->Set(part_.size());
    if (is_kind_known_ || part_.size() < kKindBytes) return OkStatus();
    is_kind_known_ = true;
    return DropText();
  }

  Status Finish() {
    bar_.reset();
    if (total_ > 0 && part_.size() != total_) {
      return DataLoss("{} bytes of {} arrived; run the same command to resume", part_.size(),
                      total_);
    }
    return DropText();
  }

 private:
  // Keeps nothing of a text. A file whose sha256 the hub named is compared with that instead.
  Status DropText() {
    if (!sha256_.empty()) return OkStatus();
    const Status status = CheckKind(part_.path(), label_ + " at the hub");
    if (!status.ok()) part_.Drop();
    return status;
  }

  // A server may not know If-Range, but say which version it sends.
  Status CheckVersion(const WebHead& head) {
    const std::string origin = OriginOf(head);
    if (!sha256_.empty() || origin.empty() || origin == part_.Origin()) return OkStatus();
    part_.Drop();
    return Unavailable(
        "{} is of another version than what the hub has now; it was dropped, run the same command "
        "again",
        part_.path());
  }

  // 416: no byte is left from where the part ends, so it is whole, or of another file.
  Status OnNothingLeft(const std::string& range) {
    if (range == fmt::format("bytes */{}", part_.size())) return OkStatus();
    const uint64_t size = part_.size();
    part_.Drop();
    return Unavailable(
        "{} had {} bytes, but the hub has '{}' of {}; it was dropped, run the same "
        "command again",
        part_.path(), size, range, label_);
  }

  PartFile& part_;
  std::string label_;
  std::string sha256_;
  uint64_t total_ = 0;
  bool is_kind_known_ = false;
  std::unique_ptr<ProgressBar> bar_;
};

// The hub's answer that names the file's sha256: its own, before it redirects to where the bytes
// are, but after redirects on the hub itself, which a renamed repository has. Where a redirect
// leads to an address without HEAD, the redirect is the answer: the bytes may be had all the same.
StatusOr<WebHead> AskForName(WebRequest request) {
  request.is_head = true;
  std::vector<std::string> urls;
  WebHead redirect;
  for (int num_redirects = 0;; ++num_redirects) {
    urls.push_back(request.url);
    BATON_ASSIGN_OR_RETURN(WebHead answer, WebCall(request, nullptr, nullptr));
    const bool has_no_head = answer.status == 405 || answer.status == 501;
    if (num_redirects > 0 && has_no_head) return redirect;
    const bool is_last = answer.redirect.empty() || !NamedSha256(answer).empty() ||
                         !IsSameOrigin(request.url, answer.redirect);
    if (is_last) return answer;
    if (num_redirects == kRedirectLimit) return TooManyRedirects(urls, answer.redirect);
    request.url = answer.redirect;
    redirect = std::move(answer);
  }
}

// The hub's answer about a file before it is fetched.
struct HubOffer {
  WebRequest request;  // that fetches it
  std::string sha256;  // "" = the hub names none
};

StatusOr<HubOffer> AskHub(const HubFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string base, HubEndpoint());
  BATON_ASSIGN_OR_RETURN(const std::string token, HubToken());
  HubOffer offer;
  offer.request.url =
      fmt::format("{}/{}/resolve/main/{}", base, UrlPart(file.repository), UrlPart(file.name));
  if (!token.empty()) offer.request.authorization = "Bearer " + token;
  BATON_ASSIGN_OR_RETURN(const WebHead named, AskForName(offer.request));
  const std::string& url = offer.request.url;
  if (named.status == 404) return NotFound("{} does not exist", url);
  if (named.status == 401 || named.status == 403) {
    return PermissionDenied("{} answered {}: set HF_TOKEN to a token that may read it", url,
                            named.status);
  }
  if (named.status / 100 != 2 && named.status / 100 != 3) {
    // Without this answer there is no checksum, and what cannot be checked is not accepted.
    return Unavailable("{} answered {}; try again later", url, named.status);
  }
  offer.sha256 = NamedSha256(named);
  offer.request.max_redirects = kRedirectLimit;
  return offer;
}

// Whether the file that is at `file.path` will do, and says on stderr why. Where no digest was
// named for it (it came by hand, by an older release, or from a hub that named none) the hub is
// asked, if it can be.
StatusOr<bool> IsGood(const HubFile& file) {
  std::error_code error;
  if (!fs::exists(file.path, error)) {
    if (error) return Unavailable("cannot look for {}: {}", file.path, error.message());
    return false;
  }
  BATON_ASSIGN_OR_RETURN(const KnownDigest known, DigestOf(file.path));
  if (known.is_checked()) {
    Print(stderr, "{} is there and whole; the hub was not asked\n", file.path);
    return true;
  }
  if (const Status status = CheckKind(file.path, file.path); !status.ok()) {
    Print(stderr, "{}: fetching it again\n", std::string(status.message()));
    return false;
  }
  if (!known.expected.empty() && !known.is_remembered()) {
    Print(stderr, "{} has sha256 {}, expected {}: fetching it again\n", file.path, known.sha256,
          known.expected);
    return false;
  }
  const StatusOr<HubOffer> offer = AskHub(file);
  if (!offer.ok()) {
    Print(stderr, "{} is there and is used as it is; it cannot be checked: {}\n", file.path,
          std::string(offer.status().message()));
    return true;
  }
  if (offer->sha256.empty() && known.is_remembered()) {
    Print(stderr, "{} is there as it arrived, not checked: the hub names no sha256 for it\n",
          file.path);
    return true;
  }
  if (offer->sha256 != known.sha256) {
    Print(stderr, "{} has sha256 {}, the hub has {}: fetching it again\n", file.path, known.sha256,
          offer->sha256.empty() ? "none to compare" : offer->sha256);
    return false;
  }
  RememberDigest(file.path, file.path, {.sha256 = known.sha256});
  Print(stderr, "{} is there and is what the hub has\n", file.path);
  return true;
}

// `refused` is the state of the file that IsGood refused, "" = no file. Another process that writes
// the file is waited for until a file of another state is there.
Status Fetch(const HubFile& file, const std::string& refused, int64_t wait_s) {
  const Arrival arrival(file.path, "");
  const auto is_done = [&] { return FileState(file.path) != refused && arrival.IsThere(); };
  BATON_ASSIGN_OR_RETURN(PartFile part,
                         PartFile::Take(file.path, {.wait_s = wait_s, .is_done = is_done}));
  if (part.is_done()) return OkStatus();
  BATON_ASSIGN_OR_RETURN(HubOffer offer, AskHub(file));
  BATON_RETURN_IF_ERROR(GoOn(part, offer.sha256, offer.request));
  PartWriter writer(part, file.name, offer.sha256);
  const StatusOr<WebHead> answer = WebCall(
      offer.request, [&](const WebHead& head) { return writer.OnHead(head); },
      [&](std::string_view piece) { return writer.OnBody(piece); });
  if (absl::IsDataLoss(answer.status()) || absl::IsDeadlineExceeded(answer.status())) {
    return DataLoss("{}; run the same command to resume", std::string(answer.status().message()));
  }
  if (!answer.ok()) return answer.status();
  BATON_RETURN_IF_ERROR(writer.Finish());
  if (offer.sha256.empty()) {
    Print(stderr, "the hub names no sha256 for {}: not checked\n", file.name);
  }
  return PublishChecked(part, file.path, offer.sha256);
}

// After a failure: the folders that were made for the file, where nothing is in them.
void RemoveEmptyFolders(const HubFile& file) {
  fs::path folder = fs::path(file.path).parent_path();
  std::error_code ignored;
  for (const fs::path& level : fs::path(file.name)) {
    if (level.empty() || !fs::remove(folder, ignored)) return;
    folder = folder.parent_path();
  }
}

// Names the files that the hub has not, before gigabytes of the others are read.
Status CheckAllOffered(const std::vector<const HubFile*>& files) {
  std::vector<std::string> missing;
  for (const HubFile* file : files) {
    const Status status = AskHub(*file).status();
    if (absl::IsNotFound(status)) {
      missing.push_back(file->name);
    } else if (!status.ok()) {
      return status;
    }
  }
  if (missing.empty()) return OkStatus();
  return NotFound("{} has {} of the {} parts that are still to be fetched; missing: {}",
                  files.front()->repository, files.size() - missing.size(), files.size(),
                  absl::StrJoin(missing, ", "));
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

Status DownloadHubFiles(const std::vector<HubFile>& files, int64_t wait_s) {
  std::vector<const HubFile*> wanted;
  std::vector<std::string> refused;  // of each wanted file: its state before it was judged
  for (const HubFile& file : files) {
    std::string state = FileState(file.path);
    BATON_ASSIGN_OR_RETURN(const bool is_good, IsGood(file));
    if (is_good) continue;
    wanted.push_back(&file);
    refused.push_back(std::move(state));
  }
  if (files.size() > 1 && !wanted.empty()) BATON_RETURN_IF_ERROR(CheckAllOffered(wanted));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const HubFile* file = wanted[i];
    const fs::path folder = fs::path(file->path).parent_path();
    std::error_code error;
    const bool is_made = fs::create_directories(folder, error);
    if (error) return Unavailable("cannot create {}: {}", folder.string(), error.message());
    if (const Status s = Fetch(*file, refused[i], wait_s); !s.ok()) {
      if (is_made) RemoveEmptyFolders(*file);
      return s;
    }
  }
  return OkStatus();
}

}  // namespace baton::cli
