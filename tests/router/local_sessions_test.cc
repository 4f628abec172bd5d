// Local sessions and the inbox that waits in them. The workers are the test's own; no gRPC.
#include "src/router/local_sessions.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/base/thread.h"
#include "src/rpc/local_stream.h"

namespace baton::router {
namespace {

using rpc::LocalWriter;

constexpr int64_t kMinuteUs = 60'000'000;

SessionRef Ref(uint64_t lease) { return {.lease = LeaseId(lease), .epoch = 1}; }

v1::WorkerMessage Step(uint32_t num_events) {
  v1::WorkerMessage message;
  for (uint32_t i = 0; i < num_events; ++i) message.mutable_step()->add_events()->set_token(i);
  return message;
}

class LocalSessionsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(sessions_, nullptr);
    inbox_.SetSource(sessions_);
  }
  LocalWriter Worker(SessionRef ref) {
    return LocalWriter::Connect(sessions_->Offer(ref, [this] { ++num_broken_; })).value();
  }
  // Takes until so many tasks have come.
  void TakeTasks(size_t num) {
    const int64_t end_us = SystemClock().NowUs() + kMinuteUs;
    while (num_tasks_ < num && SystemClock().NowUs() < end_us) {
      inbox_.Take(end_us, &tasks_);
      num_tasks_ += tasks_.size();
    }
    EXPECT_EQ(num_tasks_, num);
  }

  const std::shared_ptr<LocalSessions> sessions_ = LocalSessions::Create();
  RouterInbox inbox_;
  std::vector<RouterTask> tasks_;
  size_t num_tasks_ = 0;
  int num_broken_ = 0;
};

TEST_F(LocalSessionsTest, MessagesOfEachWorkerBecomeTasks) {
  LocalWriter a = Worker(Ref(1));
  LocalWriter b = Worker(Ref(2));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(a.Send(Step(2)), LocalWriter::Outcome::kSent);
  ASSERT_EQ(b.Send(Step(1)), LocalWriter::Outcome::kSent);
  TakeTasks(4);
  EXPECT_EQ(sessions_->num_connected(), 2u);
}

// Its thread waits in the source: for a post it must not wait until the deadline.
TEST_F(LocalSessionsTest, PostWakesTheThreadThatWaits) {
  std::atomic<int> num_taken{0};
  Thread taker("router", [&] {
    std::vector<RouterTask> tasks;
    while (!inbox_.closed()) {
      inbox_.Take(SystemClock().NowUs() + kMinuteUs, &tasks);
      num_taken += static_cast<int>(tasks.size());
    }
  });
  const int64_t begin_us = SystemClock().NowUs();
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(inbox_.Post([](RouterCore& /*core*/, int64_t /*now_us*/) {}));
    while (num_taken < i && SystemClock().NowUs() - begin_us < kMinuteUs) std::this_thread::yield();
  }
  inbox_.Close();
  taker.Join();
  EXPECT_EQ(num_taken, 20);
  EXPECT_LT(SystemClock().NowUs() - begin_us, kMinuteUs / 2);
}

TEST_F(LocalSessionsTest, DeadlineEndsTheWait) {
  inbox_.Take(SystemClock().NowUs() + 2'000, &tasks_);
  EXPECT_TRUE(tasks_.empty());
}

TEST_F(LocalSessionsTest, WhatCameBeforeTheEndIsStillRead) {
  for (const bool is_accepted : {false, true}) {
    const SessionRef ref = Ref(is_accepted ? 1 : 2);
    LocalWriter worker = Worker(ref);
    if (is_accepted) {
      while (sessions_->num_connected() == 0) inbox_.Take(0, &tasks_);
    }
    // More than one read takes.
    for (int i = 0; i < 3; ++i) ASSERT_EQ(worker.Send(Step(5'000)), LocalWriter::Outcome::kSent);
    std::vector<RouterTask> rest;
    sessions_->ReadRest(ref, &rest);
    EXPECT_EQ(rest.size(), 3u);
  }
}

TEST_F(LocalSessionsTest, WhatNoWorkerSendsBreaksItsSessionAlone) {
  LocalWriter good = Worker(Ref(1));
  LocalWriter bad = Worker(Ref(2));
  const char garbage[] = {1, 0, 0, 0, static_cast<char>(0xff)};
  ASSERT_EQ(::write(bad.fd(), garbage, sizeof(garbage)), ssize_t{sizeof(garbage)});
  const int64_t end_us = SystemClock().NowUs() + kMinuteUs;
  while (num_broken_ == 0 && SystemClock().NowUs() < end_us) inbox_.Take(end_us, &tasks_);
  EXPECT_EQ(num_broken_, 1);
  ASSERT_EQ(good.Send(Step(1)), LocalWriter::Outcome::kSent);
  TakeTasks(1);
  EXPECT_EQ(bad.Send(Step(1)), LocalWriter::Outcome::kGone);
}

// Nothing takes the connection away: left alone it would wake the thread without end.
TEST_F(LocalSessionsTest, WorkerThatFindsNoDescriptorBreaksItsSession) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "without a descriptor UBSan reads no object's type, and reports a wrong one";
#endif
  const LocalWriter worker = Worker(Ref(1));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next_free = ::dup(worker.fd());
  ::close(next_free);
  const rlimit none_left{.rlim_cur = static_cast<rlim_t>(next_free), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_left), 0);
  inbox_.Take(SystemClock().NowUs() + kMinuteUs, &tasks_);
  EXPECT_EQ(num_broken_, 1);
  const int64_t begin_us = SystemClock().NowUs();
  inbox_.Take(begin_us + 2'000, &tasks_);
  EXPECT_GE(SystemClock().NowUs(), begin_us + 2'000) << "the thread waits again";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(sessions_->num_connected(), 0u);
}

TEST_F(LocalSessionsTest, ForgottenSessionTakesNothing) {
  LocalWriter worker = Worker(Ref(1));
  while (sessions_->num_connected() == 0) inbox_.Take(0, &tasks_);
  sessions_->Forget(Ref(1));
  EXPECT_EQ(worker.Send(Step(1)), LocalWriter::Outcome::kGone);
  const std::string name = sessions_->Offer(Ref(2), [] {});
  sessions_->Forget(Ref(2));
  EXPECT_FALSE(LocalWriter::Connect(name).ok());
}

}  // namespace
}  // namespace baton::router
