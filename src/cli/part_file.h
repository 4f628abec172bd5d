// The file that a download grows in, FILE.part, and who may write it. Any number of processes, on
// one host or several that share the folder, may want the same FILE at once: an advisory lock on
// FILE.part lets one of them write, and the others wait. The kernel takes the lock away when its
// process dies, however it dies, so the next one goes on where that one stopped. One thread.
#ifndef BATON_CLI_PART_FILE_H_
#define BATON_CLI_PART_FILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::cli {

// 1. While a PartFile lives it alone writes the bytes of path(): lock held, or a name of its own.
// 2. FILE appears by rename, whole.
// 3. An empty one is removed at the end; any other stays for the next process, unless dropped.
// 4. On a file system without locks the name is FILE.part-XXXXXX, random and made anew: each
//    process then downloads for itself and nothing is resumed. A file that a killed process left is
//    removed after a day without a write.
class PartFile {
 public:
  ~PartFile();
  PartFile(PartFile&&) = default;
  PartFile& operator=(PartFile&&) = delete;

  // The longest wait for another process, and what tells that it has done the work.
  struct Turn {
    int64_t wait_s = 0;
    std::function<bool()> is_done;
  };

  // Takes the part file of `target`, whose folder must exist. While another process has it, waits
  // and says so on stderr. Returns with is_done() when turn.is_done says that the work has been
  // done meanwhile; then there is nothing to write. DeadlineExceeded when the other process still
  // has it after turn.wait_s; Unavailable when the file cannot be made.
  static StatusOr<PartFile> Take(const std::string& target, const Turn& turn);

  bool is_done() const { return !file_.valid(); }
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  // One line that says which version of the file the bytes belong to, as SetOrigin left it; "" when
  // it is not known. It lies in FILE.part.from, with the whole file's size (PartTotal) in a second
  // line, and goes with FILE.part.
  std::string Origin() const;
  // To be called before the first byte of another version is appended. "" and 0 = not known.
  // Unavailable when it cannot be written.
  Status SetOrigin(const std::string& origin, uint64_t total = 0);

  // Appends. Unavailable with the reason, for example a full disk; what was written stays.
  Status Append(std::string_view bytes);
  // Cuts the file after `size` bytes.
  Status Cut(uint64_t size);
  // Makes the bytes outlast a loss of power.
  Status Flush();
  // Gives the file the name `target`, over an older one, and the lock back.
  Status Publish(const std::string& target);
  // Removes it, since its bytes are not those that were wanted, and gives the lock back.
  void Drop();

 private:
  // Outcome of one try to lock the file.
  enum class Try { kTaken, kBusy, kGone, kNoLocks };

  PartFile() = default;
  StatusOr<Try> TryLock();
  Status TakeOwnName(const std::string& target);

  std::string path_;
  UniqueFd file_;
  uint64_t size_ = 0;
};

// Bytes of the whole file, as SetOrigin left them for the part file at `path`; 0 = not known.
uint64_t PartTotal(const std::string& path);

}  // namespace baton::cli

#endif  // BATON_CLI_PART_FILE_H_
