// A log that nobody reads stops nobody, and says later what it has lost.
#include "src/base/log_sink.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"

#include "src/base/clock.h"
#include "src/base/unique_fd.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LogSinkTest : public testing::Test {
 protected:
  LogSinkTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
    logger_ = std::make_shared<spdlog::logger>("test", std::make_shared<LineSink>(writer_.get()));
    logger_->set_pattern("%n %l: %v");
  }
  // Returns the text that is in the pipe now.
  std::string Read() {
    std::string text;
    ::fcntl(reader_.get(), F_SETFL, O_NONBLOCK);
    char piece[4096];
    for (ssize_t n = 0; (n = ::read(reader_.get(), piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<size_t>(n));
    }
    return text;
  }

  UniqueFd reader_;
  UniqueFd writer_;
  std::shared_ptr<spdlog::logger> logger_;
};

TEST_F(LogSinkTest, AFullPipeCostsOneWaitAndTheLossIsSaid) {
  const std::string line(1000, 'x');
  const int64_t begin_us = SystemClock().NowUs();
  for (int i = 0; i < 1000; ++i) logger_->info("{} {}", i, line);
  EXPECT_LT(SystemClock().NowUs() - begin_us, 5'000'000) << "one wait, not one a line";
  const std::string before = Read();
  EXPECT_THAT(before, HasSubstr("test info: 0 xxx"));
  EXPECT_THAT(before, Not(HasSubstr("test info: 999")));
  logger_->error("read again");
  const std::string after = Read();
  const size_t num_kept = before.size() / (line.size() + 15);
  EXPECT_THAT(after,
              HasSubstr("lines of the log were lost: nobody read it\ntest error: read again"));
  EXPECT_THAT(after, HasSubstr("test warning: "));
  EXPECT_GT(num_kept, 50u);
  EXPECT_NEAR(std::stod(after.substr(after.find(": ") + 2)), 1000.0 - static_cast<double>(num_kept),
              2.0);
  logger_->error("and once more");
  EXPECT_EQ(Read(), "test error: and once more\n");
}

TEST_F(LogSinkTest, ALineLongerThanThePipeIsWholeForWhoReads) {
  const std::string text(300'000, 'y');
  std::string seen;
  std::thread reads([&] {
    char piece[4096];
    for (ssize_t n = 0; (n = ::read(reader_.get(), piece, sizeof(piece))) > 0;) {
      seen.append(piece, static_cast<size_t>(n));
    }
  });
  logger_->info(text);
  writer_.reset();
  reads.join();
  EXPECT_EQ(seen, "test info: " + text + "\n");
}

TEST_F(LogSinkTest, ALineThatWasCutDoesNotRunIntoTheNext) {
  logger_->info(std::string(300'000, 'y'));
  Read();
  logger_->info("next");
  EXPECT_EQ(Read(),
            "\ntest warning: 1 lines of the log were lost: nobody read it\ntest info: next\n");
}

TEST_F(LogSinkTest, AReaderThatHasGoneIsNotWaitedFor) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  reader_.reset();
  const int64_t begin_us = SystemClock().NowUs();
  for (int i = 0; i < 1000; ++i) logger_->info("nobody");
  EXPECT_LT(SystemClock().NowUs() - begin_us, 5'000'000);
  ::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace baton
