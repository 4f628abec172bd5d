// Headers that most sources include, compiled once for all of them (CMake option BATON_PCH). It
// replaces no include: builds without it (sanitizers, clang) must compile too.
#ifndef BATON_SCRIPTS_CMAKE_COMMON_HEADERS_H_
#define BATON_SCRIPTS_CMAKE_COMMON_HEADERS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

#endif  // BATON_SCRIPTS_CMAKE_COMMON_HEADERS_H_
