// Tests that workers' reports of their prefix caches decide where the next prompt goes.
#include <map>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

const ChainKey kKey = DeriveChainKey("", "default");

// A cluster whose workers tell what they cache.
struct CachingCluster : FakeCluster {
  explicit CachingCluster(RouterCoreConfig config = {}) : FakeCluster(config) {}

  void JoinCaching(const std::string& id, WorkerRole role, uint64_t chain_check = 0) {
    WorkerDescription worker = Describe(id, role);
    worker.num_blocks = 1024;
    worker.max_running = max_running;
    worker.state_blocks = state_blocks;
    worker.chain_check = chain_check != 0 ? chain_check : ChainKeyCheck(kKey);
    Join(std::move(worker));
  }
  // Two workers of each role, connected; their caches are empty.
  void JoinFour() {
    for (const char* id : {"decode-0", "decode-1"}) JoinCaching(id, WorkerRole::kDecode);
    for (const char* id : {"prefill-0", "prefill-1"}) {
      JoinCaching(id, WorkerRole::kPrefill);
      Report(id, {"decode-0", "decode-1"});
    }
    for (const auto& [id, lease] : leases) Tell(id, "", true);
  }
  // The full blocks of `prompt` enter the worker's cache; with `reset` nothing else is there.
  void Tell(const std::string& id, const std::string& prompt, bool reset = false,
            std::string_view salt = "") {
    HashChain chain(DeriveChainKey("", TenantOfSalt(salt)), 16);
    chain.Append(BytesOf(prompt));
    PrefixBatch batch;
    batch.first_sequence = next_sequence[id];
    batch.reset = reset;
    for (const ChainLink& link : chain.full_links()) batch.changes.push_back({link, true});
    next_sequence[id] += batch.changes.size();
    core.OnPrefixEvents(leases.at(id), batch, now_us);
  }
  // An idle prefill worker of this speed.
  void ReportSpeed(const std::string& id, float tokens_per_s) {
    WorkerLoadReport load;
    load.ready = true;
    load.num_blocks = 1024;
    load.blocks[0] = 1024;
    load.prefill_tokens_per_s = tokens_per_s;
    load.links = {{"decode-0", lives["decode-0"], LinkKind::kShm, 0, true},
                  {"decode-1", lives["decode-1"], LinkKind::kShm, 0, true}};
    core.OnWorkerLoad(leases[id], load, now_us);
  }
  size_t NumKnown(const std::string& id) { return core.prefixes().num_links(leases.at(id)); }

  // Where a request for `prompt` goes: its prefill and its decode worker. It ends at once.
  std::pair<std::string, std::string> Place(const std::string& prompt, std::string_view salt = "") {
    GenerateRequest request = Request(prompt, 2);
    request.tenant = TenantOfSalt(salt);
    const RequestUid uid = Submit(std::move(request));
    const std::pair<std::string, std::string> at = PlaceOf(uid);
    core.Cancel(uid);
    return at;
  }
  std::pair<std::string, std::string> PlaceOf(RequestUid uid) {
    std::pair<std::string, std::string> at;
    for (const auto& [id, lease] : leases) {
      for (const Order& order : Log(id).orders) {
        if (order.uid != uid) continue;
        if (order.kind == Order::Kind::kPrefill) at.first = id;
        if (order.kind == Order::Kind::kDecode) at.second = id;
      }
    }
    return at;
  }

  std::map<std::string, uint64_t> next_sequence;
  uint32_t max_running = 8;
  uint32_t state_blocks = 0;
};

const std::string kPrompt(200, 'p');  // 12 full blocks and 8 tokens

TEST(PrefixPlacementTest, ARepeatedPromptGoesToTheWorkersThatHaveIt) {
  CachingCluster cluster;
  cluster.JoinFour();
  std::map<std::string, int> decode_without;
  for (int i = 0; i < 40; ++i) ++decode_without[cluster.Place(kPrompt).second];
  EXPECT_EQ(decode_without.size(), 2u) << "nothing is known: both get some";

  cluster.Tell("prefill-1", kPrompt);
  cluster.Tell("decode-0", kPrompt);
  const std::pair<std::string, std::string> holders("prefill-1", "decode-0");
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(cluster.Place(kPrompt), holders);
    EXPECT_EQ(cluster.Place(kPrompt + " and more of it"), holders);
    EXPECT_EQ(cluster.Place(kPrompt.substr(0, 100) + "another end"), holders);
  }
  std::map<std::string, int> other;
  for (int i = 0; i < 40; ++i) ++other[cluster.Place("q" + kPrompt).first];
  EXPECT_EQ(other.size(), 2u) << "one token in front makes it another prompt";
}

