// Items of answers that later requests name.
#include "src/api/stored_items.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::api {

namespace {

// Bytes that an item with an id of one letter and `num_bytes` of JSON takes.
size_t SizeOf(size_t num_bytes) { return 2 + num_bytes + kStoredItemOverhead; }

TEST(StoredItemsTest, TheOldestMakeRoomForTheNewest) {
  StoredItems items(2 * SizeOf(10));
  items.Put("a", std::string(10, '1'));
  items.Put("b", std::string(10, '2'));
  EXPECT_EQ(items.Find("a"), std::string(10, '1'));
  items.Put("c", std::string(10, '3'));
  EXPECT_FALSE(items.Find("a").has_value());
  EXPECT_EQ(items.Find("b"), std::string(10, '2'));
  EXPECT_EQ(items.Find("c"), std::string(10, '3'));
  items.Put("d", std::string(11, '4'));
  EXPECT_FALSE(items.Find("b").has_value());
  EXPECT_FALSE(items.Find("c").has_value()) << "d and c are one byte too many";
  EXPECT_EQ(items.Find("d"), std::string(11, '4'));
}

TEST(StoredItemsTest, AnIdKeepsItsFirstItem) {
  StoredItems items;
  items.Put("a", "1");
  items.Put("a", "2");
  EXPECT_EQ(items.Find("a"), "1");
}

TEST(StoredItemsTest, ATenantFindsItsOwnItemsAlone) {
  StoredItems all(3 * SizeOf(10));
  StoredItems one = all.Of("one");
  StoredItems other = all.Of("other");
  one.Put("a", "1");
  EXPECT_EQ(one.Find("a"), "1");
  EXPECT_FALSE(other.Find("a").has_value());
  EXPECT_FALSE(all.Find("a").has_value());
  other.Put("a", "2");
  EXPECT_EQ(all.Of("one").Find("a"), "1");
  for (int i = 0; i < 3; ++i) other.Put(std::to_string(i), "3");
  EXPECT_FALSE(one.Find("a").has_value()) << "the limit is one for all";
}

TEST(StoredItemsTest, ALargeItemDisplacesNothing) {
  StoredItems items;
  items.Put("a", "1");
  items.Put("b", std::string(kMaxStoredItemBytes + 1, 'x'));
  EXPECT_FALSE(items.Find("b").has_value());
  items.Put("c", std::string(kMaxStoredItemBytes, 'x'));
  EXPECT_TRUE(items.Find("c").has_value());
  EXPECT_TRUE(items.Find("a").has_value());
  StoredItems small(SizeOf(1) - 1);
  small.Put("a", "1");
  EXPECT_FALSE(small.Find("a").has_value());
}

}  // namespace
}  // namespace baton::api
