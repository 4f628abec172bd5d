// Tests steps that overlap. Requests come, stop, fail or go while one step is begun before another
// has ended. Every request says what it would say alone, and nothing is held in the end.
#include <vector>

#include "fmt/core.h"
#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"
#include "tests/test_seed.h"

namespace baton::engine {

namespace {

HandWorkerOptions Overlapping() {
  HandWorkerOptions options;
  options.overlaps_steps = true;
  return options;
}

// A request whose tokens the model itself chooses.
RequestSpec ChosenThere(uint64_t number, uint32_t num_tokens, uint32_t max_tokens) {
  RequestSpec spec = ToyRequest(number, num_tokens, max_tokens);
  spec.sampling.logprobs = false;
  return spec;
}

class EngineOverlapTest : public testing::TestWithParam<bool> {
 protected:
  HandWorker* Add(const HandWorkerOptions& options = Overlapping()) {
    HandWorker* const worker = rig_.Add(options);
    worker->overlapping().is_late = GetParam();
    return worker;
  }
  void ExpectAnswer(HandWorker* worker, const RequestSpec& spec) {
    const Record record = worker->recorder().Of(spec.key);
    for (uint32_t choice = 0; choice < spec.num_choices; ++choice) {
      EXPECT_EQ(IdsOf(record, choice), ExpectedTokens(spec, choice))
          << "request " << spec.key.uid.hi << " choice " << choice;
    }
    EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
    EXPECT_EQ(record.num_duplicates, 0u);
  }

