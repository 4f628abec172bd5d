// The end of a download: the file is checked, gets its name, and other processes notice. One
// thread.
#ifndef BATON_CLI_ARRIVAL_H_
#define BATON_CLI_ARRIVAL_H_

#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/cli/part_file.h"

namespace baton {

// Whether a whole file has come to `path`, as a process that waits for another one asks again and
// again. Each version of the file is read once.
class Arrival {
 public:
  // `sha256` "" = any that was remembered when the file arrived (known_digest.h).
  Arrival(std::string path, std::string sha256)
      : path_(std::move(path)), sha256_(std::move(sha256)) {}

  bool IsThere() const;

 private:
  std::string path_;
  std::string sha256_;
  mutable std::string judged_;  // the state of the file that was asked about last
  mutable bool is_there_ = false;
};

// Checks the part file's digest, unless `sha256` is "", remembers it, and gives the file the name
// `path`. DataLoss, and the part file is dropped, when the digest is another.
Status PublishChecked(PartFile& part, const std::string& path, std::string_view sha256);

}  // namespace baton

#endif  // BATON_CLI_ARRIVAL_H_
