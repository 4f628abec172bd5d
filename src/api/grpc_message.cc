#include "src/api/grpc_message.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"

#include "src/base/check.h"
#include "src/text/utf8.h"

namespace baton::api {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using grpc::ByteBuffer;
using router::ErrorCode;
using router::FieldError;
using router::RequestError;

namespace {

// Most bytes of one piece of a message that is written.
constexpr int kMaxPieceBytes = 1 << 20;

// A place because of which bytes are no message.
struct Fault {
  ErrorCode code = ErrorCode::kMalformedRequest;
  std::string path;  // from the request on, as in "messages[0].content"; "" = the request
};

// Whether the packed numbers of a field end amid one.
bool IsCutShort(FieldDescriptor::CppType type, const std::string& numbers) {
  if (type == FieldDescriptor::CPPTYPE_FLOAT) return numbers.size() % sizeof(float) != 0;
  if (type == FieldDescriptor::CPPTYPE_DOUBLE) return numbers.size() % sizeof(double) != 0;
  return !numbers.empty() && (static_cast<uint8_t>(numbers.back()) & 0x80) != 0;
}

// The first fault of the bytes of a message of this type, whose own path is `path`. No request has
// a member of its own type, so the types bound the depth.
std::optional<Fault> FindFault(const Descriptor& type, const std::string& bytes,
                               const std::string& path) {
  UnknownFieldSet fields;
  if (!fields.ParseFromString(bytes)) return Fault{.path = path};
  std::unordered_map<int, size_t> counts;  // of elements so far, by the field's number
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* known = type.FindFieldByNumber(field.number());
    if (known == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string& value = field.length_delimited();
    std::string name = path.empty() ? known->name() : path + "." + known->name();
    const bool is_text = known->type() == FieldDescriptor::TYPE_STRING;
    const bool is_message = known->type() == FieldDescriptor::TYPE_MESSAGE;
    if (known->is_repeated() && (is_text || is_message)) {
      name += fmt::format("[{}]", counts[field.number()]++);
    }
    if (is_text) {
      if (text::ValidUtf8Prefix(value) == value.size()) continue;
      return Fault{.code = ErrorCode::kInvalidUtf8, .path = std::move(name)};
    }
    if (is_message) {
      if (auto inner = FindFault(*known->message_type(), value, name)) return inner;
    } else if (IsCutShort(known->cpp_type(), value)) {
      return Fault{.path = std::move(name)};
    }
  }
  return std::nullopt;
}

std::string TextOf(const ByteBuffer& bytes) {
  grpc::Slice slice;
  if (!bytes.DumpToSingleSlice(&slice).ok()) return "";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

}  // namespace

bool ReadMessage(const ByteBuffer& bytes, Message* message, RequestError* error) {
  ByteBuffer rest(bytes);  // reading empties it
  grpc::ProtoBufferReader reader(&rest);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return true;
  const Descriptor& type = *message->GetDescriptor();
  const Fault fault = FindFault(type, TextOf(bytes), "").value_or(Fault{});
  *error = FieldError(fault.code, fault.path, "");
  if (fault.code == ErrorCode::kMalformedRequest) {
    const std::string place = fault.path.empty() ? "" : fmt::format(" (at '{}')", fault.path);
    error->expected = fmt::format("Its bytes are no {}{}.", type.full_name(), place);
  }
  return false;
}

void WriteMessage(const Message& message, ByteBuffer* bytes) {
  bytes->Clear();
  grpc::ProtoBufferWriter writer(bytes, kMaxPieceBytes, static_cast<int>(message.ByteSizeLong()));
  BATON_CHECK(message.SerializeToZeroCopyStream(&writer));
}

}  // namespace baton::api