  HandRig rig_;
};

TEST_P(EngineOverlapTest, DecodeStepsAreBegunBehindOneAnother) {
  HandWorker* const worker = Add();
  const RequestSpec spec = ChosenThere(1, 10, 40);
  worker->Start(spec);
  ASSERT_TRUE(rig_.RunUntilQuiet());
  ExpectAnswer(worker, spec);
  // There are 39 decode steps, and all but the first begin before the one before them has ended.
  EXPECT_EQ(worker->overlapping().num_behind(), 38u);
  EXPECT_EQ(worker->core().Snapshot().num_steps_ahead, 38u);
  EXPECT_EQ(worker->core().Snapshot().num_wasted_rows, 0u) << "its length was known";
  EXPECT_TRUE(worker->AllFree());
}

TEST_P(EngineOverlapTest, AChoiceThatStopsWastesOneRow) {
  HandWorker* const worker = Add();
  RequestSpec spec = ChosenThere(5, 10, 30);
  const std::vector<TokenId> tokens = ExpectedTokens(spec, 0);
  spec.sampling.stop_token_ids = {tokens[12]};
  const RequestSpec beside = ChosenThere(6, 10, 30);
  worker->Start(spec);
  worker->Start(beside);
  ASSERT_TRUE(rig_.RunUntilQuiet());
  ExpectAnswer(worker, spec);
  ExpectAnswer(worker, beside);
  EXPECT_EQ(worker->core().Snapshot().num_wasted_rows, 1u);
  EXPECT_TRUE(worker->AllFree());
}

TEST_P(EngineOverlapTest, RowsThatTheHostChoosesTakeNoPart) {
  HandWorker* const worker = Add();
  RequestSpec spec = ChosenThere(7, 10, 12);
  spec.sampling.frequency_penalty = 0.5f;
  worker->Start(spec);
  ASSERT_TRUE(rig_.RunUntilQuiet());
  ExpectAnswer(worker, spec);
  EXPECT_EQ(worker->overlapping().num_behind(), 0u);
}

TEST_P(EngineOverlapTest, RandomTokensAreThoseOfTheirPlaces) {
  HandWorker* const worker = Add();
  RequestSpec spec = ChosenThere(8, 6, 30);
  spec.num_choices = 3;
  spec.sampling.temperature = 1.3f;
  spec.sampling.top_p = 0.9f;
  spec.sampling.seed = 4711;
  spec.sampling.min_tokens = 4;
  worker->Start(spec);
  ASSERT_TRUE(rig_.RunUntilQuiet());
  ExpectAnswer(worker, spec);
  EXPECT_GT(worker->overlapping().num_behind(), 10u);
  EXPECT_TRUE(worker->AllFree());
}

TEST_P(EngineOverlapTest, ARequestWithoutATokenFailsAloneAndWithItsChoices) {
  for (uint64_t damaged = 9; damaged < 30; ++damaged) {
    HandWorker* const worker = Add();
    worker->overlapping().damaged_row = damaged;
    RequestSpec divided = ChosenThere(1, 6, 20);
    divided.num_choices = 2;
    divided.sampling.temperature = 1.0f;
    const RequestSpec beside = ChosenThere(2, 6, 20);
    worker->Start(divided);
    worker->Start(beside);
    ASSERT_TRUE(rig_.RunUntilQuiet());
    uint32_t num_failed = 0;
    for (const RequestSpec& spec : {divided, beside}) {
      const Record record = worker->recorder().Of(spec.key);
      EXPECT_EQ(record.num_terminal, 1u);
      if (record.last() == RequestState::kFinished) {
        ExpectAnswer(worker, spec);
      } else {
        EXPECT_TRUE(absl::IsDataLoss(record.status)) << record.status;
        ++num_failed;
      }
    }
    EXPECT_EQ(num_failed, 1u) << "damaged row " << damaged;
    EXPECT_TRUE(worker->AllFree());
  }
}

TEST_P(EngineOverlapTest, AStepThatWasBegunEndsBeforeAnythingElseHappens) {
  HandWorker* const worker = Add();
  const RequestSpec spec = ChosenThere(1, 10, 100);
  worker->Start(spec);
  while (worker->overlapping().IsIdle()) rig_.Round();
  const size_t num_before = worker->recorder().Of(spec.key).Tokens(0).size();
  worker->Cancel(spec.key);
  rig_.Round();
  EXPECT_TRUE(worker->overlapping().IsIdle());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kCancelled);
  EXPECT_EQ(record.Tokens(0).size(), num_before + 1) << "the step that ran gave one more";
  EXPECT_TRUE(worker->AllFree());
}

TEST_P(EngineOverlapTest, DeadlinesAndLeasesAreKept) {
  HandWorker* const worker = Add();
  RequestSpec late = ChosenThere(1, 10, 150);
  late.deadline_us = 40'000;
  worker->Start(late);
  for (int i = 0; i < 60; ++i) rig_.Round();  // of 1 ms
  const Record record = worker->recorder().Of(late.key);
  EXPECT_EQ(record.last(), RequestState::kFailed);
  EXPECT_TRUE(absl::IsDeadlineExceeded(record.status)) << record.status;
  EXPECT_GT(record.Tokens(0).size(), 20u);
  EXPECT_TRUE(worker->AllFree());
}

TEST_P(EngineOverlapTest, AWorkerMayGoWhileAStepRuns) {
  HandRig rig;
  HandWorker* const worker = rig.Add(Overlapping());
  worker->overlapping().is_late = GetParam();
  worker->Start(ChosenThere(1, 10, 100));
  while (worker->overlapping().IsIdle()) rig.Round();
}

// ---- Hand-offs into a small pool, preemptions, stops and cancels, all at random.

RequestSpec AnyRequest(TestRandom& random, uint64_t number) {
  RequestSpec spec = ChosenThere(number, random.Between(1, 60), random.Between(1, 50));
  spec.num_choices = random.OneIn(4) ? 2 : 1;
  if (random.OneIn(2)) spec.sampling.temperature = 1.0f;
  if (random.OneIn(6)) spec.sampling.presence_penalty = 0.25f;
  spec.sampling.seed = random.Below(1000);
  spec.sampling.ignore_eos = random.OneIn(2);
  if (random.OneIn(2))
    spec.sampling.stop_token_ids = {static_cast<TokenId>(random.Below(kToyVocab))};
  return spec;
}

// Its answer is whole, or where it was cancelled the beginning of it.
void ExpectItsOwnAnswer(const Record& record, const RequestSpec& spec) {
  EXPECT_EQ(record.num_terminal, 1u) << "request " << spec.key.uid.hi;
  for (uint32_t choice = 0; choice < spec.num_choices; ++choice) {
    std::vector<TokenId> expected = ExpectedTokens(spec, choice);
    const std::vector<TokenId> got = IdsOf(record, choice);
    if (record.last() != RequestState::kFinished && got.size() < expected.size()) {
      expected.resize(got.size());
    }
    EXPECT_EQ(got, expected) << "request " << spec.key.uid.hi << " choice " << choice;
  }
}

// The events that the runs counted.
struct Seen {
  uint64_t behind = 0;  // steps begun before another had ended
  uint64_t wasted = 0;  // rows for nothing
  uint64_t preempted = 0;
};

void RunAny(TestRandom& random, bool is_late, Seen* seen) {
  HandRig rig;
  HandWorkerOptions of_p;
  of_p.role = WorkerRole::kPrefill;
  HandWorkerOptions of_d = Overlapping();
  of_d.role = WorkerRole::kDecode;
  of_d.num_blocks = random.Between(45, 120);
  of_d.max_running = random.Between(2, 10);
  of_d.has_device = random.OneIn(3);
  HandWorker* const p = rig.Add(of_p);
  HandWorker* const d = rig.Add(of_d);
  d->overlapping().is_late = is_late;
  std::vector<RequestSpec> specs;
  for (uint64_t i = 0; i < 20; ++i) {
    const RequestSpec spec = AnyRequest(random, i + 1);
    if (random.OneIn(3) && spec.num_choices == 1) {
      d->Start(ForPeer(spec, RequestKind::kDest, *p));
      p->Start(ForPeer(spec, RequestKind::kSource, *d));
    } else {
      d->Start(spec);
    }
    specs.push_back(spec);
    for (uint32_t n = random.Below(12); n > 0; --n) rig.Round();
    if (random.OneIn(8)) d->Cancel(specs[random.Below(specs.size())].key);
  }
  ASSERT_TRUE(rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) ExpectItsOwnAnswer(d->recorder().Of(spec.key), spec);
  // The prefill worker keeps what it handed off for a cancelled request until the session ends.
  for (HandWorker* worker : {p, d}) worker->Post(CloseSession{SessionId(1)});
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_TRUE(d->AllFree());
  seen->behind += d->overlapping().num_behind();
  seen->wasted += d->core().Snapshot().num_wasted_rows;
  seen->preempted += d->core().Snapshot().scheduler.num_preemptions;
}

TEST_P(EngineOverlapTest, AnyRunSaysWhatEachRequestSaysAlone) {
  Seen seen;
  for (const uint64_t seed : TestSeeds(2)) {
    for (uint64_t run = 0; run < 30 && !HasFailure(); ++run) {
      SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed << " run " << run);
      TestRandom random(seed * 7'919 + run);
      RunAny(random, GetParam(), &seen);
    }
  }
  fmt::print("{} steps behind another, {} rows for nothing, {} preemptions\n", seen.behind,
             seen.wasted, seen.preempted);
  EXPECT_GT(seen.behind, 1'000u);
  EXPECT_GT(seen.wasted, 50u);
  EXPECT_GT(seen.preempted, 10u);
}

INSTANTIATE_TEST_SUITE_P(EarlyAndLate, EngineOverlapTest, testing::Bool());

}  // namespace
}  // namespace baton::engine
