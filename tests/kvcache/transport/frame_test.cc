// The bytes of a data connection: headers, introductions, and their way through writer and reader.
#include "kvcache/transport/frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/frame_reader.h"
#include "kvcache/transport/handshake.h"
#include "kvcache/transport/send_queue.h"
#include "kvcache/transport/slice_copy.h"
#include "src/base/limits.h"
#include "src/base/xxh3.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/test_seed.h"

namespace baton::kv::test {

using limits::kMaxSliceBytes;
using limits::kMaxWorkerIdBytes;

namespace {

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

SliceRef RandomSlice(std::mt19937_64* random) {
  SliceRef slice;
  slice.transfer = TransferId((*random)());
  slice.attempt = static_cast<uint32_t>((*random)());
  slice.ordinal = static_cast<uint32_t>((*random)());
  slice.layer = static_cast<uint32_t>((*random)());
  slice.generation = static_cast<uint32_t>((*random)());
  slice.source = BlockIndex(static_cast<uint32_t>((*random)()));
  slice.checksum = (*random)();
  return slice;
}

void Rehash(HeaderBytes* bytes) {
  const uint64_t checksum = Xxh3Hash64(bytes->data(), 56);
  for (size_t i = 0; i < 8; ++i) (*bytes)[56 + i] = static_cast<std::byte>(checksum >> (8 * i));
}

TEST(FrameTest, HeadersComeBackAsTheyWere) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    const uint32_t inline_bytes = i % 2 == 0 ? 0 : 1 + random() % kMaxSliceBytes;
    const FrameHeader header = SliceFrameHeader(RandomSlice(&random), random(), inline_bytes);
    HeaderBytes bytes;
    EncodeFrameHeader(header, bytes);
    const StatusOr<FrameHeader> decoded = DecodeFrameHeader(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, header);
  }
}

TEST(FrameTest, TheFormatIsFixed) {
  SliceRef slice;
  slice.transfer = TransferId(0x0807060504030201);
  slice.attempt = 0x11;
  slice.ordinal = 0x22;
  slice.layer = 0x33;
  slice.generation = 0x44;
  slice.source = BlockIndex(0x55);
  slice.checksum = 0x66;
  HeaderBytes bytes;
  EncodeFrameHeader(SliceFrameHeader(slice, 0x77, 0), bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "BTKV\x01\x00\x07\x00\x77", 9), 0);
  EXPECT_EQ(std::to_integer<int>(bytes[16]), 1);
  EXPECT_EQ(std::to_integer<int>(bytes[23]), 8);
  EXPECT_EQ(std::to_integer<int>(bytes[24]), 0x11);
  EXPECT_EQ(std::to_integer<int>(bytes[40]), 0x55);
  EXPECT_EQ(std::to_integer<int>(bytes[48]), 0x66);
}

TEST(FrameTest, EveryFlippedBitIsNoticed) {
  std::mt19937_64 random(TestSeed());
  HeaderBytes bytes;
  EncodeFrameHeader(SliceFrameHeader(RandomSlice(&random), random(), 4096), bytes);
  for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    HeaderBytes damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(DecodeFrameHeader(damaged).ok()) << "bit " << bit;
  }
}

