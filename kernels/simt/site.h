// Where in a kernel's source a primitive is called, taken from a default argument at no cost to the
// caller. Reports name it, and mutation switches one call by it (mutant.h). Runner body only: on a
// GPU a site is an empty struct (gpu_body.h).
#ifndef BATON_KERNELS_SIMT_SITE_H_
#define BATON_KERNELS_SIMT_SITE_H_

namespace baton::kernels::simt {
inline namespace runner {

// A line of a kernel's source.
struct Site {
  const char* file = "";
  int line = 0;
};

constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_SITE_H_
