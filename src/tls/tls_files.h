// The identity of a process towards the others of its cluster: three PEM files named by
// --tls-cert, --tls-key and --tls-ca. Pure; any thread.
#ifndef BATON_TLS_TLS_FILES_H_
#define BATON_TLS_TLS_FILES_H_

#include <string>

#include "src/base/status.h"

namespace baton::tls {

// Paths; all of them or none.
struct TlsFiles {
  std::string cert;  // own certificate, then the intermediate ones
  std::string key;   // of that certificate, without a passphrase
  std::string ca;    // who signs the certificates of this cluster

  bool empty() const { return cert.empty() && key.empty() && ca.empty(); }
  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

// The three files as read.
struct TlsTexts {
  std::string cert;
  std::string key;
  std::string ca;
  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// InvalidArgument naming the flags that are missing when only some are given.
Status CheckTlsFlags(const TlsFiles& files);

}  // namespace baton::tls

#endif  // BATON_TLS_TLS_FILES_H_
