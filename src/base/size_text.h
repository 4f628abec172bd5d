// Byte counts as people write and read them. Pure; any thread.
#ifndef BATON_BASE_SIZE_TEXT_H_
#define BATON_BASE_SIZE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton {

// Bytes of "1073741824", "512M", "1.5GiB", "2gb", "64 KiB": a non-negative decimal number and an
// optional unit, in either case. K, KB, Ki and KiB all mean 1024 (M, G, T, P, E likewise): memory
// is sold in powers of two, and a pool that is 7 % smaller than expected helps nobody. A fraction
// is rounded down. InvalidArgument for anything else or above 2^63.
StatusOr<uint64_t> ParseSize(std::string_view text);

// "0 B", "512 B", "1.5 MiB", "2 GiB": at most four significant digits.
std::string FormatSize(uint64_t bytes);

}  // namespace baton

#endif  // BATON_BASE_SIZE_TEXT_H_
