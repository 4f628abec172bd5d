// The end of a download: the file is checked, gets its name, and other processes notice. One
// thread.
#ifndef BATON_CLI_ARRIVAL_H_
#define BATON_CLI_ARRIVAL_H_

#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/cli/part_file.h"

namespace baton::cli {

// Whether a whole file has come to `path`, as a process that waits for another one asks again and
// again. Each version of the file, with its record, is judged once; a file or record that cannot be
// read is looked at again.
class Arrival {
 public:
  // `sha256` "" = any that was remembered when the file arrived (known_digest.h).
  Arrival(std::string path, std::string sha256)
      : path_(std::move(path)), sha256_(std::move(sha256)) {}

  bool IsThere() const;

 private:
  std::string path_;
  std::string sha256_;
  mutable std::string judged_;  // state of the file and of its record that was judged last
  mutable bool is_there_ = false;
};

// Checks the part file's digest, unless `sha256` is "", remembers it (as unchecked then), and gives
// the file the name `path`. DataLoss, and the part file is dropped, when the digest is another.
Status PublishChecked(PartFile& part, const std::string& path, std::string_view sha256);

}  // namespace baton::cli

#endif  // BATON_CLI_ARRIVAL_H_
