// The functions that gcc's -fsanitize=thread calls before each load and store of a kernel. Kernels
// are compiled with it and linked without its library: these functions take the library's place, as
// in kernels of operating systems. Outside launches (shared inline functions) they do nothing.
//
// There are none for __atomic operations, on purpose: a kernel that uses them instead of the
// primitives does not link.
#include "kernels/simt/run_state.h"

namespace {

inline void Look(const void* address, size_t size, bool is_write, const void* code) {
  if (auto* run = baton::kernels::simt::RunState::Current())
    run->Touch({address, size, is_write, code});
}

}  // namespace

#define BATON_TSAN_PAIR(size)                                \
  void __tsan_read##size(void* address) {                    \
    Look(address, size, false, __builtin_return_address(0)); \
  }                                                          \
  void __tsan_write##size(void* address) {                   \
    Look(address, size, true, __builtin_return_address(0));  \
  }                                                          \
  void __tsan_unaligned_read##size(void* address) {          \
    Look(address, size, false, __builtin_return_address(0)); \
  }                                                          \
  void __tsan_unaligned_write##size(void* address) {         \
    Look(address, size, true, __builtin_return_address(0));  \
  }

// NOLINTBEGIN: the compiler's names and types
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
BATON_TSAN_PAIR(1)
BATON_TSAN_PAIR(2)
BATON_TSAN_PAIR(4)
BATON_TSAN_PAIR(8)
BATON_TSAN_PAIR(16)
void __tsan_read_range(void* address, unsigned long size) {
  if (size > 0) Look(address, size, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long size) {
  if (size > 0) Look(address, size, true, __builtin_return_address(0));
}
}
// NOLINTEND
