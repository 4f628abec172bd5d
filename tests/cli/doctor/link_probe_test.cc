#include "src/cli/doctor/link_probe.h"

#include "gtest/gtest.h"

namespace baton::cli {

using kv::TransportKind;
using kv::TransportKindName;

namespace {

// Tests of the transports run here, so both work.
TEST(LinkProbeTest, BothTransportsCarryKvAndAreTimed) {
  for (const TransportKind kind : {TransportKind::kShm, TransportKind::kTcp}) {
    const LinkFact link = MeasureLink(kind);
    EXPECT_EQ(link.transport, TransportKindName(kind));
    EXPECT_EQ(link.error, "");
    EXPECT_GT(link.bytes_per_s, 0);
    EXPECT_GT(link.round_trip_us, 0);
  }
}

}  // namespace
}  // namespace baton::cli
