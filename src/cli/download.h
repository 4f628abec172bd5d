// Downloads of the files of a model hub.
#ifndef BATON_CLI_DOWNLOAD_H_
#define BATON_CLI_DOWNLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// One line on stderr that is redrawn while bytes arrive; nothing is drawn when stderr is no
// terminal, except the last state.
class ProgressBar {
 public:
  // `total` 0 = unknown.
  ProgressBar(std::string label, uint64_t total) : label_(std::move(label)), total_(total) {}
  ~ProgressBar();
  void Set(uint64_t done);

 private:
  void Draw() const;
  std::string label_;
  uint64_t total_;
  uint64_t done_ = 0;
  int64_t drawn_us_ = 0;
};

// The bytes that a partial answer holds.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;    // one past the last
  uint64_t total = 0;  // of the whole file; 0 = not said
};

// The value of a Content-Range header, "bytes 10-99/100" or "bytes 10-99/*". InvalidArgument
// otherwise.
StatusOr<ByteRange> ParseContentRange(std::string_view text);

// A file of a model hub, and where it goes.
struct HubFile {
  std::string repository;  // ORG/REPO
  std::string name;        // its path inside the repository
  std::string path;        // on this machine
};

// Fetches each file from ${HF_ENDPOINT:-https://huggingface.co}/ORG/REPO/resolve/main/NAME. A
// `path`.part is resumed with a Range request where the hub names the file's sha256. It is resumed
// too where the hub says by an ETag or Last-Modified that the part came from this file. Any other
// part begins anew.
//
// A file that is there and whole is kept, and then no server is asked. While another process
// fetches the same file, waits for it, `wait_s` at most. Where one of several files does not exist
// nothing is fetched.
//
// The sha256 that the hub names (X-Linked-Etag or ETag of 64 hexadecimal digits) is checked. A hub
// that answers neither 2xx nor 3xx to the question for it fails the download. Where the hub names
// none that is said on stderr, and the file is remembered as unchecked. HubToken() is sent to the
// hub and to no other origin.
Status DownloadHubFiles(const std::vector<HubFile>& files, int64_t wait_s);

}  // namespace baton::cli

#endif  // BATON_CLI_DOWNLOAD_H_