TEST(FrameTest, FieldsAreJudgedEvenWithAGoodChecksum) {
  const auto decode_with = [](size_t offset, uint8_t value, FrameKind kind) {
    HeaderBytes bytes;
    FrameHeader header;
    header.kind = kind;
    EncodeFrameHeader(header, bytes);
    bytes[offset] = std::byte{value};
    Rehash(&bytes);
    return DecodeFrameHeader(bytes).ok();
  };
  EXPECT_TRUE(decode_with(0, 'B', FrameKind::kControl));
  EXPECT_FALSE(decode_with(0, 'b', FrameKind::kControl));        // magic
  EXPECT_FALSE(decode_with(4, 2, FrameKind::kControl));          // format
  EXPECT_FALSE(decode_with(6, 0, FrameKind::kControl));          // kind
  EXPECT_FALSE(decode_with(6, 9, FrameKind::kControl));          // kind
  EXPECT_FALSE(decode_with(7, 1, FrameKind::kControl));          // flags
  EXPECT_FALSE(decode_with(16, 1, FrameKind::kControl));         // a transfer outside a slice
  EXPECT_FALSE(decode_with(36, 1, FrameKind::kHello));           // a generation outside a slice
  EXPECT_FALSE(decode_with(40, 1, FrameKind::kSliceInline));     // a source in an inline slice
  EXPECT_FALSE(decode_with(44, 1, FrameKind::kSliceReference));  // payload of a reference
  EXPECT_FALSE(decode_with(44, 1, FrameKind::kWelcome));
  EXPECT_FALSE(decode_with(45, 5, FrameKind::kHello));        // 1280 bytes
  EXPECT_FALSE(decode_with(47, 1, FrameKind::kControl));      // 16 MiB
  EXPECT_FALSE(decode_with(47, 5, FrameKind::kSliceInline));  // 80 MiB
}

Introduction SomeIntroduction() {
  Introduction intro;
  intro.incarnation = Incarnation(3);
  intro.expected = Incarnation(4);
  intro.layout_id = 5;
  intro.numerics_id = 6;
  intro.epoch = 7;
  intro.num_blocks = 8;
  intro.allow_inexact = true;
  intro.worker_id = std::string(kMaxWorkerIdBytes, 'w');
  intro.nonce.fill(9);
  return intro;
}

TEST(FrameTest, IntroductionsComeBackAndHostileOnesAreRefused) {
  std::array<std::byte, kIntroductionBytes> bytes;
  EncodeIntroduction(SomeIntroduction(), bytes);
  const StatusOr<Introduction> decoded = DecodeIntroduction(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, SomeIntroduction());
  for (const bool allow_inexact : {false, true}) {
    Introduction flagged = SomeIntroduction();
    flagged.allow_inexact = allow_inexact;
    flagged.has_pools = true;
    std::array<std::byte, kIntroductionBytes> flagged_bytes;
    EncodeIntroduction(flagged, flagged_bytes);
    EXPECT_EQ(*DecodeIntroduction(flagged_bytes), flagged);
  }
  const auto with = [&](size_t offset, uint8_t value) {
    std::array<std::byte, kIntroductionBytes> damaged = bytes;
    damaged[offset] = std::byte{value};
    return DecodeIntroduction(damaged).ok();
  };
  EXPECT_FALSE(with(0, 0));   // wire_min 0
  EXPECT_FALSE(with(0, 2));   // wire_min > wire_max
  EXPECT_FALSE(with(8, 0));   // incarnation 0
  EXPECT_FALSE(with(52, 4));  // flags
  EXPECT_FALSE(with(53, 1));
  EXPECT_FALSE(with(88, 0));  // id length
  EXPECT_FALSE(with(88, 65));
  EXPECT_FALSE(with(88, 10));   // bytes behind the id
  EXPECT_FALSE(with(90, 'A'));  // id characters
  EXPECT_FALSE(with(159, 1));
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 20000; ++i) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const StatusOr<Introduction> any = DecodeIntroduction(bytes);
    if (any.ok()) {
      EXPECT_LE(any->worker_id.size(), kMaxWorkerIdBytes);
    }
  }
}

// A stream of frames of every kind that a ready connection carries.
struct Stream {
  std::vector<std::byte> bytes;
  std::vector<FrameHeader> headers;
  std::vector<std::vector<std::byte>> payloads;
};

