// GuideWaits: a request waits for the masks of its grammar, and no other request does. One that is
// never let go on hangs until its deadline.
#include "src/engine/guide_waits.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "tests/engine/parts_rig.h"
#include "tests/engine/toy_grammars.h"

namespace baton::engine {

using scheduler::Sequence;
using wire::GrammarKind;

namespace {

constexpr int64_t kMinuteUs = 60'000'000;

RequestSpec Guided(uint64_t number, const char* pattern = "[a-f]{3,9}") {
  RequestSpec spec = ToyRequest(number, 10, 20);
  spec.sampling.grammar = GrammarOf(GrammarKind::kRegex, pattern);
  return spec;
}

bool Awaits(const PartsRig& rig, SequenceId id) {
  const Sequence* const sequence = rig.state.scheduler.Find(id);
  return sequence != nullptr && sequence->awaits;
}

// The requests that the inbox says have a mask, in order; one at least.
std::vector<RequestUid> TakeReady(PartsRig& rig) {
  rig.events.WaitAndTake(SystemClock().NowUs() + kMinuteUs);
  std::vector<RequestUid> ready;
  rig.events.HandleAll([&](EngineEvent event) { ready.push_back(std::get<MaskReady>(event).uid); });
  return ready;
}

TEST(GuideWaitsTest, APromptAwaitsItsMaskAndNoOtherPromptDoes) {
  SlowGrammars slow;
  PartsRig rig({.guides = &slow.guides});
  LiveRequest* const guided = rig.Add(Guided(1));
  LiveRequest* const free = rig.Add(ToyRequest(2, 10, 20));
  for (LiveRequest* request : {guided, free}) {
    ASSERT_TRUE(rig.guides.Follow(request).ok());
    ASSERT_TRUE(rig.guides.Await(request).ok());
  }
  EXPECT_TRUE(Awaits(rig, guided->prompt_sequence));
  EXPECT_FALSE(Awaits(rig, free->prompt_sequence));
  EXPECT_FALSE(rig.guides.HasMask(guided->choices[0].guide.get())) << "no time is allowed";

  slow.Release();
  EXPECT_EQ(TakeReady(rig).front(), guided->spec.key.uid);
  ASSERT_TRUE(rig.guides.Await(guided).ok());
  EXPECT_FALSE(Awaits(rig, guided->prompt_sequence));
}

TEST(GuideWaitsTest, APromptAwaitsTheMasksOfAllItsChoices) {
  SlowGrammars slow;
  ToyGrammars fast;
  PartsRig rig({.guides = &fast.guides});
  RequestSpec spec = Guided(1);
  spec.num_choices = 2;
  LiveRequest* const request = rig.Add(spec);
  ASSERT_TRUE(rig.guides.Follow(request).ok());
  request->choices[1].guide = *slow.guides.Follow(spec.sampling.grammar, {});
  rig.guides.Allow(kMinuteUs);
  ASSERT_TRUE(rig.guides.HasMask(request->choices[0].guide.get()));
  rig.guides.Allow(0);
  ASSERT_TRUE(rig.guides.Await(request).ok());
  EXPECT_TRUE(Awaits(rig, request->prompt_sequence));

  request->choices[1].finished = true;
  ASSERT_TRUE(rig.guides.Await(request).ok());
  EXPECT_FALSE(Awaits(rig, request->prompt_sequence)) << "a choice that ended needs no mask";
}

TEST(GuideWaitsTest, EachChoiceThatDecodesAwaitsItsOwnMask) {
  SlowGrammars slow;
  PartsRig rig({.guides = &slow.guides});
  LiveRequest* const request = rig.Add(Guided(1));
  LiveRequest* const other = rig.Add(Guided(2));
  for (LiveRequest* each : {request, other}) {
    rig.tokens.TakeSequence(each, &each->choices[0]);
    ASSERT_TRUE(rig.guides.Follow(each).ok());
  }
  ASSERT_TRUE(rig.guides.Await(request).ok());
  EXPECT_TRUE(Awaits(rig, request->choices[0].sequence));
  EXPECT_FALSE(Awaits(rig, other->choices[0].sequence));

  slow.Release();
  rig.guides.Allow(kMinuteUs);
  ASSERT_TRUE(rig.guides.Await(request).ok());
  EXPECT_FALSE(Awaits(rig, request->choices[0].sequence));
}

TEST(GuideWaitsTest, AGrammarThatDoesNotCompileIsAnError) {
  ToyGrammars grammars;
  PartsRig rig({.guides = &grammars.guides});
  LiveRequest* const request = rig.Add(Guided(1, "("));
  ASSERT_TRUE(rig.guides.Follow(request).ok()) << "it is compiled beside the loop";
  rig.guides.Allow(kMinuteUs);
  EXPECT_FALSE(rig.guides.Await(request).ok());
}

}  // namespace
}  // namespace baton::engine
