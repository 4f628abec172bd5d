#include "src/router/model_catalog.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/router/grpc_registry_service.h"
#include "src/text/chat_template.h"
#include "tests/router/test_model.h"

namespace baton::router {

using obs::RefusalReason;
using text::Tokenizer;
using text::TokenizerSpec;
using text::TokenizerSpecId;

namespace {

using Resolved = ModelCatalog::Resolved;

// A claim of the test model; `variant` makes its tokenizer another one.
ModelClaim Claim(const std::string& variant = "") {
  TokenizerSpec spec = TestSpec();
  spec.chat_template += variant;
  return {.id = "toy",
          .loaded_unix_s = 1,
          .max_context = kTestContext,
          .vocab_size = kTestVocab,
          .tokenizer_id = TokenizerSpecId(spec.Serialize()),
          .tokenizer = spec.Serialize()};
}

// The answers of a catalog, in the order in which they came.
class Answers {
 public:
  ModelCatalog::Done Take() {
    return [this](const Resolved& answer) {
      std::lock_guard lock(mutex_);
      all_.push_back(answer);
      more_.notify_all();
    };
  }
  std::vector<Resolved> Wait(size_t count) {
    std::unique_lock lock(mutex_);
    more_.wait_for(lock, std::chrono::seconds(60), [&] { return all_.size() >= count; });
    return all_;
  }

