#include "src/device/cuda/vmm_table.h"

#include "src/device/cuda/driver_entry.h"

namespace baton::device {
namespace {

// The interface that is asked for: all of it is as old as CUDA 11.
constexpr unsigned kDriverInterface = 12000;

}  // namespace

StatusOr<VmmTable> LoadVmmTable() {
  VmmTable table;
#define BATON_FIND(name) BATON_RETURN_IF_ERROR(FindInDriver(#name, kDriverInterface, &table.name));
  BATON_VMM_FUNCTIONS(BATON_FIND)
#undef BATON_FIND
  return table;
}

}  // namespace baton::device
