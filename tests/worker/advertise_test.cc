#include "src/worker/advertise.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::worker {
namespace {

TEST(Advertise, WorkerIdsAreShortAndPlain) {
  for (const std::string& good :
       {std::string("a"), std::string("decode-0"), std::string(64, 'z')}) {
    EXPECT_TRUE(CheckWorkerId(good).ok()) << good;
  }
  for (const std::string& bad : {std::string(), std::string("Decode"), std::string("a b"),
                                 std::string("a_b"), std::string(65, 'z')}) {
    EXPECT_EQ(CheckWorkerId(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Advertise, NamesTheListenerItself) {
  EXPECT_EQ(AdvertisedAddress("", "127.0.0.1:7"), "127.0.0.1:7");
  EXPECT_EQ(AdvertisedAddress("h", "0.0.0.0:7"), "h:7");
  EXPECT_EQ(AdvertisedAddress("h:9", "0.0.0.0:7"), "h:9");
  EXPECT_EQ(AdvertisedAddress("[::1]", "[::]:7"), "[::1]:7");
  EXPECT_EQ(AdvertisedAddress("[::1]:9", "[::]:7"), "[::1]:9");
}

TEST(Advertise, NamesOtherListenersOfTheHost) {
  EXPECT_EQ(AdvertisedOnHost("", "10.0.0.1:5", "127.0.0.1:7"), "127.0.0.1:7");
  EXPECT_EQ(AdvertisedOnHost("", "10.0.0.1:5", "0.0.0.0:7"), "10.0.0.1:7");
  EXPECT_EQ(AdvertisedOnHost("", "[fd00::1]:5", "[::]:7"), "[fd00::1]:7");
  EXPECT_EQ(AdvertisedOnHost("", "0.0.0.0:5", "0.0.0.0:7"), "0.0.0.0:7");
  EXPECT_EQ(AdvertisedOnHost("h", "10.0.0.1:5", "0.0.0.0:7"), "h:7");
  EXPECT_EQ(AdvertisedOnHost("h:9", "10.0.0.1:5", "0.0.0.0:7"), "h:7");
  EXPECT_EQ(AdvertisedOnHost("[::1]:9", "10.0.0.1:5", "[::]:7"), "[::1]:7");
}

TEST(Advertise, AnAddressOfAllHostsIsToldFromOneOfThisHost) {
  for (const char* everywhere : {"0.0.0.0:7", "[::]:7"}) EXPECT_TRUE(IsEverywhere(everywhere));
  for (const char* here : {"", "0.0.0.1:7", "10.0.0.0:7", "[::1]:7", "h:7"}) {
    EXPECT_FALSE(IsEverywhere(here)) << here;
  }
}

// With shared memory alone there is no data port, and nobody must try to reach one.
TEST(Advertise, NoListenerIsNoAddress) {
  for (const char* advertise : {"", "h", "h:9", "[::1]"}) {
    EXPECT_EQ(AdvertisedOnHost(advertise, "10.0.0.1:5", ""), "") << advertise;
    EXPECT_EQ(AdvertisedAddress(advertise, ""), "") << advertise;
  }
}

TEST(Advertise, UnusableTextsAreRefused) {
  for (const char* good : {"", "h", "10.0.0.1", "h:9", "h:65535", "[::1]", "[::1]:9"}) {
    EXPECT_TRUE(CheckAdvertise(good).ok()) << CheckAdvertise(good);
  }
  for (const char* bad : {"::1", "fe80::1", "::1:9", "h:", "h:0", "h:65536", "h:x", "h:1:2", ":9",
                          "[]", "[::1", "::1]", "[::1]x", "[::1]:", "h]:9", "a b", "h\n:9"}) {
    const Status status = CheckAdvertise(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("--advertise"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace baton::worker
