#include "src/cli/sha256.h"

#include <array>
#include <cstdio>
#include <memory>

#include "openssl/evp.h"

#include "src/base/hex.h"

namespace baton::cli {

StatusOr<std::string> FileSha256(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return NotFound("cannot open {}", path);
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr);
  std::array<unsigned char, size_t{256} * 1024> piece;
  size_t size = 0;
  while ((size = std::fread(piece.data(), 1, piece.size(), file.get())) > 0) {
    EVP_DigestUpdate(digest.get(), piece.data(), size);
  }
  if (std::ferror(file.get())) return DataLoss("cannot read {}", path);
  std::array<uint8_t, EVP_MAX_MD_SIZE> bytes;
  unsigned int num_bytes = 0;
  EVP_DigestFinal_ex(digest.get(), bytes.data(), &num_bytes);
  return HexFromBytes(std::span<const uint8_t>(bytes.data(), num_bytes));
}

}  // namespace baton::cli
