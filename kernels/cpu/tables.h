// The tables that OpsFor chooses from. Calling an operation of a table whose instructions this
// processor lacks ends the process, so only OpsFor and tests take them.
#ifndef BATON_KERNELS_CPU_TABLES_H_
#define BATON_KERNELS_CPU_TABLES_H_

#include "kernels/ops.h"

namespace baton::kernels {

const Ops& PortableOps();
#if defined(__x86_64__)
const Ops& Avx2Ops();
const Ops& Avx512Ops();
#endif

}  // namespace baton::kernels

#endif  // BATON_KERNELS_CPU_TABLES_H_