TEST(PrefixPlacementTest, AMuchBusierHolderIsPassedBy) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt);
  cluster.Tell("decode-0", kPrompt);
  WorkerLoadReport busy;
  busy.ready = true;
  busy.num_blocks = 1024;
  busy.blocks[0] = 1024;
  busy.running = 5;
  cluster.core.OnWorkerLoad(cluster.leases["decode-0"], busy, cluster.now_us);
  busy.running = 0;
  busy.backlog_tokens = 400;  // more than the 192 that the hit saves
  busy.links = {{"decode-0", cluster.lives["decode-0"], LinkKind::kShm, 0, true},
                {"decode-1", cluster.lives["decode-1"], LinkKind::kShm, 0, true}};
  cluster.core.OnWorkerLoad(cluster.leases["prefill-1"], busy, cluster.now_us);
  const std::pair<std::string, std::string> others("prefill-0", "decode-1");
  EXPECT_EQ(cluster.Place(kPrompt), others);
  busy.backlog_tokens = 100;
  cluster.core.OnWorkerLoad(cluster.leases["prefill-1"], busy, cluster.now_us);
  EXPECT_EQ(cluster.Place(kPrompt).first, "prefill-1");
}

// The first worker that computed a prompt is the only one whose speed is known; that it is slower
// than a guess about the others is no reason to pass it by.
TEST(PrefixPlacementTest, AWorkerWithoutASpeedIsTakenToBeLikeTheOthers) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt.substr(0, 64));  // 4 of 12 blocks
  cluster.ReportSpeed("prefill-1", 20);
  EXPECT_EQ(cluster.Place(kPrompt).first, "prefill-1");
}

// Under light load the fastest worker gets all, so nothing measures the others.
TEST(PrefixPlacementTest, AnOldSpeedThatIsALittleLowerIsTriedAgain) {
  for (const auto& [slow, is_tried] : {std::pair{400.0f, true}, std::pair{100.0f, false}}) {
    CachingCluster cluster;
    cluster.JoinFour();
    const auto report = [&, speed = slow] {
      cluster.ReportSpeed("prefill-0", 500);
      cluster.ReportSpeed("prefill-1", speed);
      for (const char* id : {"decode-0", "decode-1"}) cluster.Report(id);
    };
    const auto place_some = [&] {
      int num_slow = 0;
      for (int i = 0; i < 20; ++i) {
        num_slow +=
            cluster.Place(std::string(160, static_cast<char>('a' + i))).first == "prefill-1";
      }
      return num_slow;
    };
    report();
    EXPECT_EQ(place_some(), 0) << slow;
    for (int i = 0; i < 90; ++i) {
      cluster.now_us += 100'000;
      report();
      cluster.core.Tick(cluster.now_us);
    }
    EXPECT_EQ(place_some() > 0, is_tried) << slow;
  }
}

// A decode worker has KV of a whole chat, and a state near its beginning alone: all of it need not
// cross, whatever it could go on from.
TEST(PrefixPlacementTest, KvWithoutAStateCountsForThePairsDecodeWorker) {
  CachingCluster cluster;
  cluster.state_blocks = 4;
  cluster.JoinFour();
  cluster.Tell("decode-0", kPrompt);
  cluster.Tell("prefill-1", kPrompt);
  std::map<std::string, int> prefill;
  for (int i = 0; i < 40; ++i) {
    const auto place = cluster.Place(kPrompt);
    EXPECT_EQ(place.second, "decode-0");
    ++prefill[place.first];
  }
  EXPECT_EQ(prefill.size(), 2u) << "neither prefill worker can go on from anything";
  EXPECT_EQ(cluster.metrics.prefix_placements_total->value(), 0u) << "both are idle";

  cluster.Submit(cluster.Request(kPrompt, 2));
  // 12 full blocks, the rest, one to grow into and the state.
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 12u + 1 + 1 + 4);
  cluster.Submit(cluster.Request(kPrompt, 2));
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 12u + 2 * 6) << "the second shares them";
  cluster.core.FailAll(ErrorCode::kDraining);
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 0u);
}

