// TlsFeed: gives gRPC the newest TLS files that fit together, as copies in memory. Any thread.
//
// gRPC 1.51 reads its files itself, every few seconds. It drops a good pair for a bad one, refuses
// all connections from then on, and ends the process where a folder has the name. So gRPC reads
// copies, which change only after TlsWatch has taken the files.
#ifndef BATON_RPC_TLS_FEED_H_
#define BATON_RPC_TLS_FEED_H_

#include <array>
#include <memory>
#include <string>

#include "src/base/mutex.h"
#include "src/base/thread.h"
#include "src/base/unique_fd.h"
#include "src/tls/tls_files.h"
#include "src/tls/tls_watch.h"

namespace baton::rpc {

// See the file comment.
class TlsFeed {
 public:
  // Paths of the copies of `files`; they are empty until the files are good. The first call starts
  // the feed, which lives until the process ends: gRPC says nowhere when it reads last.
  static const tls::TlsFiles& CopiesOf(const tls::TlsFiles& files);

  explicit TlsFeed(const tls::TlsFiles& files);
  // The copies stay where they are.
  ~TlsFeed();
  TlsFeed(const TlsFeed&) = delete;
  TlsFeed& operator=(const TlsFeed&) = delete;

 private:
  // The constructor, then the thread, calls the two.
  void Look();
  Status Publish(const tls::TlsTexts& texts);

  const tls::TlsFiles files_;
  tls::TlsFiles copies_;         // "/proc/self/fd/N"; constant after construction
  std::array<UniqueFd, 3> fds_;  // certificate, key, authority; the numbers never change
  // The constructor, then the thread, owns the three.
  std::unique_ptr<tls::TlsWatch> watch_;  // null until the files were good once
  tls::TlsTexts published_;
  std::string failure_;  // of the last Publish; "" = none

  Mutex mutex_;
  bool stops_ BATON_GUARDED_BY(mutex_) = false;
  CondVar stop_changed_;
  Thread thread_;
};

}  // namespace baton::rpc

#endif  // BATON_RPC_TLS_FEED_H_
