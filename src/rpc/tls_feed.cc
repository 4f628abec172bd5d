#include "src/rpc/tls_feed.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <utility>

#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/log.h"
#include "src/base/memory_file.h"

namespace baton::rpc {

using tls::TlsFiles;
using tls::TlsTexts;
using tls::TlsWatch;

namespace {

// All feeds of the process: one, but for tests.
struct Feeds {
  Mutex mutex;
  std::deque<std::pair<TlsFiles, TlsFeed>> feeds BATON_GUARDED_BY(mutex);
};

StatusOr<UniqueFd> CopyOf(const std::string& text) {
  BATON_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemoryFile("baton-tls", text.size()));
  if (pwrite(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ResourceExhausted("a memory file of {} bytes: {}", text.size(), ErrnoText(errno));
  }
  return fd;
}

std::string PathOf(const UniqueFd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

}  // namespace

const TlsFiles& TlsFeed::CopiesOf(const TlsFiles& files) {
  static Feeds all;
  MutexLock lock(all.mutex);
  for (const auto& [named, feed] : all.feeds) {
    if (named == files) return feed.copies_;
  }
  return all.feeds.emplace_back(files, files).second.copies_;
}

TlsFeed::TlsFeed(const TlsFiles& files) : files_(files) {
  for (UniqueFd& fd : fds_) {
    StatusOr<UniqueFd> empty = CopyOf("");
    if (empty.ok()) fd = *std::move(empty);
  }
  copies_ = {PathOf(fds_[0]), PathOf(fds_[1]), PathOf(fds_[2])};
  if (access(copies_.ca.c_str(), R_OK) != 0) {
    BATON_LOG_ERROR("gRPC cannot read the copies of the TLS files, such as {}: {}", copies_.ca,
                    ErrnoText(errno));
  }
  Look();
  thread_ = Thread("tls-files", [this] {
    MutexLock lock(mutex_);
    while (!stops_) {
      const auto next =
          std::chrono::steady_clock::now() + std::chrono::microseconds(TlsWatch::kLookIntervalUs);
      while (!stops_ && stop_changed_.WaitUntil(mutex_, next)) {
      }
      if (stops_) return;
      lock.Unlock();
      Look();
      lock.Lock();
    }
  });
}

TlsFeed::~TlsFeed() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
  }
  stop_changed_.NotifyAll();
  thread_.Join();
  // gRPC may still read them: another file must not get their numbers.
  for (UniqueFd& fd : fds_) (void)fd.release();
}

void TlsFeed::Look() {
  if (watch_ == nullptr) {
    // A process checks its files at its start, and says there what is wrong with them.
    StatusOr<std::unique_ptr<TlsWatch>> watch = TlsWatch::Create(files_);
    if (!watch.ok()) return;
    watch_ = *std::move(watch);
  }
  const TlsTexts& texts = watch_->Current(SystemClock().NowUs()).texts();
  if (texts == published_) return;
  const Status status = Publish(texts);
  // Tried again at each look; one cause is one line.
  if (!status.ok() && failure_ != status.message()) {
    BATON_LOG_WARN("gRPC keeps the former TLS files: {}", std::string(status.message()));
  }
  failure_ = std::string(status.message());
}

// gRPC reads a pair again when one of its files has another time, in seconds, after reading than
// before. So it never keeps the new key with the former certificate.
Status TlsFeed::Publish(const TlsTexts& texts) {
  std::array<UniqueFd, 3> copies;
  BATON_ASSIGN_OR_RETURN(copies[0], CopyOf(texts.cert));
  BATON_ASSIGN_OR_RETURN(copies[1], CopyOf(texts.key));
  BATON_ASSIGN_OR_RETURN(copies[2], CopyOf(texts.ca));
  for (size_t i = 0; i < copies.size(); ++i) {
    if (dup3(copies[i].get(), fds_[i].get(), O_CLOEXEC) < 0) {
      return Unavailable("dup3: {}", ErrnoText(errno));
    }
  }
  published_ = texts;
  return OkStatus();
}

}  // namespace baton::rpc
