#include "src/tls/tls_files.h"

namespace baton::tls {

Status CheckTlsFlags(const TlsFiles& files) {
  if (files.empty()) return OkStatus();
  std::string missing;
  const auto need = [&missing](const std::string& path, const char* flag) {
    if (path.empty()) missing += (missing.empty() ? "" : " and ") + std::string(flag);
  };
  need(files.cert, "--tls-cert");
  need(files.key, "--tls-key");
  need(files.ca, "--tls-ca");
  if (missing.empty()) return OkStatus();
  return InvalidArgument("{} missing: --tls-cert, --tls-key and --tls-ca go together",
                         missing + (missing.find(" and ") == std::string::npos ? " is" : " are"));
}

}  // namespace baton::tls
