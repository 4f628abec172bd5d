// Builds of the kernel bodies that exist for tests only. Apart from kernel_fixtures.h, so that
// their sources, compiled for AVX2, include nothing of the test framework.
#ifndef BATON_TESTS_KERNELS_TEST_BODIES_H_
#define BATON_TESTS_KERNELS_TEST_BODIES_H_

#include "kernels/ops.h"

namespace baton::kernels {

const Ops& EmulatedAvx512Ops();
const Ops& PortableFmaOps();

}  // namespace baton::kernels

#endif  // BATON_TESTS_KERNELS_TEST_BODIES_H_
