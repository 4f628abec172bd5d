#include "src/worker/worker_admin.h"

#include "gtest/gtest.h"

namespace baton::worker {

using engine::RequestRow;
using kv::BlockInfo;
using kv::BlockState;

namespace {

TEST(WorkerAdminTest, BlocksNameTheirOwnerUntilTheyAreFree) {
  BlockInfo held;
  held.handle = {BlockIndex(3), 7};
  held.state = BlockState::kBound;
  held.request_refs = 2;
  held.kept = true;
  held.owner = {1, 2};
  BlockInfo freed = held;
  freed.handle = {BlockIndex(4), 8};
  freed.state = BlockState::kFree;
  freed.request_refs = 0;
  freed.kept = false;
  EXPECT_EQ(BlocksToJson({held, freed}),
            R"([{"generation":7,"index":3,"kept":true,"refs":2,)"
            R"("request_uid":"00000000000000010000000000000002","state":"bound"},)"
            R"({"generation":8,"index":4,"kept":false,"refs":0,"request_uid":"","state":"free"}])");
  EXPECT_EQ(BlocksToJson({}), "[]");
}

TEST(WorkerAdminTest, RequestsHaveARowForEachChoice) {
  RequestRow row;
  row.key = {{1, 2}, 3};
  row.state = "decoding";
  row.num_choices = 2;
  row.num_prompt_tokens = 5;
  row.num_output_tokens = 8;
  const auto row_of = [](const std::string& choice) {
    return R"({"age_ms":0,"attempt":3,"choice":)" + choice +
           R"(,"num_choices":2,"output_tokens":8,"peer":"","prompt_tokens":5,)"
           R"("request_uid":"00000000000000010000000000000002","state":"decoding",)"
           R"("worker":"decode-0"})";
  };
  EXPECT_EQ(RequestsToJson({row}, "decode-0"), "[" + row_of("0") + "," + row_of("1") + "]");
  EXPECT_EQ(RequestsToJson({}, "decode-0"), "[]");
}

}  // namespace
}  // namespace baton::worker
