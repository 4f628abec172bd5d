// One fuzz target: a function that takes any bytes, hands them to shipped code and stops the
// process (BATON_CHECK) when a promise of that code is broken. libFuzzer drives this function
// (scripts/fuzz.sh; one binary a target, built with BATON_FUZZ_ENTRY). fuzz_corpus_test drives it
// too: it replays the committed corpus and some mutations of it in the ordinary test run.
//
//   BATON_FUZZ_TARGET(gguf) { const auto file = GgufFile::FromBytes(...); ... }
//
// A target is a pure function of its input: no clock, no randomness, no state from one call to the
// next but what is built once and constant.
#ifndef BATON_TESTS_FUZZ_FUZZ_TARGET_H_
#define BATON_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace baton::fuzz {

using Input = std::span<const uint8_t>;

// A target under its name, which is also the name of its folder in tests/fuzz/corpus.
struct Target {
  std::string_view name;
  void (*run)(Input input);
};

// All targets that are linked into this program, in no order.
inline std::vector<Target>& Targets() {
  static std::vector<Target> targets;
  return targets;
}

// Enters a target before main.
struct Registration {
  Registration(std::string_view name, void (*run)(Input)) { Targets().push_back({name, run}); }
};

}  // namespace baton::fuzz

#ifdef BATON_FUZZ_ENTRY
#define BATON_FUZZ_DRIVER(name)                                             \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    Fuzz_##name({data, size});                                              \
    return 0;                                                               \
  }
#else
#define BATON_FUZZ_DRIVER(name) \
  static const ::baton::fuzz::Registration g_registered_##name(#name, &Fuzz_##name);
#endif

#define BATON_FUZZ_TARGET(name)                        \
  static void Fuzz_##name(::baton::fuzz::Input input); \
  BATON_FUZZ_DRIVER(name)                              \
  static void Fuzz_##name(::baton::fuzz::Input input)

#endif  // BATON_TESTS_FUZZ_FUZZ_TARGET_H_