Stream RandomStream(std::mt19937_64* random, int num_frames) {
  Stream stream;
  for (int i = 0; i < num_frames; ++i) {
    FrameHeader header;
    std::vector<std::byte> payload;
    const uint64_t choice = (*random)() % 3;
    if (choice == 0) {
      header = SliceFrameHeader(RandomSlice(random), (*random)(), 0);
    } else {
      const size_t size = 1 + (*random)() % (i % 7 == 0 ? 200000 : 300);
      payload.resize(size);
      for (std::byte& byte : payload) byte = static_cast<std::byte>((*random)());
      header = SliceFrameHeader(RandomSlice(random), (*random)(), static_cast<uint32_t>(size));
      if (choice == 2) {
        header = {.kind = FrameKind::kControl, .epoch = 1};
        header.payload_bytes = static_cast<uint32_t>(size);
      }
    }
    HeaderBytes bytes;
    EncodeFrameHeader(header, bytes);
    stream.bytes.insert(stream.bytes.end(), bytes.begin(), bytes.end());
    stream.bytes.insert(stream.bytes.end(), payload.begin(), payload.end());
    stream.headers.push_back(header);
    stream.payloads.push_back(std::move(payload));
  }
  return stream;
}

// The frames that a reader finds in a stream that arrives in pieces of at most `max_piece` bytes.
struct ReadResult {
  std::vector<FrameHeader> headers;
  std::vector<std::vector<std::byte>> payloads;
  bool bad = false;
};

class StreamPump {
 public:
  StreamPump(bool read_ahead, std::mt19937_64* random) : reader_(read_ahead), random_(random) {}

  void Feed(std::span<const std::byte> bytes, size_t max_piece) {
    while (!bytes.empty() && !result_.bad) {
      iovec parts[2];
      const int num_parts = reader_.Prepare(parts);
      size_t offered = std::min<size_t>(1 + (*random_)() % max_piece, bytes.size());
      size_t taken = 0;
      for (int i = 0; i < num_parts && taken < offered; ++i) {
        const size_t size = std::min(parts[i].iov_len, offered - taken);
        std::memcpy(parts[i].iov_base, bytes.data() + taken, size);
        taken += size;
      }
      ASSERT_GT(taken, 0u);
      bytes = bytes.subspan(taken);
      reader_.Commit(taken);
      Drain();
    }
  }
  const ReadResult& result() const { return result_; }
  const FrameReader& reader() const { return reader_; }

 private:
  void Drain() {
    while (true) {
      switch (reader_.Next()) {
        case FrameReader::Event::kNeedBytes:
          return;
        case FrameReader::Event::kBad:
          result_.bad = true;
          return;
        case FrameReader::Event::kHeader:
          OnHeader(reader_.header());
          break;
        case FrameReader::Event::kPayload:
          OnPayload();
          break;
      }
    }
  }
  void OnHeader(const FrameHeader& header) {
    result_.headers.push_back(header);
    result_.payloads.emplace_back();
    if (header.payload_bytes == 0) return;
    if (header.kind != FrameKind::kSliceInline) {
      reader_.ReadIntoBuffer();
    } else if (header.checksum % 3 == 0) {
      reader_.Discard();
    } else {
      result_.payloads.back().resize(header.payload_bytes);
      reader_.ReadInto(result_.payloads.back().data());
    }
  }
  void OnPayload() {
    if (reader_.header().kind == FrameKind::kSliceInline) return;
    result_.payloads.back().assign(reader_.payload().begin(), reader_.payload().end());
  }

  FrameReader reader_;
  std::mt19937_64* const random_;
  ReadResult result_;
};

TEST(FrameReaderTest, AnyCutOfTheStreamGivesTheSameFrames) {
  std::mt19937_64 random(TestSeed());
  for (const bool read_ahead : {false, true}) {
    for (const size_t max_piece : {size_t{1}, size_t{64}, size_t{1000}, size_t{100000}}) {
      const Stream stream = RandomStream(&random, max_piece == 1 ? 8 : 60);
      StreamPump pump(read_ahead, &random);
      pump.Feed(stream.bytes, max_piece);
      ASSERT_EQ(pump.result().headers, stream.headers);
      for (size_t i = 0; i < stream.headers.size(); ++i) {
        const bool is_refused = stream.headers[i].kind == FrameKind::kSliceInline &&
                                stream.headers[i].checksum % 3 == 0;
        if (is_refused) continue;
        ASSERT_EQ(pump.result().payloads[i], stream.payloads[i]) << "frame " << i;
      }
      EXPECT_FALSE(pump.reader().inside_frame());
    }
  }
}

