#include "src/router/worker_codec.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

v1::PrefixEvents Events(size_t num_links, const std::string& removed) {
  std::vector<ChainLink> links;
  for (uint64_t i = 0; i < num_links; ++i) links.push_back({i + 1, ~i});
  v1::PrefixEvents events;
  events.set_first_sequence(77);
  events.set_links(ChainToBytes(links));
  events.set_removed(removed);
  return events;
}

TEST(WorkerCodecTest, PrefixEventsKeepOrderNumbersAndKinds) {
  v1::PrefixEvents events = Events(10, std::string("\x81\x01", 2));
  events.set_reset(true);
  const auto batch = DecodePrefix(events);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->first_sequence, 77u);
  EXPECT_TRUE(batch->reset);
  ASSERT_EQ(batch->changes.size(), 10u);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(batch->changes[i].link, (ChainLink{i + 1, ~i}));
    EXPECT_EQ(batch->changes[i].added, i != 0 && i != 7 && i != 8) << i;
  }
  const auto short_bits = DecodePrefix(Events(10, std::string("\x02", 1)));
  ASSERT_TRUE(short_bits.ok());
  EXPECT_FALSE(short_bits->reset);
  EXPECT_FALSE(short_bits->changes[1].added);
  EXPECT_TRUE(short_bits->changes[9].added) << "missing bits are 0";
  EXPECT_TRUE(DecodePrefix(v1::PrefixEvents())->changes.empty());
}

TEST(WorkerCodecTest, MalformedPrefixEventsAreRefused) {
  v1::PrefixEvents half = Events(2, "");
  half.mutable_links()->pop_back();
  EXPECT_EQ(DecodePrefix(half).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(DecodePrefix(Events(kMaxPrefixChanges, "")).ok());
  EXPECT_EQ(DecodePrefix(Events(kMaxPrefixChanges + 1, "")).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(DecodePrefix(Events(8, "a")).ok());
  EXPECT_EQ(DecodePrefix(Events(8, "ab")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodePrefix(Events(0, "a")).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