// Requests that stay: the holders fill up first, and the others take their part.
TEST(PrefixPlacementTest, ABurstOfOnePromptIsSpread) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt);
  cluster.Tell("decode-0", kPrompt);
  std::map<std::string, int> at;
  for (int i = 0; i < 10; ++i) {
    const auto place = cluster.PlaceOf(cluster.Submit(cluster.Request(kPrompt, 2)));
    ++at[place.first];
    ++at[place.second];
  }
  EXPECT_EQ(at["decode-0"], 7);
  EXPECT_EQ(at["decode-1"], 3) << "2 + half as many sequences more are allowed";
  // About eight cached prompts cost the one what one whole prompt costs the other.
  EXPECT_GE(at["prefill-1"], 8);
  EXPECT_GE(at["prefill-0"], 1);
}

TEST(PrefixPlacementTest, ALostEventLeadsToAResync) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt);
  ASSERT_EQ(cluster.NumKnown("prefill-1"), 12u);
  cluster.next_sequence["prefill-1"] += 3;  // these are never sent
  cluster.Tell("prefill-1", "x" + kPrompt);
  EXPECT_EQ(cluster.NumKnown("prefill-1"), 0u) << "what is known may be wrong";
  EXPECT_EQ(cluster.Log("prefill-1").num_resyncs_asked, 1);
  EXPECT_EQ(cluster.Log("prefill-0").num_resyncs_asked, 0);
  cluster.Tell("prefill-1", "y" + kPrompt);
  EXPECT_EQ(cluster.Log("prefill-1").num_resyncs_asked, 1) << "asked once";
  cluster.Advance(500'000, {"prefill-0", "prefill-1", "decode-0", "decode-1"});
  EXPECT_EQ(cluster.Log("prefill-1").num_resyncs_asked, 1);
  cluster.Advance(600'000, {"prefill-0", "prefill-1", "decode-0", "decode-1"});
  EXPECT_EQ(cluster.Log("prefill-1").num_resyncs_asked, 2) << "no answer for a second";
  cluster.Tell("prefill-1", kPrompt, true);
  EXPECT_EQ(cluster.NumKnown("prefill-1"), 12u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(cluster.Place(kPrompt).first, "prefill-1");
}

TEST(PrefixPlacementTest, ARestartedWorkerStartsEmpty) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt);
  const LeaseId former = cluster.leases["prefill-1"];
  cluster.Advance(1'100'000, {"prefill-0", "decode-0", "decode-1"});  // silent for so long
  cluster.JoinCaching("prefill-1", WorkerRole::kPrefill);
  cluster.Report("prefill-1", {"decode-0", "decode-1"});
  EXPECT_EQ(cluster.NumKnown("prefill-1"), 0u);
  EXPECT_EQ(cluster.core.prefixes().num_entries(), 0u);
  // A batch that the former life's stream still delivers changes nothing.
  PrefixBatch late;
  late.reset = true;
  late.changes.push_back({ChainLinks(kKey, 16, BytesOf(kPrompt))[0], true});
  cluster.core.OnPrefixEvents(former, late, cluster.now_us);
  EXPECT_EQ(cluster.core.prefixes().num_entries(), 0u);
  std::map<std::string, int> prefill;
  for (int i = 0; i < 40; ++i) ++prefill[cluster.Place(kPrompt).first];
  EXPECT_EQ(prefill.size(), 2u);
  cluster.Tell("prefill-0", kPrompt);
  EXPECT_EQ(cluster.core.prefixes().num_entries(), 12u);
  cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
  EXPECT_EQ(cluster.core.prefixes().num_entries(), 0u);
}

// KV that a salt's requests computed is found by that salt alone, and workers are told whose it is.
TEST(PrefixPlacementTest, APromptIsFoundWhereItsSaltIs) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-0", kPrompt, false, "a");
  cluster.Tell("decode-0", kPrompt, false, "a");
  cluster.Tell("prefill-1", kPrompt, false, "b");
  cluster.Tell("decode-1", kPrompt, false, "b");
  std::map<std::string, int> without;
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(cluster.Place(kPrompt, "a"),
              std::make_pair(std::string("prefill-0"), std::string("decode-0")));
    EXPECT_EQ(cluster.Place(kPrompt, "b"),
              std::make_pair(std::string("prefill-1"), std::string("decode-1")));
    ++without[cluster.Place(kPrompt).first];
    ++without[cluster.Place(kPrompt, "ab").first];
  }
  EXPECT_EQ(without.size(), 2u) << "nothing is known of no salt and of another one";
  std::set<std::string> tenants;
  for (const char* id : {"prefill-0", "prefill-1", "decode-0", "decode-1"}) {
    for (const Order& order : cluster.Log(id).orders) {
      if (order.kind == Order::Kind::kPrefill || order.kind == Order::Kind::kDecode) {
        tenants.insert(order.tenant);
      }
    }
  }
  EXPECT_EQ(tenants, (std::set<std::string>{TenantOfSalt(""), TenantOfSalt("a"), TenantOfSalt("b"),
                                            TenantOfSalt("ab")}));
}

