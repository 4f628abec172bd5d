// How long tests wait for what must come: a limit that ends a broken test, never a measurement.
#ifndef BATON_TESTS_PATIENCE_H_
#define BATON_TESTS_PATIENCE_H_

namespace baton {

// Limits are multiplied by this: a sanitizer slows the arithmetic ten to fifty times.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kPatienceFactor = 10;
#else
inline constexpr int kPatienceFactor = 1;
#endif

}  // namespace baton

#endif  // BATON_TESTS_PATIENCE_H_
