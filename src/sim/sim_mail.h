// SimMail: what crosses between simulated processes, as the bytes of the shipped codecs. A message
// is encoded, becomes a letter, and is decoded from the letter's bytes alone. One of a world; one
// thread.
//
// Promises that it holds the codecs to
//  - a decoder refuses nothing that an encoder of the same build wrote ("refused message")
//  - what it reads is what was written ("altered message"): a letter carries a mark of the plain
//    values that went into its encoder, and the receiver marks those that its decoder gave
#ifndef BATON_SIM_SIM_MAIL_H_
#define BATON_SIM_SIM_MAIL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "google/protobuf/arena.h"

#include "src/base/status.h"
#include "src/worker/handoff_codec.h"

namespace baton::sim {

// The bytes that a small message counts for on its way.
inline constexpr size_t kSmallBytes = 64;

// The bytes of one message, and the mark of what they stand for (sim_marks.h).
struct SimLetter {
  std::string bytes;
  uint64_t mark = 0;
};

// Changes the bytes of a message of a type ("baton.v1.RouterMessage") on their way. For tests,
// which see by it that a codec's fault breaks a promise.
using SimTamper = std::function<void(std::string_view type, std::string* bytes)>;
// Told of a broken promise.
using SimViolate = std::function<void(std::string_view kind, std::string text)>;

// See the file comment.
class SimMail {
 public:
  // `violate` outlives this and may be set later.
  explicit SimMail(const SimViolate* violate);
  SimMail(const SimMail&) = delete;
  SimMail& operator=(const SimMail&) = delete;

  void set_tamper(SimTamper tamper) { tamper_ = std::move(tamper); }

  // An empty message to fill, valid until the next call of Blank or Open.
  template <typename M>
  M* Blank() {
    arena_.Reset();
    return google::protobuf::Arena::CreateMessage<M>(&arena_);
  }
  template <typename M>
  SimLetter Seal(const M& message, uint64_t mark) {
    SimLetter letter{message.SerializeAsString(), mark};
    if (tamper_) tamper_(message.GetTypeName(), &letter.bytes);
    return letter;
  }
  // The message of a letter, valid as above; null when the bytes are none.
  template <typename M>
  M* Open(const SimLetter& letter) {
    M* const message = Blank<M>();
    if (message->ParseFromString(letter.bytes)) return message;
    Refuse(message->GetTypeName(), InvalidArgument("{} bytes", letter.bytes.size()));
    return nullptr;
  }
  // A decoder's refusal, and what it gave: both break a promise.
  void Refuse(std::string_view what, const Status& why) const;
  void Check(std::string_view what, uint64_t sent, uint64_t got) const {
    if (sent != got) Alter(what);
  }

 private:
  friend class SimHandoffWire;
  void Alter(std::string_view what) const;

  const SimViolate* const violate_;
  SimTamper tamper_;
  std::unique_ptr<char[]> room_;  // what the arena begins with, so that few messages allocate
  google::protobuf::Arena arena_;
};

// The wire of hand-off messages: the shipped one, with a mark after the bytes.
class SimHandoffWire final : public engine::HandoffWire {
 public:
  explicit SimHandoffWire(const SimMail* mail) : mail_(mail) {}

  std::string Encode(const kv::HandoffMessage& message) const override;
  StatusOr<kv::HandoffMessage> Decode(std::string_view bytes) const override;

 private:
  const SimMail* const mail_;
  const worker::ProtoHandoffWire wire_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_MAIL_H_
