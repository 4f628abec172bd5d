#include "src/cli/bench_live_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "fmt/format.h"

#include "src/base/print.h"

namespace baton::cli {

using loadgen::LoadProgress;

namespace {

constexpr int kBarWidth = 24;

}  // namespace

std::string DrawProgress(const LoadProgress& progress, double pieces_per_s) {
  const double share = std::clamp(progress.share, 0.0, 1.0);
  const auto filled = static_cast<size_t>(share * kBarWidth);
  return fmt::format("[{}{}] {:3.0f} % {:6.1f} s  {} running, {} done, {} failed, {:.0f} pieces/s",
                     std::string(filled, '#'), std::string(kBarWidth - filled, '-'), 100.0 * share,
                     static_cast<double>(progress.elapsed_us) / 1e6, progress.running,
                     progress.ended - progress.failed, progress.failed, pieces_per_s);
}

LiveLine::LiveLine() : active_(isatty(STDERR_FILENO) == 1) {}

void LiveLine::Show(const LoadProgress& progress) {
  if (!active_) return;
  if (progress.elapsed_us < last_us_ || progress.pieces < last_pieces_) {
    last_us_ = 0;  // another run began
    last_pieces_ = 0;
  }
  const double seconds = static_cast<double>(progress.elapsed_us - last_us_) / 1e6;
  const double pieces = static_cast<double>(progress.pieces - last_pieces_);
  last_us_ = progress.elapsed_us;
  last_pieces_ = progress.pieces;
  Print(stderr, "\r{}\x1b[K", DrawProgress(progress, seconds > 0.0 ? pieces / seconds : 0.0));
  std::fflush(stderr);
  shown_ = true;
}

void LiveLine::Clear() {
  if (!shown_) return;
  Print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace baton::cli
