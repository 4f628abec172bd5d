// UniqueFd: the owner of one file descriptor. One thread at a time.
#ifndef BATON_BASE_UNIQUE_FD_H_
#define BATON_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace baton {

// Closes its descriptor when destroyed; empty is -1.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }

  // Gives the descriptor to the caller.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  // Closes the current descriptor and takes `fd`.
  void reset(int fd = -1) {
    // No retry on EINTR: Linux has already freed the number then.
    if (fd_ >= 0) (void)::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace baton

#endif  // BATON_BASE_UNIQUE_FD_H_
