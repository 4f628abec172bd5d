// ClientPause: whether a client that reads too slowly is to get nothing for now, and when it is
// given up. Pure; owned by the router's thread.
#ifndef BATON_ROUTER_CLIENT_PAUSE_H_
#define BATON_ROUTER_CLIENT_PAUSE_H_

#include <cstddef>
#include <cstdint>

namespace baton::router {

inline constexpr size_t kPauseBytes = size_t{256} * 1024;  // buffered for a client: stop delivering
inline constexpr size_t kResumeBytes = size_t{64} * 1024;  // and go on below this

// See the file comment.
class ClientPause {
 public:
  bool on() const { return on_; }

  // Before each delivery, with what is buffered for the client. True: it is paused (now).
  bool BeginIfSlow(size_t bytes, int64_t now_us) {
    if (on_ || bytes <= kPauseBytes) return on_;
    on_ = true;
    least_bytes_ = bytes;
    progress_us_ = now_us;
    return true;
  }
  // While paused: ends the pause when the client has caught up. False: it has read nothing for
  // `limit_us` and is given up.
  bool Look(size_t bytes, int64_t now_us, int64_t limit_us) {
    if (bytes <= kResumeBytes) {
      on_ = false;
    } else if (bytes < least_bytes_) {
      least_bytes_ = bytes;
      progress_us_ = now_us;
    }
    return !on_ || now_us - progress_us_ < limit_us;
  }
  // For so long nobody could see what the client read.
  void Forgive(int64_t late_us) { progress_us_ += late_us; }

 private:
  bool on_ = false;
  size_t least_bytes_ = 0;  // buffered when progress was last seen
  int64_t progress_us_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CLIENT_PAUSE_H_
