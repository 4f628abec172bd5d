// The directory of one .safetensors file.
#include <cstddef>
#include <cstdint>

#include "src/model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/gguf_checks.h"
#include "tests/fuzz/input_bytes.h"

BATON_FUZZ_TARGET(safetensors) {
  using namespace baton;         // NOLINT: the whole target
  using namespace baton::model;  // NOLINT
  using namespace baton::fuzz;   // NOLINT
  const AlignedBytes copy(input);
  const auto file = SafetensorsFile::FromBytes(copy.bytes());
  if (!file.ok()) return CheckRefusal(file.status());
  // Invariant 1: tensors fill the file after the header, whatever their order in the list.
  uint64_t num_bytes = 8 + (*file)->header_bytes();
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& tensor : (*file)->tensors()) {
    BATON_CHECK(before == nullptr || before->name < tensor.name, "names do not ascend");
    before = &tensor;
    uint64_t wanted = BytesOf(tensor.type);
    BATON_CHECK(tensor.shape.size() <= kMaxSafetensorsDims, "{} dimensions", tensor.shape.size());
    for (const uint64_t dim : tensor.shape) {
      BATON_CHECK(dim >= 1, "an empty dimension");
      wanted *= dim;
    }
    BATON_CHECK(tensor.data.size() == wanted, "{} bytes, the shape needs {}", tensor.data.size(),
                wanted);
    BATON_CHECK(IsInside(copy.bytes(), tensor.data.data(), tensor.data.size()),
                "data outside the file");
    num_bytes += tensor.data.size();
  }
  BATON_CHECK(num_bytes == copy.bytes().size(), "header and tensors have {} of {} bytes", num_bytes,
              copy.bytes().size());
}
