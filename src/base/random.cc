#include "src/base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "src/base/check.h"

namespace baton {

void RandomBytes(std::span<uint8_t> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = getrandom(out.data() + done, out.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    BATON_CHECK(got > 0, "getrandom returned {} with errno {}", got, errno);
    done += static_cast<size_t>(got);
  }
}

uint64_t RandomU64() {
  uint64_t value = 0;
  RandomBytes({reinterpret_cast<uint8_t*>(&value), sizeof(value)});
  return value;
}

RequestUid RandomRequestUid() {
  RequestUid uid;
  do {
    uid = {RandomU64(), RandomU64()};
  } while (uid == RequestUid{});
  return uid;
}

Incarnation RandomIncarnation() {
  uint64_t value = 0;
  do {
    value = RandomU64();
  } while (value == 0);
  return Incarnation(value);
}

}  // namespace baton