TEST(FrameReaderTest, HostileBytesEndInAnErrorOrInWait) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 400; ++round) {
    Stream stream = RandomStream(&random, 12);
    const size_t num_damages = 1 + random() % 4;
    for (size_t i = 0; i < num_damages; ++i) {
      stream.bytes[random() % stream.bytes.size()] = static_cast<std::byte>(random());
    }
    StreamPump pump(round % 2 == 0, &random);
    pump.Feed(stream.bytes, 5000);
    EXPECT_LE(pump.result().headers.size(), stream.headers.size());
  }
}

// Reads what a queue writes, in random pieces, and gives back the frames.
ReadResult WriteOut(SendQueue* queue, std::mt19937_64* random, SendQueue::Progress* total) {
  StreamPump pump(false, random);
  while (!queue->empty()) {
    iovec parts[8];
    const size_t num_parts = queue->Gather(parts, 1 + (*random)() % 40000);
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < num_parts; ++i) {
      const auto* const data = static_cast<const std::byte*>(parts[i].iov_base);
      bytes.insert(bytes.end(), data, data + parts[i].iov_len);
    }
    bytes.resize(1 + (*random)() % bytes.size());
    pump.Feed(bytes, 100000);
    const SendQueue::Progress progress = queue->Commit(bytes.size());
    total->slices += progress.slices;
    total->controls += progress.controls;
    total->control_bytes += progress.control_bytes;
    if ((*random)() % 8 == 0) queue->PushControl("");
  }
  return pump.result();
}

TEST(SendQueueTest, WritesWholeFramesHoweverTheSocketCutsThem) {
  std::mt19937_64 random(TestSeed());
  const auto arena = MakeArena(SmallLayout(), 32);
  const std::vector<std::byte> zeroes(SmallLayout().SliceBytes());
  for (const bool by_reference : {false, true}) {
    const Transfer transfer = MakeTransfer(1, 32, 0, 0);
    FillSource(transfer, arena->memory(), random());
    const std::vector<SliceRef> slices = SlicesOf(transfer, arena->memory());
    SendQueue queue(arena.get(), &zeroes);
    queue.SetUp(by_reference, 42);
    queue.PushSlices(slices);
    queue.PushControl("hello");
    SendQueue::Progress total;
    const ReadResult read = WriteOut(&queue, &random, &total);
    ASSERT_FALSE(read.bad);
    EXPECT_EQ(total.slices, slices.size());
    size_t next = 0;
    for (const FrameHeader& header : read.headers) {
      if (header.kind == FrameKind::kControl) continue;
      const uint32_t inline_bytes = by_reference ? 0 : SmallLayout().SliceBytes();
      ASSERT_EQ(header, SliceFrameHeader(slices[next], 42, inline_bytes));
      ++next;
    }
    EXPECT_EQ(next, slices.size());
    EXPECT_EQ(total.controls, read.headers.size() - slices.size());
  }
}

