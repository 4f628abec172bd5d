// Whether this processor runs the sources x_avx2.cc and x_avx512.cc: whether it has every feature
// that they are compiled for (scripts/cmake/baton_targets.cmake). AVX2 alone does not say so:
// virtual machines may show it and hide BMI2, FMA and F16C. Any thread.
#ifndef BATON_BASE_INSTRUCTION_SETS_H_
#define BATON_BASE_INSTRUCTION_SETS_H_

#include <string_view>

namespace baton {

// Whether a processor has a feature, by the name that the compiler's flag -m has.
using HasFeature = bool (*)(std::string_view name);

// Also whether the operating system saves the feature's registers. False for other names than those
// of the flags.
bool ThisProcessorHas(std::string_view name);

// The first feature that the sources x_avx2.cc need and the processor lacks; "" = none.
std::string_view MissingForAvx2(HasFeature has = ThisProcessorHas);
// As MissingForAvx2, for the sources x_avx512.cc, which need those features too.
std::string_view MissingForAvx512(HasFeature has = ThisProcessorHas);

// Whether this processor lacks none. Those sources may call it: nothing of it is inline.
bool RunsAvx2();
bool RunsAvx512();

}  // namespace baton

#endif  // BATON_BASE_INSTRUCTION_SETS_H_
