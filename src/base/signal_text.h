// The name of a signal beside its number, for messages about processes that one ended.
#ifndef BATON_BASE_SIGNAL_TEXT_H_
#define BATON_BASE_SIGNAL_TEXT_H_

#include <cstring>
#include <string>

#include "fmt/format.h"

namespace baton {

// "signal 6 (SIGABRT)"; "signal 40" for one without a name.
inline std::string SignalText(int number) {
  const char* const name = sigabbrev_np(number);
  if (name == nullptr) return fmt::format("signal {}", number);
  return fmt::format("signal {} (SIG{})", number, name);
}

}  // namespace baton

#endif  // BATON_BASE_SIGNAL_TEXT_H_