TEST(SendQueueTest, ADroppedTransferEndsItsFrameWithZeroes) {
  std::mt19937_64 random(TestSeed());
  const auto arena = MakeArena(SmallLayout(), 32);
  const std::vector<std::byte> zeroes(SmallLayout().SliceBytes());
  const Transfer dropped = MakeTransfer(1, 8, 0, 0);
  const Transfer kept = MakeTransfer(2, 8, 8, 8);
  FillSource(dropped, arena->memory(), 1);
  FillSource(kept, arena->memory(), 2);
  for (int round = 0; round < 50; ++round) {
    SendQueue queue(arena.get(), &zeroes);
    queue.SetUp(false, 42);
    queue.PushSlices(SlicesOf(dropped, arena->memory()));
    queue.PushSlices(SlicesOf(kept, arena->memory()));
    StreamPump pump(false, &random);
    iovec parts[64];
    const size_t num_parts = queue.Gather(parts, 60000);
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < num_parts; ++i) {
      const auto* const data = static_cast<const std::byte*>(parts[i].iov_base);
      bytes.insert(bytes.end(), data, data + parts[i].iov_len);
    }
    bytes.resize(1 + random() % bytes.size());
    pump.Feed(bytes, 100000);
    SendQueue::Progress total = queue.Commit(bytes.size());
    total.slices += queue.DropTransfer(dropped.id).slices;
    // From here on the blocks belong to somebody else.
    for (const BlockIndex block : dropped.source) SetBlock(arena->memory(), block, std::byte{0xEE});
    SendQueue::Progress rest;
    const ReadResult tail = [&] {
      while (!queue.empty()) {
        const size_t count = queue.Gather(parts, 50000);
        for (size_t i = 0; i < count; ++i) {
          const auto* const data = static_cast<const std::byte*>(parts[i].iov_base);
          pump.Feed({data, parts[i].iov_len}, 100000);
        }
        size_t size = 0;
        for (size_t i = 0; i < count; ++i) size += parts[i].iov_len;
        rest.slices += queue.Commit(size).slices;
      }
      return pump.result();
    }();
    ASSERT_FALSE(tail.bad);
    EXPECT_EQ(total.slices + rest.slices, 48u);
    size_t num_kept = 0;
    for (size_t i = 0; i < tail.headers.size(); ++i) {
      if (tail.headers[i].transfer == kept.id) ++num_kept;
      const auto& payload = tail.payloads[i];
      const auto foreign = std::search_n(payload.begin(), payload.end(), 64, std::byte{0xEE});
      EXPECT_EQ(foreign, payload.end()) << "a byte of a reused block was sent";
    }
    EXPECT_EQ(num_kept, 24u);
    FillSource(dropped, arena->memory(), 1);
  }
}

TEST(SliceCopyTest, TheOnePassCopiesAndGivesTheChecksumForEverySizeAndAlignment) {
  std::mt19937_64 random(TestSeed());
  alignas(64) static std::array<std::byte, 9000> source;
  alignas(64) static std::array<std::byte, 9000> dest;
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  std::vector<size_t> sizes = {0,    1,    63,   64,   128,  192,  240,  241,  256, 320,
                               1023, 1024, 1025, 1088, 2048, 4096, 4160, 8128, 8192};
  for (int i = 0; i < 200; ++i) sizes.push_back(random() % 8500);
  for (const size_t size : sizes) {
    for (const size_t shift : {size_t{0}, size_t{32}, size_t{8}, size_t{1}}) {
      dest.fill(std::byte{0x5A});
      const uint64_t hash = CopyAndChecksum(&dest[shift], &source[shift], size);
      ASSERT_EQ(hash, SliceChecksum(&source[shift], size)) << size << " bytes at " << shift;
      ASSERT_EQ(std::memcmp(&dest[shift], &source[shift], size), 0);
      ASSERT_EQ(dest[shift + size], std::byte{0x5A}) << "wrote beyond " << size;
    }
  }
}

HandshakeOptions Side(uint64_t incarnation, const std::string& secret) {
  HandshakeOptions options;
  options.self.incarnation = Incarnation(incarnation);
  options.self.layout_id = 1;
  options.self.numerics_id = 2;
  options.self.epoch = 99;
  options.self.worker_id = "w" + std::to_string(incarnation);
  options.cluster_secret = secret;
  return options;
}

