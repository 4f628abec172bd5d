// The messages between two NcclTransports: what is written is read, and nothing else is.
#include "kvcache/transport/nccl/nccl_message.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/xxh3.h"
#include "tests/test_seed.h"

namespace baton::kv {
namespace {

NcclMessage Make(NcclMessageKind kind) {
  NcclMessage message;
  message.kind = kind;
  if (kind == NcclMessageKind::kGreeting) {
    message.number = 22809;
    return message;
  }
  message.link = 0x1122334455667788;
  const bool has_batch = kind == NcclMessageKind::kOffer || kind == NcclMessageKind::kGrant ||
                         kind == NcclMessageKind::kDeny || kind == NcclMessageKind::kDone;
  if (has_batch) message.batch = 99;
  if (kind == NcclMessageKind::kConnect) message.number = 22809;
  if (kind == NcclMessageKind::kStart) {
    std::memset(message.id.internal, 0x5A, sizeof(message.id.internal));
  }
  if (kind == NcclMessageKind::kAccept) message.number = 341;
  if (kind == NcclMessageKind::kDrop) {
    message.by_sender = true;
    message.reason = NcclDropReason::kVersion;
    message.number = 22705;
  }
  if (kind == NcclMessageKind::kOffer) {
    for (uint32_t i = 0; i < 3; ++i) {
      message.slices.push_back({.transfer = TransferId(7 + i),
                                .attempt = 2,
                                .ordinal = i,
                                .layer = 3,
                                .generation = 4,
                                .checksum = 0xABCDEF0123456789 + i});
    }
  }
  return message;
}

std::vector<NcclMessage> AllKinds() {
  std::vector<NcclMessage> all;
  for (int kind = 1; kind <= 9; ++kind) all.push_back(Make(static_cast<NcclMessageKind>(kind)));
  return all;
}

TEST(NcclMessage, WhatIsWrittenIsRead) {
  for (const NcclMessage& message : AllKinds()) {
    const std::string bytes = EncodeNcclMessage(message);
    EXPECT_TRUE(IsSliceMessage(kNcclForm, bytes));
    const StatusOr<NcclMessage> read = DecodeNcclMessage(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(EncodeNcclMessage(*read), bytes);
    EXPECT_EQ(read->kind, message.kind);
    EXPECT_EQ(read->link, message.link);
    EXPECT_EQ(read->batch, message.batch);
    EXPECT_EQ(read->number, message.number);
    EXPECT_EQ(read->by_sender, message.by_sender);
    EXPECT_EQ(read->reason, message.reason);
    ASSERT_EQ(read->slices.size(), message.slices.size());
    for (size_t i = 0; i < message.slices.size(); ++i) {
      EXPECT_EQ(read->slices[i].transfer, message.slices[i].transfer);
      EXPECT_EQ(read->slices[i].checksum, message.slices[i].checksum);
      EXPECT_EQ(read->slices[i].generation, message.slices[i].generation);
    }
  }
}

// Workers of two builds speak to each other.
TEST(NcclMessage, BytesStayTheSame) {
  std::string all;
  for (const NcclMessage& message : AllKinds()) all += EncodeNcclMessage(message);
  EXPECT_EQ(Xxh3Hash64(all), 0xBEEB81EA20651B97u);
}

// Any other bytes are refused, or are what they say: nothing is read past the end (asan).
TEST(NcclMessage, DamagedBytesAreRefusedOrConsistent) {
  TestRandom random(TestSeed());
  for (const NcclMessage& message : AllKinds()) {
    const std::string good = EncodeNcclMessage(message);
    for (size_t size = 0; size < good.size(); ++size) {
      const StatusOr<NcclMessage> read = DecodeNcclMessage(good.substr(0, size));
      // An offer cut after a slice is a whole message.
      EXPECT_TRUE(!read.ok() || EncodeNcclMessage(*read) == good.substr(0, size)) << size;
    }
    for (int round = 0; round < 2000; ++round) {
      std::string bytes = good;
      for (uint32_t i = random.Between(1, 4); i > 0; --i) {
        bytes[random.Below(static_cast<uint32_t>(bytes.size()))] =
            static_cast<char>(random.Below(256));
      }
      const StatusOr<NcclMessage> read = DecodeNcclMessage(bytes);
      EXPECT_TRUE(!read.ok() || EncodeNcclMessage(*read) == bytes);
    }
  }
}

TEST(NcclMessage, OffersHaveALimit) {
  NcclMessage message = Make(NcclMessageKind::kOffer);
  message.slices.assign(kMaxOfferSlices, message.slices[0]);
  EXPECT_TRUE(DecodeNcclMessage(EncodeNcclMessage(message)).ok());
  message.slices.push_back(message.slices[0]);
  EXPECT_EQ(DecodeNcclMessage(EncodeNcclMessage(message)).status().code(), StatusCode::kDataLoss);
  message.slices.clear();
  EXPECT_EQ(DecodeNcclMessage(EncodeNcclMessage(message)).status().code(), StatusCode::kDataLoss);
}

TEST(NcclMessage, ReasonsHaveNames) {
  EXPECT_EQ(NcclDropReasonName(NcclDropReason::kDeadline), "deadline");
  EXPECT_EQ(NcclDropReasonName(NcclDropReason::kProtocol), "protocol");
}

}  // namespace
}  // namespace baton::kv
