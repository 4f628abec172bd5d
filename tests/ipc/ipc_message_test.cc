// The messages between two IpcTransports: what is written is read, and nothing else is.
#include "kvcache/transport/ipc/ipc_message.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/xxh3.h"
#include "tests/test_seed.h"

namespace baton::kv {
namespace {

IpcMessage Offer(uint32_t num_slices) {
  IpcMessage message;
  message.kind = IpcMessageKind::kOffer;
  message.batch = 0x1122334455667788;
  for (uint32_t i = 0; i < num_slices; ++i) {
    message.slices.push_back({.transfer = TransferId(7 + i),
                              .attempt = 2,
                              .ordinal = i,
                              .layer = 3,
                              .generation = 4,
                              .source = BlockIndex(5 + i),
                              .checksum = 0xABCDEF0123456789 + i});
  }
  return message;
}

std::vector<IpcMessage> Examples() {
  IpcMessage done;
  done.batch = 9;
  return {done, Offer(1), Offer(kMaxIpcOfferSlices)};
}

TEST(IpcMessageTest, WhatIsWrittenIsRead) {
  for (const IpcMessage& message : Examples()) {
    const std::string bytes = EncodeIpcMessage(message);
    EXPECT_TRUE(IsSliceMessage(kIpcForm, bytes));
    const StatusOr<IpcMessage> read = DecodeIpcMessage(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(EncodeIpcMessage(*read), bytes);
    EXPECT_EQ(read->kind, message.kind);
    EXPECT_EQ(read->batch, message.batch);
    ASSERT_EQ(read->slices.size(), message.slices.size());
    for (size_t i = 0; i < read->slices.size(); ++i) {
      EXPECT_EQ(read->slices[i].transfer, message.slices[i].transfer);
      EXPECT_EQ(read->slices[i].attempt, message.slices[i].attempt);
      EXPECT_EQ(read->slices[i].ordinal, message.slices[i].ordinal);
      EXPECT_EQ(read->slices[i].layer, message.slices[i].layer);
      EXPECT_EQ(read->slices[i].generation, message.slices[i].generation);
      EXPECT_EQ(read->slices[i].source, message.slices[i].source);
      EXPECT_EQ(read->slices[i].checksum, message.slices[i].checksum);
    }
  }
}

// Workers of two builds speak to each other.
TEST(IpcMessageTest, BytesStayTheSame) {
  EXPECT_EQ(Xxh3Hash64(EncodeIpcMessage(Examples()[0]) + EncodeIpcMessage(Offer(3))),
            0xF17F3E59F01B0368u);
}

TEST(IpcMessageTest, WhatNobodyWritesIsRefused) {
  EXPECT_FALSE(DecodeIpcMessage("").ok());
  EXPECT_FALSE(DecodeIpcMessage(EncodeIpcMessage(Offer(0))).ok()) << "an offer of nothing";
  EXPECT_FALSE(DecodeIpcMessage(EncodeIpcMessage(Offer(kMaxIpcOfferSlices + 1))).ok());
  const std::string done = EncodeIpcMessage(Examples()[0]);
  EXPECT_FALSE(DecodeIpcMessage(done + "x").ok());
  for (size_t at = 17; at < 24; ++at) {
    std::string damaged = done;
    damaged[at] = 1;
    EXPECT_FALSE(DecodeIpcMessage(damaged).ok()) << "byte " << at;
  }
  for (const char kind : {0, 3}) {
    std::string unknown = done;
    unknown[16] = kind;
    EXPECT_FALSE(DecodeIpcMessage(unknown).ok());
  }
  std::string offer = EncodeIpcMessage(Offer(2));
  offer.back() = 1;
  EXPECT_FALSE(DecodeIpcMessage(offer).ok());
  for (size_t size = 0; size < 112; ++size) {
    if (size == 72) continue;  // of one slice
    EXPECT_FALSE(DecodeIpcMessage(EncodeIpcMessage(Offer(2)).substr(0, size)).ok()) << size;
  }
}

TEST(IpcMessageTest, AnyBytesGiveAnAnswerThatIsWrittenAlike) {
  std::mt19937_64 random(TestSeed());
  const std::string offer = EncodeIpcMessage(Offer(2));
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = offer;
    const size_t num_changes = 1 + random() % 4;
    for (size_t k = 0; k < num_changes; ++k) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const StatusOr<IpcMessage> read = DecodeIpcMessage(bytes);
    if (read.ok()) {
      EXPECT_EQ(EncodeIpcMessage(*read), bytes);
    }
  }
}

}  // namespace
}  // namespace baton::kv