// Runs an introduction to its end; the reason of the first refusal.
CloseReason Introduce(Handshake* dialler, Handshake* acceptor) {
  Handshake::Reply frame = dialler->Start();
  Handshake* receiver = acceptor;
  Handshake* sender = dialler;
  while (true) {
    if (!receiver->OnFrame(frame.kind, frame.payload).ok()) return receiver->reason();
    if (!receiver->has_reply()) break;
    frame = receiver->TakeReply();
    std::swap(receiver, sender);
  }
  if (!acceptor->ready()) return CloseReason::kProtocol;
  if (!dialler->OnFrame(FrameKind::kWelcome, {}).ok()) return dialler->reason();
  return dialler->ready() ? CloseReason::kNone : CloseReason::kProtocol;
}

TEST(HandshakeTest, WhatDoesNotFitIsRefusedByName) {
  struct Case {
    const char* name;
    CloseReason reason;
    std::function<void(HandshakeOptions*)> change_acceptor;
  };
  const Case cases[] = {
      {"equal", CloseReason::kNone, [](HandshakeOptions*) {}},
      {"secret", CloseReason::kWrongSecret, [](HandshakeOptions* o) { o->cluster_secret = "b"; }},
      {"empty secret", CloseReason::kWrongSecret,
       [](HandshakeOptions* o) { o->cluster_secret = ""; }},
      {"layout", CloseReason::kLayout, [](HandshakeOptions* o) { o->self.layout_id = 7; }},
      {"numerics", CloseReason::kNumerics, [](HandshakeOptions* o) { o->self.numerics_id = 7; }},
      {"one allows", CloseReason::kNumerics,
       [](HandshakeOptions* o) { o->self.numerics_id = 7, o->self.allow_inexact = true; }},
      {"incarnation", CloseReason::kWrongPeer,
       [](HandshakeOptions* o) { o->self.incarnation = Incarnation(8); }},
      {"wire", CloseReason::kWireVersion,
       [](HandshakeOptions* o) { o->self.wire = {.min = 2, .max = 3}; }},
  };
  for (const Case& test_case : cases) {
    HandshakeOptions dialler = Side(1, "a");
    dialler.self.expected = Incarnation(2);
    HandshakeOptions acceptor = Side(2, "a");
    test_case.change_acceptor(&acceptor);
    Handshake a(dialler, true);
    Handshake b(acceptor, false);
    EXPECT_EQ(Introduce(&a, &b), test_case.reason) << test_case.name;
    if (test_case.reason == CloseReason::kNone) {
      EXPECT_EQ(a.epoch(), 99u);
      EXPECT_EQ(b.epoch(), 99u);
    }
  }
}

TEST(HandshakeTest, RangesOfVersionsThatMeetAreEnough) {
  constexpr uint32_t kN = 5;
  struct Case {
    WireRange dialler;
    WireRange acceptor;
    bool fits;
  };
  const Case cases[] = {
      {{kN - 1, kN}, {kN - 1, kN}, true},       // one release
      {{kN - 2, kN - 1}, {kN - 1, kN}, true},   // the release before, N - 1 is common
      {{kN - 1, kN - 1}, {kN - 1, kN}, true},   // it speaks N - 1 only
      {{kN, kN + 1}, {kN - 1, kN}, true},       // the next release
      {{1, UINT32_MAX}, {kN - 1, kN}, true},    //
      {{kN - 2, kN - 2}, {kN - 1, kN}, false},  // two releases apart
      {{kN + 1, kN + 2}, {kN - 1, kN}, false},
  };
  for (const Case& c : cases) {
    for (const bool swapped : {false, true}) {
      HandshakeOptions dialler = Side(1, "a");
      dialler.self.expected = Incarnation(2);
      HandshakeOptions acceptor = Side(2, "a");
      dialler.self.wire = swapped ? c.acceptor : c.dialler;
      acceptor.self.wire = swapped ? c.dialler : c.acceptor;
      Handshake a(dialler, true);
      Handshake b(acceptor, false);
      EXPECT_EQ(Introduce(&a, &b), c.fits ? CloseReason::kNone : CloseReason::kWireVersion)
          << ToString(c.dialler) << " and " << ToString(c.acceptor) << " swapped " << swapped;
    }
  }
}

