// TlsWatch: the newest good TlsIdentity of three files that may be replaced while the process runs.
// One thread.
//
// Files that do not fit together, as in the middle of a replacement, change nothing: the last good
// ones stay, a warning says so once, and the next look tries again.
#ifndef BATON_TLS_TLS_WATCH_H_
#define BATON_TLS_TLS_WATCH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "src/tls/tls_identity.h"

namespace baton::tls {

// See the file comment.
class TlsWatch {
 public:
  // How often the files are looked at, microseconds.
  static constexpr int64_t kLookIntervalUs = 1'000'000;

  // Fails as TlsIdentity::Load does.
  static StatusOr<std::unique_ptr<TlsWatch>> Create(const TlsFiles& files,
                                                    TlsPeers peers = TlsPeers::kCluster);

  // For a connection that begins now. Looks at the files once in kLookIntervalUs at most, and reads
  // them only when one has changed.
  const TlsIdentity& Current(int64_t now_us);

 private:
  // The data that tell one state of a file from another.
  struct Stamp {
    int64_t modified_ns = 0;
    uint64_t inode = 0;
    int64_t size_bytes = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  using Stamps = std::array<Stamp, 3>;

  TlsWatch(const TlsFiles& files, TlsPeers peers) : files_(files), peers_(peers) {}
  static Stamp StampOf(const std::string& path);
  Stamps StampsNow() const;

  const TlsFiles files_;
  const TlsPeers peers_;
  std::shared_ptr<const TlsIdentity> context_;
  Stamps stamps_;  // of what context_ was made from
  int64_t next_look_us_ = 0;
  std::string failure_;  // of the last try; "" = none
};

}  // namespace baton::tls

#endif  // BATON_TLS_TLS_WATCH_H_