 private:
  std::mutex mutex_;  // guards all_
  std::condition_variable more_;
  std::vector<Resolved> all_;
};

TEST(ModelCatalogTest, WorkersOfOneTokenizerShareOne) {
  Answers answers;
  ModelCatalog catalog;
  for (int i = 0; i < 3; ++i) catalog.Resolve(Claim(), answers.Take());
  const auto all = answers.Wait(3);
  ASSERT_EQ(all.size(), 3u);
  for (const Resolved& answer : all) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ((*answer)->tokenizer, (*all[0])->tokenizer);
    EXPECT_NE((*answer)->chat_template, nullptr);
  }
}

TEST(ModelCatalogTest, TheTemplateForToolsIsCompiledToo) {
  Answers answers;
  ModelCatalog catalog;
  size_t count = 0;
  const auto resolve = [&](const std::string& source) {
    TokenizerSpec spec = TestSpec();
    spec.named_templates = {{"rag", "R"}, {"tool_use", source}};
    ModelClaim claim = Claim();
    claim.tokenizer_id = TokenizerSpecId(spec.Serialize());
    claim.tokenizer = spec.Serialize();
    catalog.Resolve(std::move(claim), answers.Take());
    return answers.Wait(++count).back().value();
  };
  const auto good = resolve("T");
  ASSERT_NE(good->tool_template, nullptr);
  EXPECT_EQ(good->tool_template->source(), "T");
  EXPECT_EQ(good->TemplateFor(true), good->tool_template.get());
  EXPECT_EQ(good->TemplateFor(false), good->chat_template.get());
  // The default template still serves the model.
  const auto bad = resolve("{% for");
  EXPECT_EQ(bad->tool_template, nullptr);
  EXPECT_FALSE(bad->has_broken_template);
  EXPECT_EQ(bad->TemplateFor(true), bad->chat_template.get());
}

TEST(ModelCatalogTest, ATokenizerIsKeptWhenItsLastWorkerHasGone) {
  std::weak_ptr<const Tokenizer> tokenizer;
  ModelCatalog catalog;
  {
    Answers answers;
    catalog.Resolve(Claim(), answers.Take());
    tokenizer = answers.Wait(1).at(0).value()->tokenizer;
  }
  EXPECT_FALSE(tokenizer.expired());
  Answers again;
  catalog.Resolve(Claim(), again.Take());
  EXPECT_EQ(again.Wait(1).at(0).value()->tokenizer, tokenizer.lock());
}

TEST(ModelCatalogTest, OnlyTheLastTokenizersAreKept) {
  std::weak_ptr<const Tokenizer> first;
  ModelCatalog catalog;
  for (size_t i = 0; i <= ModelCatalog::kMaxKept + 1; ++i) {
    Answers answers;
    catalog.Resolve(Claim(std::string(i, ' ')), answers.Take());
    if (i == 0) first = answers.Wait(1).at(0).value()->tokenizer;
    answers.Wait(1);
  }
  EXPECT_TRUE(first.expired());
}

// Only from what it has built before can it answer a claim without the bytes.
ModelClaim WithoutBytes(ModelClaim claim) {
  claim.tokenizer.clear();
  return claim;
}

TEST(ModelCatalogTest, WhatIsExpectedIsBuiltBeforeAWorkerBringsIt) {
  std::vector<TokenizerSource> expected;
  for (const char* variant : {"", " "}) {
    expected.push_back([variant] { return Claim(variant).tokenizer; });
  }
  ModelCatalog catalog(std::move(expected));
  Answers answers;
  for (const char* variant : {"", " "}) {
    catalog.Resolve(WithoutBytes(Claim(variant)), answers.Take());
  }
  const auto all = answers.Wait(2);
  ASSERT_EQ(all.size(), 2u);
  for (const Resolved& answer : all) EXPECT_TRUE(answer.ok()) << answer.status();
  Answers others;
  catalog.Resolve(WithoutBytes(Claim("  ")), others.Take());
  EXPECT_EQ(others.Wait(1).at(0).status().code(), StatusCode::kInvalidArgument);
}

// Two models of one tokenizer, as two fine-tunes of one base have it.
TEST(ModelCatalogTest, WhatIsExpectedTwiceIsBuiltOnce) {
  std::promise<ModelCatalog*> made;
  Answers answers;
  std::vector<TokenizerSource> expected;
  expected.push_back([] { return Claim().tokenizer; });
  expected.push_back([&] {
    made.get_future().get()->Resolve(WithoutBytes(Claim()), answers.Take());
    return Claim().tokenizer;
  });
  ModelCatalog catalog(std::move(expected));
  made.set_value(&catalog);
  ASSERT_TRUE(answers.Wait(1).at(0).ok());
  catalog.Resolve(Claim("after both"), answers.Take());
  answers.Wait(2);
  catalog.Resolve(WithoutBytes(Claim()), answers.Take());
  const auto all = answers.Wait(3);
  ASSERT_TRUE(all.at(2).ok());
  EXPECT_EQ((*all[2])->tokenizer, (*all[0])->tokenizer);
}

// A router that is told to end while it starts builds at most the tokenizer that it has begun.
TEST(ModelCatalogTest, TheEndDoesNotWaitForAllThatIsExpected) {
  std::promise<ModelCatalog*> made;
  std::promise<void> begun;
  std::atomic<int> num_read = 0;
  std::atomic<bool> stops = false;
  std::vector<TokenizerSource> expected;
  expected.push_back([&] {
    ++num_read;
    begun.set_value();
    ModelCatalog* const catalog = made.get_future().get();
    // A claim that comes after the end began is refused at once.
    for (; !stops; std::this_thread::yield()) {
      catalog->Resolve(Claim("other"), [&stops](const Resolved& answer) {
        if (answer.status().message() == "the router stops") stops = true;
      });
    }
    return Claim().tokenizer;
  });
  expected.push_back([&] {
    ++num_read;
    return Claim(" ").tokenizer;
  });
  auto catalog = std::make_unique<ModelCatalog>(std::move(expected));
  made.set_value(catalog.get());
  begun.get_future().wait();
  catalog.reset();
  EXPECT_EQ(num_read, 1);
}

TEST(ModelCatalogTest, WhatIsExpectedDecidesNothing) {
  std::vector<TokenizerSource> expected;
  expected.push_back([]() -> StatusOr<std::string> { return Unavailable("no file"); });
  expected.push_back([] { return "nonsense"; });
  expected.push_back([] { return Claim("other").tokenizer; });
  ModelCatalog catalog(std::move(expected));
  Answers answers;
  catalog.Resolve(Claim(), answers.Take());
  ModelClaim bad = Claim();
  bad.tokenizer_id = 5;
  bad.tokenizer = "nonsense";
  catalog.Resolve(bad, answers.Take());
  const auto all = answers.Wait(2);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].ok()) << all[0].status();
  EXPECT_EQ(all[1].status().code(), StatusCode::kInvalidArgument);
}

TEST(ModelCatalogTest, AFaultIsToldAndHarmsNoOther) {
  ModelClaim no_tokenizer = Claim();
  no_tokenizer.tokenizer = "nonsense";
  ModelClaim other_id = Claim();
  ++other_id.tokenizer_id;
  ModelClaim other_size = Claim();
  ++other_size.vocab_size;
  ModelCatalog catalog;
  for (const ModelClaim& claim : {no_tokenizer, other_id, other_size}) {
    Answers answers;
    catalog.Resolve(claim, answers.Take());
    EXPECT_EQ(answers.Wait(1).at(0).status().code(), StatusCode::kInvalidArgument);
    Answers good;
    catalog.Resolve(Claim(), good.Take());
    EXPECT_TRUE(good.Wait(1).at(0).ok());
  }
}

