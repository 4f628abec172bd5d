// The two ends of a local stream, over real sockets of this process.
#include "src/rpc/local_stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "google/protobuf/wrappers.pb.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/base/unique_fd.h"

namespace baton::rpc {
namespace {

using google::protobuf::StringValue;

StringValue Message(std::string text) {
  StringValue message;
  message.set_value(std::move(text));
  return message;
}

// Both ends, connected.
class LocalStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalListener listener = ListenLocal().value();
    writer_ = LocalWriter::Connect(listener.name).value();
    reader_.emplace(AcceptLocal(listener.fd.get()).value());
    ASSERT_GE(reader_->fd(), 0);
  }
  // Everything that is there now.
  LocalReader::Outcome ReadAll() {
    LocalReader::Outcome outcome = LocalReader::Outcome::kRead;
    while (outcome == LocalReader::Outcome::kRead) {
      outcome = reader_->Read([this](std::string_view frame) {
        StringValue message;
        if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return false;
        texts_.push_back(message.value());
        return true;
      });
    }
    return outcome;
  }
  void SendRaw(std::string_view bytes) {
    ASSERT_EQ(::write(writer_->fd(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }

  std::optional<LocalWriter> writer_;
  std::optional<LocalReader> reader_;
  std::vector<std::string> texts_;
};

TEST_F(LocalStreamTest, MessagesArriveWholeAndInOrder) {
  EXPECT_EQ(ReadAll(), LocalReader::Outcome::kEmpty);
  const std::vector<std::string> sent = {"", "a", std::string(100'000, 'b'), "c"};
  for (const std::string& text : sent) {
    ASSERT_EQ(writer_->Send(Message(text)), LocalWriter::Outcome::kSent);
    EXPECT_EQ(ReadAll(), LocalReader::Outcome::kEmpty);
  }
  EXPECT_EQ(texts_, sent);
  writer_.reset();
  EXPECT_EQ(ReadAll(), LocalReader::Outcome::kEnd);
}

TEST_F(LocalStreamTest, FullSocketGoesOnWhereItStopped) {
  constexpr size_t kBytes = 5'000'000;
  LocalWriter::Outcome outcome = writer_->Send(Message(std::string(kBytes, 'x')));
  ASSERT_EQ(outcome, LocalWriter::Outcome::kFull);
  EXPECT_EQ(writer_->Flush(), LocalWriter::Outcome::kFull) << "nobody has read a byte";
  while (outcome == LocalWriter::Outcome::kFull) {
    EXPECT_EQ(ReadAll(), LocalReader::Outcome::kEmpty);
    outcome = writer_->Flush();
  }
  ASSERT_EQ(outcome, LocalWriter::Outcome::kSent);
  ASSERT_EQ(writer_->Send(Message("next")), LocalWriter::Outcome::kSent);
  EXPECT_EQ(ReadAll(), LocalReader::Outcome::kEmpty);
  ASSERT_EQ(texts_.size(), 2u);
  EXPECT_EQ(texts_[0], std::string(kBytes, 'x'));
  EXPECT_EQ(texts_[1], "next");
}

TEST_F(LocalStreamTest, ReaderThatIsGoneIsNoticed) {
  reader_.reset();
  EXPECT_EQ(writer_->Send(Message("a")), LocalWriter::Outcome::kGone);
}

// Its bytes are not waited for: a length of 4 GiB must not take memory.
TEST_F(LocalStreamTest, FrameAboveTheLimitBreaksTheStream) {
  const uint32_t size = limits::kMaxClusterMessageBytes + 1;
  std::string length;
  for (int i = 0; i < 4; ++i) length.push_back(static_cast<char>(size >> (8 * i)));
  SendRaw(length);
  EXPECT_EQ(ReadAll(), LocalReader::Outcome::kBroken);
}

TEST_F(LocalStreamTest, RefusedFrameBreaksTheStream) {
  SendRaw(std::string("\1\0\0\0\377", 5));
  EXPECT_EQ(ReadAll(), LocalReader::Outcome::kBroken);
  EXPECT_TRUE(texts_.empty());
}

TEST(LocalStream, NameWithoutAListenerIsUnavailable) {
  std::string name;
  {
    const LocalListener listener = ListenLocal().value();
    name = listener.name;
  }
  EXPECT_EQ(LocalWriter::Connect(name).status().code(), absl::StatusCode::kUnavailable);
  for (const std::string& other :
       {std::string(), name + "0", name.substr(1), "x" + name.substr(1), std::string(108, 'a')}) {
    EXPECT_EQ(LocalWriter::Connect(other).status().code(), absl::StatusCode::kInvalidArgument)
        << other;
  }
}

// Whoever reaches a worker's port may name a socket: a bus or a container runtime of the same user
// listens on abstract names too, and must not hear from the worker.
TEST(LocalStream, AnotherProgramsSocketIsNotCalled) {
  const std::string name = "baton-local-stream-test-" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(LocalWriter::Connect(name).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(::accept(listener.get(), nullptr, nullptr), -1);
}

}  // namespace
}  // namespace baton::rpc
