#include "src/device/device.h"

#include "gtest/gtest.h"

namespace baton::device {
namespace {

TEST(DeviceKind, ParsesItsOwnNameAndAuto) {
  EXPECT_EQ(ParseDeviceKind("cpu").value(), DeviceKind::kCpu);
  EXPECT_EQ(ParseDeviceKind("auto").value(), DeviceKind::kUnspecified);
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda, DeviceKind::kSimt}) {
    EXPECT_EQ(ParseDeviceKind(DeviceKindName(kind)).value(), kind);
  }
}

TEST(DeviceKind, RefusesAnotherWord) {
  const Status unknown = ParseDeviceKind("gpu").status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("\"gpu\""), absl::string_view::npos) << unknown;
}

TEST(Device, AtLeastOneCpuIsUsable) { EXPECT_GE(NumUsableCpus(), 1u); }

}  // namespace
}  // namespace baton::device
