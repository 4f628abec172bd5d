// HostBuffer: an owned piece of host memory that a device copies to or from while the host goes on.
// With a GPU it is pinned. A copy to any other host memory returns only when the bytes are there,
// after all that was in the stream before it (CUDA, "API synchronization behavior"). A copy from
// any other host memory is staged first, on some machines after all that too.
#ifndef BATON_DEVICE_HOST_BUFFER_H_
#define BATON_DEVICE_HOST_BUFFER_H_

#include "src/device/accelerator.h"

namespace baton::device {

// See the file comment. No copy to or from it is under way when it is destroyed.
using HostBuffer = OwnedMemory<&Accelerator::AllocateHost, &Accelerator::FreeHost>;

}  // namespace baton::device

#endif  // BATON_DEVICE_HOST_BUFFER_H_
