// Adds fields to a message that this version does not know, as a peer of a later version does.
#ifndef BATON_TESTS_PROTO_UNKNOWN_FIELDS_H_
#define BATON_TESTS_PROTO_UNKNOWN_FIELDS_H_

#include <cstdint>
#include <vector>

#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"

namespace baton {

// A number no message of ours uses; tests/proto/wire.lock keeps the real ones small.
inline constexpr int kUnknownField = 9000;
// A value that no enum of ours has.
inline constexpr int kUnknownValue = 77;

// Adds a field of every wire type to `message` and to each message inside it.
inline void AddUnknownFields(google::protobuf::Message* message) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  google::protobuf::UnknownFieldSet* unknown = reflection->MutableUnknownFields(message);
  unknown->AddVarint(kUnknownField, UINT64_MAX);
  unknown->AddFixed32(kUnknownField + 1, 7);
  unknown->AddFixed64(kUnknownField + 2, 7);
  unknown->AddLengthDelimited(kUnknownField + 3, "a field of a later version");
  unknown->AddGroup(kUnknownField + 4)->AddVarint(1, 7);
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_map()) continue;  // its entries are no messages of ours
    if (!field->is_repeated()) {
      AddUnknownFields(reflection->MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
      AddUnknownFields(reflection->MutableRepeatedMessage(message, field, i));
    }
  }
}

}  // namespace baton

#endif  // BATON_TESTS_PROTO_UNKNOWN_FIELDS_H_
