// The matrix of links, from a page of /v1/topology.
#include "src/cli/top/topo_matrix.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

constexpr std::string_view kTopology = R"({"model":"m","processes":[
 {"role":"router","worker_id":"router-0"},
 {"role":"decode","worker_id":"decode-0","links":[]},
 {"role":"decode","worker_id":"decode-1","links":[]},
 {"role":"decode","worker_id":"decode-2","links":[]},
 {"role":"decode","worker_id":"decode-3","links":[]},
 {"role":"prefill","worker_id":"prefill-0",
  "links":[{"to":"decode-0","transport":"shm","bytes_per_s":2500000000,"up":true},
           {"to":"decode-1","transport":"tcp","bytes_per_s":0,"up":true},
           {"to":"decode-3","transport":"tcp","bytes_per_s":250000,"up":true,"why":"left alone"},
           {"to":"decode-2","transport":"tcp","bytes_per_s":7,"up":false,
            "why":"another\u001bcluster secret"}]},
 {"role":"prefill","worker_id":"prefill-1","links":[],
  "not_paired":[{"with":"decode-1","why":"they have no\t--transport in common"}]}]})";

TEST(TopoMatrixTest, ARowForEachPrefillWorkerAndAColumnForEachDecodeWorker) {
  EXPECT_EQ(TopoText(ReadTopTopology(kTopology).value()),
            "from \\ to  decode-0       decode-1    decode-2  decode-3\n"
            "prefill-0  shm 2.50 GB/s  tcp         down      tcp 0.25 MB/s rests\n"
            "prefill-1  -              not paired  -         -\n"
            "prefill-0 -> decode-2: another?cluster secret\n"
            "prefill-0 -> decode-3: left alone\n"
            "prefill-1 -> decode-1: they have no?--transport in common\n");
}

TEST(TopoMatrixTest, JsonHasEveryLinkAndNoSpeedThatNobodyMeasured) {
  EXPECT_EQ(TopoJson(ReadTopTopology(
                         R"({"model":"m","processes":[{"role":"prefill","worker_id":"p",
 "links":[{"to":"a","transport":"shm","bytes_per_s":12,"up":true},
          {"to":"d","transport":"","bytes_per_s":0,"up":false,"why":"another secret"},
          {"to":"b","transport":"tcp","bytes_per_s":0,"up":true}],
 "not_paired":[{"with":"c","why":"bits"}]}]})")
                         .value()),
            R"({
 "links": [
  {
   "from": "p",
   "to": "a",
   "transport": "shm",
   "up": true,
   "bytes_per_s": 12
  },
  {
   "from": "p",
   "to": "d",
   "transport": "",
   "up": false,
   "bytes_per_s": null,
   "why": "another secret"
  },
  {
   "from": "p",
   "to": "b",
   "transport": "tcp",
   "up": true,
   "bytes_per_s": null
  }
 ],
 "not_paired": [
  {
   "from": "p",
   "to": "c",
   "why": "bits"
  }
 ]
}
)");
}

TEST(TopoMatrixTest, AClusterWithoutWorkersIsAHeadAlone) {
  EXPECT_EQ(TopoText(ReadTopTopology(R"({"model":"","processes":[]})").value()), "from \\ to\n");
}

}  // namespace
}  // namespace baton::cli
