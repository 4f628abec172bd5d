// LocalStream: carries the messages of one session from a worker to a router of the same host, over
// a unix socket instead of gRPC. A message wakes one thread, where gRPC wakes three.
//
// The router listens on one abstract name for each session; the session's hello tells it to the
// worker. Each end accepts only a process of its own user. The worker connects only to names that
// ListenLocal makes, so a caller of the worker cannot reach other programs' sockets through it.
// Names belong to a network namespace, so a worker of another host or container cannot connect, and
// stays with gRPC.
//
// Wire: each message is a frame of 4 bytes with its length, little endian, and its bytes.
//
// Ownership: each object owns its socket. One thread at a time; no call blocks.
#ifndef BATON_RPC_LOCAL_STREAM_H_
#define BATON_RPC_LOCAL_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "google/protobuf/message_lite.h"

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::rpc {

// The listening end of one session.
struct LocalListener {
  std::string name;
  UniqueFd fd;
};

// Listens on a random abstract name. Unavailable: the system has no such sockets.
StatusOr<LocalListener> ListenLocal();
// The waiting connection. Unavailable: no process of this user has connected. ResourceExhausted:
// this process can open no more files; the connection waits on.
StatusOr<UniqueFd> AcceptLocal(int listener);

// The worker's end.
class LocalWriter {
 public:
  // InvalidArgument: ListenLocal makes no such name. Unavailable: nobody listens there in this
  // network namespace. PermissionDenied: another user.
  static StatusOr<LocalWriter> Connect(std::string_view name);

  enum class Outcome : uint8_t {
    kSent,  // the kernel has everything
    kFull,  // a part still waits here; call Flush once the socket is writable
    kGone,  // nobody reads any more
  };
  // Adds a message and sends as much as the socket takes. Not while a part of one waits.
  Outcome Send(const google::protobuf::MessageLite& message);
  Outcome Flush();
  int fd() const { return fd_.get(); }

 private:
  explicit LocalWriter(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::string frame_;  // the message under way
  size_t num_sent_ = 0;
};

// The router's end.
class LocalReader {
 public:
  explicit LocalReader(UniqueFd fd) : fd_(std::move(fd)) {}

  enum class Outcome : uint8_t {
    kRead,    // call again: there may be more
    kEmpty,   // there is no more now
    kEnd,     // the worker has closed its end
    kBroken,  // a frame is too long, or `take` has refused one; nothing more can be read
  };
  // Reads at most kReadBytes and calls `take` for each whole frame; false of `take` = kBroken.
  Outcome Read(absl::FunctionRef<bool(std::string_view)> take);
  int fd() const { return fd_.get(); }

  static constexpr size_t kReadBytes = size_t{64} << 10;

 private:
  // Takes the whole frames at the begin of `bytes`. Returns their number of bytes; -1 = broken.
  static int64_t TakeFrames(std::string_view bytes, absl::FunctionRef<bool(std::string_view)> take);

  UniqueFd fd_;
  std::string rest_;  // the first part of a frame; at most kMaxClusterMessageBytes and a read
};

}  // namespace baton::rpc

#endif  // BATON_RPC_LOCAL_STREAM_H_
