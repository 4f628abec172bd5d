// Hand-off messages over the wire: what one worker says is what the other hears, and bytes from a
// peer are never believed.
#include "src/worker/handoff_codec.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "baton/v1/handoff.pb.h"
#include "kvcache/transport/transport_types.h"
#include "src/base/limits.h"
#include "tests/proto/unknown_fields.h"
#include "tests/test_seed.h"

namespace baton::worker {

using limits::kMaxBlocksPerTransfer;
using limits::kMaxChoices;
using limits::kMaxControlBytes;
using limits::kMaxSlicesPerTransfer;
using limits::kMaxTopLogprobs;

using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

constexpr size_t kNumKinds = std::variant_size_v<HandoffMessage>;

TransferKey RandomKey(TestRandom& random) {
  TransferKey key;
  key.uid = {random.Next(), random.Next() | 1};
  key.attempt = random.Between(1, 1000);
  key.transfer = TransferId(random.OneIn(4) ? 0 : random.Next());
  return key;
}

Grant RandomGrant(TestRandom& random) {
  Grant grant{.key = RandomKey(random)};
  grant.decode_incarnation = Incarnation(random.Next());
  for (uint32_t i = random.Between(1, 60); i > 0; --i) {
    grant.generations.push_back(static_cast<uint32_t>(random.Next()));
  }
  grant.layout_id = random.Next();
  grant.expected_bytes = random.Next();
  grant.ttl_ms = random.Between(1, 60'000);
  grant.num_held = random.Below(kMaxBlocksPerTransfer + 1);
  return grant;
}

Seal RandomSeal(TestRandom& random) {
  Seal seal{.key = RandomKey(random)};
  for (uint32_t choice = 0, n = random.Between(1, 9); choice < n; ++choice) {
    FirstToken first{.choice = choice, .token = static_cast<TokenId>(random.Below(1u << 31))};
    if (random.OneIn(2)) first.logprob = -static_cast<float>(random.Below(1000)) / 64.0f;
    for (uint32_t i = random.Below(kMaxTopLogprobs + 1); i > 0; --i) {
      first.top_logprobs.push_back({static_cast<TokenId>(random.Below(50'000)),
                                    -static_cast<float>(random.Below(1000)) / 128.0f});
    }
    seal.first_tokens.push_back(std::move(first));
  }
  seal.next_output_index = random.Below(5);
  for (uint32_t i = random.Below(40); i > 0; --i) {
    seal.chain.push_back({.hi = random.Next(), .lo = random.Next()});
  }
  seal.num_slices = random.Below(kMaxSlicesPerTransfer + 1);
  seal.num_tokens = static_cast<uint32_t>(random.Next());
  seal.num_cached = static_cast<uint32_t>(random.Next());
  return seal;
}

HandoffMessage RandomMessage(TestRandom& random, size_t kind) {
  if (kind == 0) return RandomGrant(random);
  if (kind == 1) return RandomSeal(random);
  if (kind == 2) return Applied{.key = RandomKey(random)};
  if (kind == 3) {
    Nack nack{.key = RandomKey(random)};
    for (uint32_t i = random.Below(50); i > 0; --i) {
      nack.slices.push_back({random.Below(1000), random.Below(64)});
    }
    return nack;
  }
  if (kind == 4) {
    Revoke revoke{.key = RandomKey(random), .reason = std::string(random.Below(90), 'r')};
    revoke.from_decode = random.OneIn(2);
    revoke.failed_part = static_cast<FailedPart>(random.Below(3));
    return revoke;
  }
  return Renew{.key = RandomKey(random)};
}

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

TEST(HandoffCodecTest, EveryMessageArrivesAsItWasSent) {
  const ProtoHandoffWire wire;
  for (const uint64_t seed : TestSeeds(20)) {
    TestRandom random(seed);
    for (size_t i = 0; i < 50 * kNumKinds; ++i) {
      const HandoffMessage sent = RandomMessage(random, i % kNumKinds);
      const StatusOr<HandoffMessage> heard = wire.Decode(wire.Encode(sent));
      ASSERT_TRUE(heard.ok()) << heard.status() << " seed " << seed;
      ASSERT_EQ(heard->index(), sent.index()) << "seed " << seed;
      ASSERT_TRUE(*heard == sent) << "kind " << sent.index() << " seed " << seed;
    }
  }
}

TEST(HandoffCodecTest, WhatALaterVersionAddsIsPassedOver) {
  TestRandom random(TestSeed());
  const ProtoHandoffWire wire;
  for (size_t kind = 0; kind < kNumKinds; ++kind) {
    const HandoffMessage message = RandomMessage(random, kind);
    v1::HandoffMessage newer;
    ASSERT_TRUE(newer.ParseFromString(wire.Encode(message)));
    AddUnknownFields(&newer);
    const StatusOr<HandoffMessage> decoded = wire.Decode(newer.SerializeAsString());
    ASSERT_TRUE(decoded.ok()) << "kind " << kind << ": " << decoded.status();
    EXPECT_EQ(wire.Encode(*decoded), wire.Encode(message)) << "kind " << kind;
  }
  // A kind that is not known is told apart from damage: its sender is no enemy.
  v1::HandoffMessage unknown;
  AddUnknownFields(&unknown);
  EXPECT_EQ(wire.Decode(unknown.SerializeAsString()).status().code(), StatusCode::kUnimplemented);
}

// A cut message must not be taken for a shorter one: a Nack that lost its list would ask for all.
TEST(HandoffCodecTest, NoTruncationIsAMessage) {
  const ProtoHandoffWire wire;
  for (const uint64_t seed : TestSeeds(5)) {
    TestRandom random(seed);
    for (size_t kind = 0; kind < kNumKinds; ++kind) {
      const std::string bytes = wire.Encode(RandomMessage(random, kind));
      for (size_t size = 0; size < bytes.size(); ++size) {
        ASSERT_FALSE(wire.Decode(std::string_view(bytes).substr(0, size)).ok())
            << "kind " << kind << " cut to " << size << " of " << bytes.size() << " seed " << seed;
      }
    }
  }
}

// Whatever arrives is refused, or is a message inside the contract: saying it again says the same.
TEST(HandoffCodecTest, HostileBytesAreRefusedOrWithinTheContract) {
  const ProtoHandoffWire wire;
  uint32_t num_refused = 0;
  uint32_t num_taken = 0;
  for (const uint64_t seed : TestSeeds(20)) {
    TestRandom random(seed);
    for (size_t i = 0; i < 200 * kNumKinds; ++i) {
      std::string bytes = wire.Encode(RandomMessage(random, i % kNumKinds));
      for (uint32_t hit = random.Between(1, 4); hit > 0; --hit) {
        bytes[random.Below(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(random.Next());
      }
      const StatusOr<HandoffMessage> heard = wire.Decode(bytes);
      ++(heard.ok() ? num_taken : num_refused);
      if (!heard.ok()) continue;
      ASSERT_GE(KeyOf(*heard).attempt, 1u);
      ASSERT_NE(KeyOf(*heard).uid, RequestUid{});
      const std::string again = wire.Encode(*heard);
      const StatusOr<HandoffMessage> twice = wire.Decode(again);
      ASSERT_TRUE(twice.ok()) << twice.status() << " seed " << seed << " bytes " << Hex(bytes);
      ASSERT_EQ(wire.Encode(*twice), again) << "seed " << seed << " bytes " << Hex(bytes);
    }
    for (int i = 0; i < 300; ++i) {
      std::string noise(random.Below(200), '\0');
      for (char& c : noise) c = static_cast<char>(random.Next());
      if (wire.Decode(noise).ok()) ++num_taken;
    }
  }
  // Both ways out were taken, so the property above was put to the test.
  EXPECT_GT(num_refused, 1000u);
  EXPECT_GT(num_taken, 1000u);
}

// A message outside the contract in one field, and the word that its refusal must have.
struct BadField {
  const char* word;
  void (*set)(v1::HandoffMessage* m);
};

void FillKey(v1::TransferKey* key) {
  key->mutable_uid()->set_lo(1);
  key->set_attempt(1);
}
v1::Grant* GoodGrant(v1::HandoffMessage* m) {
  FillKey(m->mutable_grant()->mutable_key());
  m->mutable_grant()->add_generations(1);
  m->mutable_grant()->set_ttl_ms(1);
  return m->mutable_grant();
}
v1::Seal* GoodSeal(v1::HandoffMessage* m) {
  FillKey(m->mutable_seal()->mutable_key());
  m->mutable_seal()->add_first_tokens();
  return m->mutable_seal();
}
v1::Nack* GoodNack(v1::HandoffMessage* m) {
  FillKey(m->mutable_nack()->mutable_key());
  return m->mutable_nack();
}

TEST(HandoffCodecTest, FieldsOutsideTheirRangeAreNamed) {
  const ProtoHandoffWire wire;
  for (void (*good)(v1::HandoffMessage*) :
       {+[](v1::HandoffMessage* m) { GoodGrant(m); }, +[](v1::HandoffMessage* m) { GoodSeal(m); },
        +[](v1::HandoffMessage* m) { GoodNack(m); }}) {
    v1::HandoffMessage m;
    good(&m);
    ASSERT_TRUE(wire.Decode(m.SerializeAsString()).ok()) << m.DebugString();
  }
  const BadField cases[] = {
      {"uid", [](v1::HandoffMessage* m) { GoodGrant(m)->mutable_key()->clear_uid(); }},
      {"attempt", [](v1::HandoffMessage* m) { GoodSeal(m)->mutable_key()->set_attempt(0); }},
      {"uid", [](v1::HandoffMessage* m) { m->mutable_applied(); }},
      {"uid", [](v1::HandoffMessage* m) { m->mutable_renew()->mutable_key()->set_attempt(3); }},
      {"attempt",
       [](v1::HandoffMessage* m) { m->mutable_revoke()->mutable_key()->mutable_uid()->set_hi(1); }},
      {"generations", [](v1::HandoffMessage* m) { GoodGrant(m)->clear_generations(); }},
      {"generations",
       [](v1::HandoffMessage* m) {
         GoodGrant(m)->mutable_generations()->Resize(kMaxBlocksPerTransfer + 1, 0);
       }},
      {"ttl_ms", [](v1::HandoffMessage* m) { GoodGrant(m)->set_ttl_ms(0); }},
      {"held_blocks",
       [](v1::HandoffMessage* m) { GoodGrant(m)->set_held_blocks(kMaxBlocksPerTransfer + 1); }},
      {"first_tokens", [](v1::HandoffMessage* m) { GoodSeal(m)->clear_first_tokens(); }},
      {"first_tokens",
       [](v1::HandoffMessage* m) {
         for (uint32_t i = 0; i < kMaxChoices; ++i) GoodSeal(m)->add_first_tokens()->set_choice(i);
       }},
      {"ascending", [](v1::HandoffMessage* m) { GoodSeal(m)->add_first_tokens(); }},
      {"choice",
       [](v1::HandoffMessage* m) {
         GoodSeal(m)->mutable_first_tokens(0)->set_choice(kMaxChoices);
       }},
      {"token",
       [](v1::HandoffMessage* m) { GoodSeal(m)->mutable_first_tokens(0)->set_token(1u << 31); }},
      {"token",
       [](v1::HandoffMessage* m) {
         GoodSeal(m)->mutable_first_tokens(0)->add_top_logprobs()->set_token(UINT32_MAX);
       }},
      {"top_logprobs",
       [](v1::HandoffMessage* m) {
         auto* first = GoodSeal(m)->mutable_first_tokens(0);
         for (uint32_t i = 0; i <= kMaxTopLogprobs; ++i) first->add_top_logprobs();
       }},
      {"hash chain", [](v1::HandoffMessage* m) { GoodSeal(m)->set_hash_chain("seven b"); }},
      {"num_slices",
       [](v1::HandoffMessage* m) { GoodSeal(m)->set_num_slices(kMaxSlicesPerTransfer + 1); }},
      {"nack", [](v1::HandoffMessage* m) { GoodNack(m)->add_ordinals(1); }},
      {"nack",
       [](v1::HandoffMessage* m) {
         GoodNack(m)->mutable_ordinals()->Resize(4097, 0);
         GoodNack(m)->mutable_layers()->Resize(4097, 0);
       }},
      {"kind", [](v1::HandoffMessage*) {}},
  };
  for (const BadField& c : cases) {
    v1::HandoffMessage m;
    c.set(&m);
    const StatusOr<HandoffMessage> heard = wire.Decode(m.SerializeAsString());
    ASSERT_FALSE(heard.ok()) << c.word;
    EXPECT_NE(heard.status().ToString().find(c.word), std::string::npos)
        << heard.status() << " should name " << c.word;
  }
}

TEST(HandoffCodecTest, OversizedMessageIsRefusedUnread) {
  v1::HandoffMessage m;
  GoodSeal(&m)->set_hash_chain(std::string(kMaxControlBytes, 'x'));
  EXPECT_FALSE(ProtoHandoffWire().Decode(m.SerializeAsString()).ok());
}

TEST(HandoffCodecTest, NackOfTooManySlicesAsksForAll) {
  Nack nack{.key = {.uid = {0, 1}, .attempt = 1}};
  nack.slices.resize(4097);
  const ProtoHandoffWire wire;
  const auto heard = wire.Decode(wire.Encode(nack));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_TRUE(std::get<Nack>(*heard).slices.empty());
}

// A release that says nothing, and one that says what this one does not know.
TEST(HandoffCodecTest, ARevokeWithoutAKnownPartHasNone) {
  const ProtoHandoffWire wire;
  v1::HandoffMessage message;
  message.mutable_revoke()->mutable_key()->mutable_uid()->set_lo(1);
  message.mutable_revoke()->mutable_key()->set_attempt(1);
  for (const int part : {0, 1, 2, 3, 99, -1}) {
    message.mutable_revoke()->set_failed_part(static_cast<v1::FailedPart>(part));
    const auto heard = wire.Decode(message.SerializeAsString());
    ASSERT_TRUE(heard.ok()) << heard.status();
    const auto wanted =
        part == 1 || part == 2 ? static_cast<FailedPart>(part) : FailedPart::kNotTold;
    EXPECT_EQ(std::get<Revoke>(*heard).failed_part, wanted) << part;
  }
}

// Text that is no UTF-8 would make the peer refuse the whole message, and its blocks would wait for
// their lease to end.
TEST(HandoffCodecTest, RevokeArrivesWhateverItsReasonHolds) {
  const ProtoHandoffWire wire;
  Revoke revoke{.key = {.uid = {0, 1}, .attempt = 1}, .reason = "model '\xff\xc3' is gone"};
  auto heard = wire.Decode(wire.Encode(revoke));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(std::get<Revoke>(*heard).reason,
            "model '?"
            "?' is gone");
  for (size_t cut = 1020; cut < 1026; ++cut) {
    revoke.reason = std::string(cut, 'a') + "\xe2\x82\xac\xe2\x82\xac";
    heard = wire.Decode(wire.Encode(revoke));
    ASSERT_TRUE(heard.ok()) << heard.status() << " at " << cut;
    EXPECT_EQ(std::get<Revoke>(*heard).reason.size(), 1024u);
  }
}

}  // namespace
}  // namespace baton::worker
