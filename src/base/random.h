// Randomness from the operating system, for names and seeds; not for sampling (philox.h). Any
// thread; one system call each.
#ifndef BATON_BASE_RANDOM_H_
#define BATON_BASE_RANDOM_H_

#include <cstdint>
#include <span>

#include "src/base/ids.h"

namespace baton {

// Fills `out` with unpredictable bytes; blocks only before the kernel's pool is ready at boot.
void RandomBytes(std::span<uint8_t> out);

uint64_t RandomU64();
// 128 random bits; never all zero, which means "no request" on the wire.
RequestUid RandomRequestUid();
// 64 random bits; never 0, which means "unknown" on the wire.
Incarnation RandomIncarnation();

}  // namespace baton

#endif  // BATON_BASE_RANDOM_H_