// Another secret gives another chain: nothing would ever be found, so nothing is kept.
TEST(PrefixPlacementTest, AWorkerWithAnotherKeyIsNotTracked) {
  RouterCoreConfig config;
  config.cluster_secret = "the router's own";
  CachingCluster cluster(config);
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt, true);
  EXPECT_EQ(cluster.core.prefixes().num_entries(), 0u);
  cluster.Advance(5'000'000, {"prefill-0", "prefill-1", "decode-0", "decode-1"});
  EXPECT_EQ(cluster.Log("prefill-1").num_resyncs_asked, 0);
  EXPECT_NE(cluster.Place(kPrompt).first, "") << "and it is served like before";
}

TEST(PrefixPlacementTest, AdaptiveModeServesAPromptWhereItIsCached) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAdaptive;
  config.local_max_tokens = 20;
  CachingCluster cluster(config);
  cluster.JoinFour();
  EXPECT_NE(cluster.Place(kPrompt).first, "");
  cluster.Tell("decode-1", kPrompt);
  EXPECT_EQ(cluster.Place(kPrompt), std::make_pair(std::string(), std::string("decode-1")))
      << "8 tokens are left to compute";
  const std::string longer = kPrompt + std::string(20, 'z');
  EXPECT_EQ(cluster.Place(longer), std::make_pair(std::string(), std::string("decode-1")))
      << "28 are, not 220";
  for (const char* id : {"prefill-0", "prefill-1"}) cluster.Tell(id, kPrompt);
  EXPECT_NE(cluster.Place(longer).first, "") << "28 are at a prefill worker too";
}

// The backlog that a request adds at its prefill worker is what that one must compute.
TEST(PrefixPlacementTest, OnlyTheUncachedTokensCountAsBacklog) {
  CachingCluster cluster;
  cluster.JoinFour();
  cluster.Tell("prefill-1", kPrompt);
  cluster.Submit(cluster.Request(kPrompt, 2));
  const RegisteredWorker* worker = cluster.core.registry().Find(cluster.leases["prefill-1"]);
  EXPECT_EQ(worker->num_requests, 1u);
  EXPECT_EQ(worker->placed.num_tokens, 8u);
  EXPECT_EQ(worker->placed.num_blocks, 13u) << "cached blocks are free ones until they are used";
  cluster.Submit(cluster.Request(kPrompt, 2));
  EXPECT_EQ(worker->placed.num_blocks, 14u) << "12 are shared with the first";
  cluster.core.FailAll(ErrorCode::kDraining);
  EXPECT_EQ(worker->placed.num_tokens, 0u);
  EXPECT_EQ(worker->placed.num_blocks, 0u);
  EXPECT_TRUE(worker->shared.empty());
}

// A holder that has no slot left is passed by; it is no reason to keep everybody waiting while
// another worker is idle.
TEST(PrefixPlacementTest, AHolderWithoutASlotIsPassedBy) {
  CachingCluster cluster;
  cluster.max_running = 256;
  cluster.JoinFour();
  for (const char* id : {"prefill-1", "decode-0", "decode-1"}) cluster.Tell(id, kPrompt);
  cluster.ReportSpeed("prefill-0", 1000);
  cluster.ReportSpeed("prefill-1", 1e6);
  std::map<std::string, int> at;
  for (int i = 0; i < 70; ++i) {
    ++at[cluster.PlaceOf(cluster.Submit(cluster.Request(kPrompt, 2))).first];
  }
  EXPECT_EQ(at["prefill-1"], static_cast<int>(WorkerRegistry::kMaxPrefillsInFlight));
  EXPECT_EQ(at["prefill-0"], 6);
}

}  // namespace
}  // namespace baton::router
