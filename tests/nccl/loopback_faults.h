// Which faults the loopback injects, drawn by a seed; loopback.h has the keys. One thread at a
// time: the loopback's mutex.
#ifndef BATON_TESTS_NCCL_LOOPBACK_FAULTS_H_
#define BATON_TESTS_NCCL_LOOPBACK_FAULTS_H_

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/split_mix.h"
#include "tests/nccl/loopback.h"

namespace baton::kv::nccl_test {

// A kind of fault with its key, its counter, and what follows from a draw.
struct FaultKind {
  std::string_view key;
  uint64_t LoopbackCounts::*count;
};

inline constexpr std::array<FaultKind, 10> kFaultKinds = {{
    {"delay", &LoopbackCounts::delays},
    {"error", &LoopbackCounts::errors},
    {"hang", &LoopbackCounts::hangs},
    {"remote", &LoopbackCounts::remote_errors},
    {"death", &LoopbackCounts::deaths},
    {"corrupt", &LoopbackCounts::corruptions},
    {"call", &LoopbackCounts::call_errors},
    {"init_hang", &LoopbackCounts::init_hangs},
    {"init_error", &LoopbackCounts::init_errors},
    {"silent", &LoopbackCounts::silent_aborts},
}};
// Positions in kFaultKinds.
enum Fault : size_t {
  kDelay,
  kError,
  kHang,
  kRemote,
  kDeath,
  kCorrupt,
  kCall,
  kInitHang,
  kInitError,
  kSilent
};

// The settings and the generator.
class LoopbackFaults {
 public:
  int version = 22809;
  int64_t delay_us = 1000;

  // nullopt for what is not in loopback.h.
  static std::optional<LoopbackFaults> Parse(std::string_view text) {
    LoopbackFaults faults;
    while (!text.empty()) {
      const std::string_view entry = text.substr(0, text.find(','));
      text.remove_prefix(std::min(text.size(), entry.size() + 1));
      const size_t equals = entry.find('=');
      if (equals == std::string_view::npos) return std::nullopt;
      const std::string value(entry.substr(equals + 1));
      char* end = nullptr;
      const double number = std::strtod(value.c_str(), &end);
      if (value.empty() || *end != '\0' || !faults.Set(entry.substr(0, equals), number)) {
        return std::nullopt;
      }
    }
    return faults;
  }

  // Whether this fault happens now; counted if so.
  bool Draw(Fault fault, LoopbackCounts* counts) {
    if (shares_[fault] <= 0) return false;
    const uint64_t draw = SplitMix(state_ += kSplitMixStep) >> 11;
    if (static_cast<double>(draw) * 0x1p-53 >= shares_[fault]) return false;
    ++(counts->*kFaultKinds[fault].count);
    return true;
  }

 private:
  bool Set(std::string_view key, double number) {
    if (key == "seed") {
      state_ = static_cast<uint64_t>(number);
    } else if (key == "version") {
      version = static_cast<int>(number);
    } else if (key == "delay_us") {
      delay_us = static_cast<int64_t>(number);
    } else {
      for (size_t i = 0; i < kFaultKinds.size(); ++i) {
        if (kFaultKinds[i].key != key) continue;
        shares_[i] = number;
        return number >= 0 && number <= 1;
      }
      return false;
    }
    return true;
  }

  uint64_t state_ = 1;
  std::array<double, kFaultKinds.size()> shares_{};
};

}  // namespace baton::kv::nccl_test

#endif  // BATON_TESTS_NCCL_LOOPBACK_FAULTS_H_
