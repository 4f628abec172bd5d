// One line on a terminal that says how a load is going.
#ifndef BATON_CLI_BENCH_LIVE_LINE_H_
#define BATON_CLI_BENCH_LIVE_LINE_H_

#include <cstdint>
#include <string>

#include "src/loadgen/load_loop.h"

namespace baton::cli {

// "[#####-----]  50 %  15.0 s  12 running, 240 done, 0 failed, 812 pieces/s".
std::string DrawProgress(const loadgen::LoadProgress& progress, double pieces_per_s);

// Keeps the line up to date on stderr; does nothing when stderr is no terminal. One thread.
class LiveLine {
 public:
  LiveLine();
  ~LiveLine() { Clear(); }
  bool active() const { return active_; }
  void Show(const loadgen::LoadProgress& progress);
  // Removes the line, so that something else can be printed.
  void Clear();

 private:
  bool active_ = false;
  bool shown_ = false;
  int64_t last_us_ = 0;
  uint64_t last_pieces_ = 0;
};

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_LIVE_LINE_H_
