#include "src/tls/tls_watch.h"

#include <sys/stat.h>

#include "src/base/log.h"

namespace baton::tls {

TlsWatch::Stamp TlsWatch::StampOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_ino,
          info.st_size};
}

TlsWatch::Stamps TlsWatch::StampsNow() const {
  return {StampOf(files_.cert), StampOf(files_.key), StampOf(files_.ca)};
}

StatusOr<std::unique_ptr<TlsWatch>> TlsWatch::Create(const TlsFiles& files, TlsPeers peers) {
  std::unique_ptr<TlsWatch> watch(new TlsWatch(files, peers));
  // Before reading: a change in between is then found by the next look.
  watch->stamps_ = watch->StampsNow();
  BATON_ASSIGN_OR_RETURN(watch->context_, TlsIdentity::Load(files, peers));
  return watch;
}

const TlsIdentity& TlsWatch::Current(int64_t now_us) {
  if (now_us < next_look_us_) return *context_;
  next_look_us_ = now_us + kLookIntervalUs;
  const Stamps stamps = StampsNow();
  if (stamps == stamps_) return *context_;
  StatusOr<std::shared_ptr<const TlsIdentity>> loaded = TlsIdentity::Load(files_, peers_);
  if (loaded.ok()) {
    context_ = *std::move(loaded);
    stamps_ = stamps;
    failure_.clear();
    BATON_LOG_INFO("new connections use the changed --tls-cert {}", files_.cert);
  } else if (failure_ != loaded.status().message()) {
    failure_ = std::string(loaded.status().message());
    BATON_LOG_WARN("the former TLS files stay in use: {}", failure_);
  }
  return *context_;
}

}  // namespace baton::tls
