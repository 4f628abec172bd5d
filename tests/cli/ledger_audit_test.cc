// Which blocks of a cluster are nobody's.
#include "src/cli/ledger_audit.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

// A pair that serves the request "aa": prefill-0 has exported block 5, decode-0 receives into 9.
LedgerLook Healthy() {
  LedgerProcess prefill{.worker_id = "prefill-0", .incarnation = "01", .admin = "h:1"};
  prefill.states = {{"free", 15}, {"exported", 1}};
  prefill.held = {{5, 2, "exported", "aa", 2, false}};
  prefill.requests = {{.uid = "aa", .age_ms = 40, .peer = "02"}};
  LedgerProcess decode{.worker_id = "decode-0", .incarnation = "02", .admin = "h:2"};
  decode.states = {{"free", 15}, {"receiving", 1}};
  decode.held = {{9, 7, "receiving", "aa", 2, false}};
  decode.requests = {{.uid = "aa", .age_ms = 40, .peer = "01"}};
  LedgerProcess router{.worker_id = "", .incarnation = "", .admin = "h:0"};
  router.requests = {
      {.uid = "aa", .age_ms = 41, .prefill_worker = "prefill-0", .decode_worker = "decode-0"}};
  return {.routers = {router}, .workers = {prefill, decode}};
}

LedgerProcess& Prefill(LedgerLook& look) { return look.workers[0]; }
LedgerProcess& Decode(LedgerLook& look) { return look.workers[1]; }

