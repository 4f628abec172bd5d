#include "src/sim/sim_mail.h"

#include <cstring>

#include "fmt/format.h"

#include "src/base/check.h"
#include "src/sim/sim_marks.h"

namespace baton::sim {

using google::protobuf::ArenaOptions;
using kv::HandoffMessage;

namespace {

constexpr size_t kRoomBytes = size_t{16} << 10;
constexpr std::string_view kHandoffType = "baton.v1.HandoffMessage";

ArenaOptions OptionsOf(char* room) {
  ArenaOptions options;
  options.initial_block = room;
  options.initial_block_size = kRoomBytes;
  return options;
}

}  // namespace

SimMail::SimMail(const SimViolate* violate)
    : violate_(violate),
      room_(std::make_unique<char[]>(kRoomBytes)),
      arena_(OptionsOf(room_.get())) {}

void SimMail::Refuse(std::string_view what, const Status& why) const {
  (*violate_)("refused message", fmt::format("{}: {}", what, why.ToString()));
}

void SimMail::Alter(std::string_view what) const {
  (*violate_)("altered message", fmt::format("{}: it says something else than was sent", what));
}

std::string SimHandoffWire::Encode(const HandoffMessage& message) const {
  std::string bytes = wire_.Encode(message);
  if (mail_->tamper_) mail_->tamper_(kHandoffType, &bytes);
  const uint64_t mark = MarkOf(message);
  bytes.append(reinterpret_cast<const char*>(&mark), sizeof(mark));
  return bytes;
}

StatusOr<HandoffMessage> SimHandoffWire::Decode(std::string_view bytes) const {
  uint64_t mark = 0;
  BATON_CHECK(bytes.size() >= sizeof(mark), "a hand-off message of {} bytes", bytes.size());
  const size_t num_bytes = bytes.size() - sizeof(mark);
  std::memcpy(&mark, bytes.data() + num_bytes, sizeof(mark));
  StatusOr<HandoffMessage> message = wire_.Decode(bytes.substr(0, num_bytes));
  if (message.ok()) {
    mail_->Check(kHandoffType, mark, MarkOf(*message));
  } else {
    mail_->Refuse(kHandoffType, message.status());
  }
  return message;
}

}  // namespace baton::sim