TEST(ModelCatalogTest, EachClaimIsAnsweredOnceAlsoBeyondTheLimitAndAtTheEnd) {
  const size_t num_claims = 3 * ModelCatalog::kMaxWaiting;
  Answers answers;
  {
    ModelCatalog catalog;
    for (size_t i = 0; i < num_claims; ++i) {
      catalog.Resolve(Claim(std::string(i, ' ')), answers.Take());
    }
  }
  const auto all = answers.Wait(num_claims);
  EXPECT_EQ(all.size(), num_claims);
  for (const Resolved& answer : all) {
    EXPECT_TRUE(answer.ok() || answer.status().code() == StatusCode::kUnavailable);
  }
}

// The first tokenizer is being built, or waits, until `go`.
class BusyCatalog {
 public:
  BusyCatalog() {
    catalog.Resolve(Claim("busy"), [this](const Resolved&) {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return may_go_; });
    });
  }
  ~BusyCatalog() { Go(); }
  void Go() {
    std::lock_guard lock(mutex_);
    may_go_ = true;
    more_.notify_all();
  }

  ModelCatalog catalog;

 private:
  std::mutex mutex_;  // guards may_go_
  std::condition_variable more_;
  bool may_go_ = false;
};

TEST(ModelCatalogTest, ClaimsOfOneTokenizerTakeOnePlace) {
  const size_t num_claims = 3 * ModelCatalog::kMaxWaiting;
  Answers answers;
  BusyCatalog busy;
  for (size_t i = 0; i < num_claims; ++i) busy.catalog.Resolve(Claim(), answers.Take());
  busy.Go();
  const auto all = answers.Wait(num_claims);
  ASSERT_EQ(all.size(), num_claims);
  for (const Resolved& answer : all) EXPECT_TRUE(answer.ok()) << answer.status();
}

TEST(ModelCatalogTest, EqualIdsOfUnequalBytesAreJudgedAlone) {
  Answers good;
  Answers bad;
  BusyCatalog busy;
  ModelClaim liar = Claim();
  liar.tokenizer = "nonsense";
  busy.catalog.Resolve(std::move(liar), bad.Take());
  busy.catalog.Resolve(Claim(), good.Take());
  busy.Go();
  EXPECT_EQ(bad.Wait(1).at(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(good.Wait(1).at(0).ok());
}

TEST(ModelCatalogTest, TheBytesThatWaitHaveALimit) {
  constexpr size_t kLargest = size_t{16} << 20;
  constexpr size_t kMaxLargest = ModelCatalog::kMaxWaitingBytes / kLargest;
  Answers answers;
  BusyCatalog busy;
  const auto add = [&](uint64_t id) {
    ModelClaim claim = Claim();
    claim.tokenizer_id = id;
    claim.tokenizer.assign(kLargest, 'x');
    busy.catalog.Resolve(std::move(claim), answers.Take());
  };
  for (uint64_t id = 1; id <= kMaxLargest + 1; ++id) add(id);
  EXPECT_EQ(answers.Wait(1).at(0).status().code(), StatusCode::kUnavailable) << "come again";
  add(1);  // equal to one that waits
  busy.Go();
  const auto all = answers.Wait(kMaxLargest + 2);
  ASSERT_EQ(all.size(), kMaxLargest + 2);
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].status().code(), StatusCode::kInvalidArgument) << all[i].status();
  }
}

TEST(ModelCatalogTest, AWorkerThatFindsNoPlaceComesAgainAndIsNotRefused) {
  const RegistrationEnd full = EndOfRegistration(Unavailable("64 tokenizers wait to be built"));
  EXPECT_EQ(full.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(full.refusal.has_value());
  const RegistrationEnd bad = EndOfRegistration(InvalidArgument("no tokenizer"));
  EXPECT_EQ(bad.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(bad.refusal, RefusalReason::kMalformed);
  const RegistrationEnd wire = EndOfRegistration(FailedPrecondition("wire 9"));
  EXPECT_EQ(wire.code, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(wire.refusal, RefusalReason::kWireVersion);
}

}  // namespace
}  // namespace baton::router