// "worker block why" of each suspect.
std::vector<std::string> Suspects(const LedgerLook& look) {
  std::vector<std::string> lines;
  for (const LedgerSuspect& suspect : FindSuspects(look)) {
    lines.push_back(suspect.worker_id + " " +
                    (suspect.is_block ? std::to_string(suspect.block.index) : "request") + " " +
                    suspect.why);
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(LedgerAuditTest, ABlockWhoseOwnerAllSidesKnowIsNoSuspect) {
  EXPECT_EQ(Suspects(Healthy()), Lines{});
}

TEST(LedgerAuditTest, ABlockWhoseOwnerItsWorkerForgotIsOne) {
  LedgerLook look = Healthy();
  Prefill(look).requests.clear();
  EXPECT_EQ(Suspects(look), (Lines{"prefill-0 5 its worker does not know the owner",
                                   "decode-0 9 its peer prefill-0 does not know it"}));
}

TEST(LedgerAuditTest, ARequestThatNoRouterKnowsIsOneWithItsBlocks) {
  LedgerLook look = Healthy();
  look.routers[0].requests.clear();
  EXPECT_EQ(Suspects(look),
            (Lines{"prefill-0 5 no router knows it", "prefill-0 request no router knows it",
                   "decode-0 9 no router knows it", "decode-0 request no router knows it"}));
}

TEST(LedgerAuditTest, OneOfSeveralRoutersIsEnough) {
  LedgerLook look = Healthy();
  look.routers.insert(look.routers.begin(), LedgerProcess{.worker_id = "", .incarnation = ""});
  EXPECT_EQ(Suspects(look), Lines{});
}

TEST(LedgerAuditTest, BlocksOfAnEarlierPlacementAreFound) {
  LedgerLook look = Healthy();
  look.routers[0].requests[0].decode_worker = "decode-1";
  EXPECT_EQ(Suspects(look), (Lines{"decode-0 9 the router has placed it elsewhere",
                                   "decode-0 request the router has placed it elsewhere"}));
}

TEST(LedgerAuditTest, APeerThatDiedIsNamed) {
  LedgerLook look = Healthy();
  look.workers.pop_back();
  EXPECT_EQ(Suspects(look), Lines{"prefill-0 5 its peer 02 is gone"});
}

TEST(LedgerAuditTest, ADecodingBlockNeedsNoPeer) {
  LedgerLook look = Healthy();
  look.workers.erase(look.workers.begin());
  look.workers[0].held[0].state = "bound";
  EXPECT_EQ(Suspects(look), Lines{});
}

TEST(LedgerAuditTest, ABlockThatNothingRefersToIsOne) {
  LedgerLook look = Healthy();
  Decode(look).held[0].refs = 0;
  EXPECT_EQ(Suspects(look), Lines{"decode-0 9 no reference holds it"});
}

// The name on a cached block is that of whoever took it first.
TEST(LedgerAuditTest, ASharedBlockMayOutliveTheOneWhoseNameItBears) {
  LedgerLook look = Healthy();
  Decode(look).held.push_back({10, 1, "bound", "bb", 1, true});
  EXPECT_EQ(Suspects(look), Lines{});
  Decode(look).requests.clear();
  Decode(look).held.erase(Decode(look).held.begin());
  Prefill(look) = LedgerProcess{.worker_id = "prefill-0", .incarnation = "01"};
  EXPECT_EQ(Suspects(look), Lines{"decode-0 10 its worker does not know the owner"})
      << "with no request left there is nobody to share it";
}

TEST(LedgerAuditTest, OnlyWhatEveryLookFindsIsAnOrphan) {
  LedgerLook look = Healthy();
  LedgerAudit audit;
  look.routers[0].requests.clear();
  audit.Add(look);
  EXPECT_EQ(audit.suspects().size(), 4u);
  // decode-0 has let go; a new request is on its way in and not yet known.
  Decode(look).held.clear();
  Decode(look).requests = {{.uid = "cc", .age_ms = 1}};
  Prefill(look).held.push_back({6, 3, "computing", "cc", 1, false});
  Prefill(look).requests.push_back({.uid = "cc", .age_ms = 1});
  audit.Add(look);
  ASSERT_EQ(audit.suspects().size(), 2u) << "block 5 and its request";
  for (const LedgerSuspect& suspect : audit.suspects()) {
    EXPECT_EQ(suspect.worker_id, "prefill-0");
    EXPECT_EQ(suspect.block.owner, "aa");
  }
  audit.Add(Healthy());
  EXPECT_TRUE(audit.suspects().empty());
}

// A block that a moved stream left behind stays one when the stream ends elsewhere.
TEST(LedgerAuditTest, AnOrphanStaysOneWhenItsReasonChanges) {
  LedgerLook look = Healthy();
  look.routers[0].requests[0].decode_worker = "decode-1";
  LedgerAudit audit;
  audit.Add(look);
  ASSERT_EQ(audit.suspects().size(), 2u);
  look.routers[0].requests.clear();
  audit.Add(look);
  ASSERT_EQ(audit.suspects().size(), 2u) << "block 9 and its request";
  for (const LedgerSuspect& suspect : audit.suspects()) {
    EXPECT_EQ(suspect.worker_id, "decode-0");
    EXPECT_EQ(suspect.why, "no router knows it") << "the last reason";
  }
}

TEST(LedgerAuditTest, AnotherGenerationIsAnotherBlock) {
  LedgerLook look = Healthy();
  Prefill(look).requests.clear();
  Decode(look).held.clear();
  LedgerAudit audit;
  audit.Add(look);
  ASSERT_EQ(audit.suspects().size(), 1u);
  ++Prefill(look).held[0].generation;
  audit.Add(look);
  EXPECT_TRUE(audit.suspects().empty());
}

TEST(LedgerAuditTest, ReadsTheAdminPages) {
  LedgerProcess worker;
  ASSERT_TRUE(ReadLedgerBlocks(R"([
      {"index":0,"generation":3,"state":"bound","request_uid":"aa","refs":1,"kept":true},
      {"index":1,"generation":0,"state":"free","request_uid":"","refs":0,"kept":false},
      {"index":2,"generation":4,"state":"cached","request_uid":"bb","refs":0,"kept":true}])",
                               &worker)
                  .ok());
  EXPECT_EQ(worker.num_blocks(), 3u);
  EXPECT_EQ(worker.states.at("free"), 1u);
  ASSERT_EQ(worker.held.size(), 1u);
  EXPECT_EQ(worker.held[0].owner, "aa");
  EXPECT_EQ(worker.held[0].generation, 3u);
  EXPECT_TRUE(worker.held[0].kept);
  ASSERT_TRUE(
      ReadLedgerRequests(R"([{"request_uid":"aa","age_ms":12,"peer":"02"}])", &worker).ok());
  ASSERT_EQ(worker.requests.size(), 1u);
  EXPECT_EQ(worker.requests[0].age_ms, 12);
  const auto workers = ReadLedgerWorkers(R"({"model":"m","processes":[
      {"role":"router","worker_id":"router-0","incarnation":"00","admin":"h:0"},
      {"role":"decode","worker_id":"decode-0","incarnation":"02","admin":"h:2"}]})");
  ASSERT_TRUE(workers.ok()) << workers.status();
  ASSERT_EQ(workers->size(), 1u);
  EXPECT_EQ((*workers)[0].admin, "h:2");
}

TEST(LedgerAuditTest, RefusesWhatIsNoLedger) {
  for (const char* text : {"", "{}", "[1]", "[{}]", "[{\"state\":7}]", "[", "null"}) {
    LedgerProcess worker;
    EXPECT_FALSE(ReadLedgerBlocks(text, &worker).ok()) << text;
    EXPECT_FALSE(ReadLedgerRequests(text, &worker).ok()) << text;
  }
  for (const char* text : {"", "[]", "{}", R"({"processes":7})", R"({"processes":[{}]})"}) {
    EXPECT_FALSE(ReadLedgerWorkers(text).ok()) << text;
  }
}

}  // namespace
}  // namespace baton::cli
