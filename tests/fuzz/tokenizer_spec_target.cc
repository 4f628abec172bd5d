// A tokenizer's serialised form as a worker sends it to the router.
#include "src/text/tokenizer_spec.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/tokenizer_checks.h"

BATON_FUZZ_TARGET(tokenizer_spec) {
  using namespace baton;        // NOLINT: the whole target
  using namespace baton::text;  // NOLINT
  using namespace baton::fuzz;  // NOLINT
  const auto spec = TokenizerSpec::Parse(TextOf(input));
  if (!spec.ok()) return CheckRefusal(spec.status());
  const auto again = TokenizerSpec::Parse(spec->Serialize());
  BATON_CHECK(again.ok() && again->Serialize() == spec->Serialize(), "it does not come back");
  CheckTokenizerSpec(*spec, "ab <s>the \xe4\xb8\xad");
}