// The next version's introduction may be longer and hold what this one calls damage: it is refused
// for its version, which both sides can read, and the message has both ranges.
TEST(HandshakeTest, VersionsAreComparedBeforeTheRestIsRead) {
  HandshakeOptions newer = Side(1, "a");
  newer.self.expected = Incarnation(2);
  newer.self.wire = {.min = 2, .max = 3};
  std::vector<std::byte> hello = Handshake(newer, true).Start().payload;
  hello[52] = std::byte{0xff};  // flags of today
  hello.resize(hello.size() + 32, std::byte{1});
  Handshake acceptor(Side(2, "a"), false);
  const Status refusal = acceptor.OnFrame(FrameKind::kHello, hello);
  EXPECT_EQ(acceptor.reason(), CloseReason::kWireVersion);
  EXPECT_EQ(refusal.message(),
            "the peer speaks wire versions 2..3, this worker 1..1: none is common");
  HandshakeOptions older = Side(3, "a");
  older.self.expected = Incarnation(1);
  Handshake dialler(older, true);
  (void)dialler.Start();
  EXPECT_FALSE(dialler.OnFrame(FrameKind::kHelloAck, hello).ok());
  EXPECT_EQ(dialler.reason(), CloseReason::kWireVersion);
  // Too short for versions, or versions that contradict each other: no introduction at all.
  for (const size_t size : {size_t{0}, size_t{7}}) {
    Handshake other(Side(2, "a"), false);
    EXPECT_FALSE(other.OnFrame(FrameKind::kHello, std::span(hello).first(size)).ok());
    EXPECT_EQ(other.reason(), CloseReason::kProtocol);
  }
}

TEST(HandshakeTest, BothMayAllowOtherNumerics) {
  HandshakeOptions dialler = Side(1, "");
  dialler.self.expected = Incarnation(2);
  dialler.self.allow_inexact = true;
  HandshakeOptions acceptor = Side(2, "");
  acceptor.self.allow_inexact = true;
  acceptor.self.numerics_id = 9;
  Handshake a(dialler, true);
  Handshake b(acceptor, false);
  EXPECT_EQ(Introduce(&a, &b), CloseReason::kNone);
}

TEST(HandshakeTest, AProofCannotBeReflectedReplayedOrSkipped) {
  HandshakeOptions dialler = Side(1, "secret");
  dialler.self.expected = Incarnation(2);
  Handshake a(dialler, true);
  Handshake b(Side(2, "secret"), false);
  const Handshake::Reply hello = a.Start();
  ASSERT_TRUE(b.OnFrame(hello.kind, hello.payload).ok());
  const Handshake::Reply ack = b.TakeReply();
  // The acceptor's own proof sent back to it.
  const std::span<const std::byte> own_proof(&ack.payload[kIntroductionBytes], kProofBytes);
  EXPECT_FALSE(b.OnFrame(FrameKind::kHelloProof, own_proof).ok());
  EXPECT_EQ(b.reason(), CloseReason::kWrongSecret);
  // The dialler's proof of one introduction in another one.
  ASSERT_TRUE(a.OnFrame(ack.kind, ack.payload).ok());
  const Handshake::Reply proof = a.TakeReply();
  Handshake c(Side(2, "secret"), false);
  ASSERT_TRUE(c.OnFrame(hello.kind, hello.payload).ok());
  EXPECT_FALSE(c.OnFrame(proof.kind, proof.payload).ok());
  // No frame may be left out.
  Handshake d(Side(2, "secret"), false);
  EXPECT_FALSE(d.OnFrame(FrameKind::kWelcome, {}).ok());
  EXPECT_EQ(d.reason(), CloseReason::kProtocol);
}

}  // namespace
}  // namespace baton::kv::test
