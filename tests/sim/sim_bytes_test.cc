// The bytes between simulated processes: each fault that a codec could have breaks a promise. A
// mutant changes every message at one place of the schema: a field is lost, two fields of a type
// are swapped, a list loses its end, or two elements of it are swapped.
#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

#include "baton/v1/handoff.pb.h"
#include "baton/v1/worker.pb.h"
#include "src/base/log.h"
#include "src/sim/sim_world.h"

namespace baton::sim {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::Reflection;

// The messages that cross; all others are parts of these.
const std::vector<const Descriptor*>& Roots() {
  static const std::vector<const Descriptor*> roots = {
      v1::RouterMessage::descriptor(), v1::WorkerMessage::descriptor(),
      v1::WorkerReport::descriptor(), v1::RouterDirective::descriptor(),
      v1::HandoffMessage::descriptor()};
  return roots;
}

bool IsPart(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map();
}

// The place of a mutant: "WorkerMessage.step.events", and what it does there.
struct Mutant {
  std::string place;  // of the message that has the field
  std::string does;   // "lose x", "swap x y", "cut x", "turn x"
  std::string Name() const { return place + ": " + does; }
  // The message of a place: the field of its root.
  std::string MessageName() const { return place.substr(0, place.find('.', place.find('.') + 1)); }
  std::string Kind() const { return does.substr(0, does.find(' ')); }
  friend auto operator<=>(const Mutant&, const Mutant&) = default;
};

// The next field after `idx` of its type, of those with one value; null = none.
const FieldDescriptor* Partner(const Descriptor* type, int idx) {
  const FieldDescriptor* const field = type->field(idx);
  if (field->is_repeated() || IsPart(field)) return nullptr;
  for (int i = idx + 1; i < type->field_count(); ++i) {
    const FieldDescriptor* const other = type->field(i);
    if (!other->is_repeated() && other->type() == field->type() &&
        other->enum_type() == field->enum_type()) {
      return other;
    }
  }
  return nullptr;
}

// All mutants of the schema at `place`.
void AddMutants(const std::string& place, const Descriptor* type, std::set<Mutant>* out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    out->insert({place, "lose " + field->name()});
    if (field->is_repeated() && !field->is_map()) {
      out->insert({place, "cut " + field->name()});
      out->insert({place, "turn " + field->name()});
    }
    if (const FieldDescriptor* const other = Partner(type, i)) {
      out->insert({place, "swap " + field->name() + " " + other->name()});
    }
    if (IsPart(field)) AddMutants(place + "." + field->name(), field->message_type(), out);
  }
}

// The bytes of one field, to compare.
std::string ValueOf(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return std::to_string(reflection.GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(reflection.GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_INT32:
      return std::to_string(reflection.GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return std::to_string(reflection.GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field) ? "1" : "0";
    case FieldDescriptor::CPPTYPE_ENUM:
      return std::to_string(reflection.GetEnumValue(message, field));
    default:
      ADD_FAILURE() << "a field of a type that is not known here: " << field->full_name();
      return "";
  }
}

// Swaps the values of two fields of one type.
void SwapFields(Message* message, const FieldDescriptor* a, const FieldDescriptor* b) {
  const Reflection& reflection = *message->GetReflection();
  const auto swap = [&](auto get, auto set) {
    const auto kept = (reflection.*get)(*message, a);
    (reflection.*set)(message, a, (reflection.*get)(*message, b));
    (reflection.*set)(message, b, kept);
  };
  switch (a->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return swap(&Reflection::GetString, &Reflection::SetString);
    case FieldDescriptor::CPPTYPE_UINT32:
      return swap(&Reflection::GetUInt32, &Reflection::SetUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return swap(&Reflection::GetUInt64, &Reflection::SetUInt64);
    case FieldDescriptor::CPPTYPE_INT32:
      return swap(&Reflection::GetInt32, &Reflection::SetInt32);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return swap(&Reflection::GetFloat, &Reflection::SetFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return swap(&Reflection::GetBool, &Reflection::SetBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return swap(&Reflection::GetEnumValue, &Reflection::SetEnumValue);
    default:
      ADD_FAILURE() << "a field of a type that is not known here: " << a->full_name();
  }
}

// Calls `visit` with each part of `message`, itself among them, and its place.
template <typename F>
void ForEachPart(Message* message, const std::string& place, const F& visit) {
  visit(message, place);
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* const field : fields) {
    if (!IsPart(field)) continue;
    const std::string below = place + "." + field->name();
    if (!field->is_repeated()) {
      ForEachPart(reflection.MutableMessage(message, field), below, visit);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
      ForEachPart(reflection.MutableRepeatedMessage(message, field, i), below, visit);
    }
  }
}

std::unique_ptr<Message> Parse(std::string_view type, const std::string& bytes) {
  const Descriptor* const descriptor =
      DescriptorPool::generated_pool()->FindMessageTypeByName(std::string(type));
  std::unique_ptr<Message> message(
      MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
  EXPECT_TRUE(message->ParseFromString(bytes)) << type;
  return message;
}

// Plants `mutant` in one part.
void Apply(const Mutant& mutant, Message* part) {
  const Descriptor* const type = part->GetDescriptor();
  const Reflection& reflection = *part->GetReflection();
  const std::string kind = mutant.Kind();
  std::string name = mutant.does.substr(kind.size() + 1);
  if (kind == "swap") {
    const size_t space = name.find(' ');
    return SwapFields(part, type->FindFieldByName(name.substr(0, space)),
                      type->FindFieldByName(name.substr(space + 1)));
  }
  const FieldDescriptor* const field = type->FindFieldByName(name);
  if (kind == "lose") return reflection.ClearField(part, field);
  const int size = reflection.FieldSize(*part, field);
  if (kind == "cut" && size > 0) reflection.RemoveLast(part, field);
  if (kind == "turn" && size > 1) reflection.SwapElements(part, field, 0, size - 1);
}

// The field that a mutant loses: "RequestSpec.priority".
std::string FieldName(const Mutant& mutant) {
  const Descriptor* type = nullptr;
  std::string rest = mutant.place;
  for (const Descriptor* const root : Roots()) {
    if (rest.substr(0, rest.find('.')) == root->name()) type = root;
  }
  while (rest.find('.') != std::string::npos) {
    rest = rest.substr(rest.find('.') + 1);
    type = type->FindFieldByName(rest.substr(0, rest.find('.')))->message_type();
  }
  return type->name() + "." + mutant.does.substr(mutant.does.find(' ') + 1);
}

// Worlds in which all that is modelled is said: small pools, many faults.
std::vector<SimOptions> Worlds() {
  std::vector<SimOptions> worlds;
  for (const char* const faults : {"all", "flip,reorder,duplicate", "slow,memory,freeze"}) {
    SimOptions& options = worlds.emplace_back();
    options.seed = 5;
    options.num_requests = 1500;
    options.requests_per_fault = 8;
    options.faults = *ParseFaults(faults);
    options.has_states = true;
    options.window = 40;
    options.num_blocks = 96;
    options.has_rare_fields = true;
  }
  return worlds;
}

// Mutants that no process notices, and why.
struct Harmless {
  std::string_view prefix;  // of their names
  std::string_view why;
};
constexpr std::array kHarmless = {
    Harmless{"RouterDirective.peers.peers: lose fingerprint", "no worker reads it: routers pair"},
    Harmless{"RouterDirective.peers.peers.fingerprint: ", "no worker reads it: routers pair"},
    Harmless{"RouterDirective.peers.peers: cut transports", "one common transport is enough"},
    Harmless{"RouterDirective.peers.peers: turn transports", "the order says nothing to a worker"},
    Harmless{"RouterMessage.start_decode.prefill: lose worker_id", "the incarnation names it"},
    Harmless{"RouterMessage.start_prefill.decode: lose worker_id", "the incarnation names it"},
};
bool IsHarmless(const Mutant& mutant) {
  return std::any_of(kHarmless.begin(), kHarmless.end(), [&mutant](const Harmless& harmless) {
    return mutant.Name().starts_with(harmless.prefix);
  });
}

// Fields that no message of a simulation has: what they belong to is not modelled. The tests of the
// codecs hold them.
const std::set<std::string> kUnsaid = {
    "AnswerGrammar.kind",        "AnswerGrammar.start",
    "AnswerGrammar.text",        "BlockCounts.quarantined",
    "DrainCommand.timeout_ms",   "Fingerprint.varies_with_batch",
    "LinkLoad.bytes_per_s",      "LinkLoad.failure",
    "Peer.allow_inexact",        "RegisterAck.refusal",
    "RequestSpec.span",          "RouterMessage.start_embedding",
    "SamplingParams.grammar",    "SamplingParams.prompt_logprobs",
    "SessionHello.local_stream", "StartEmbedding.spec",
    "TokenEvent.embedding",      "TokenEvent.guess_state",
    "TokenEvent.prompt_pos",     "TokenEvent.proposed",
    "TokenEvent.rank",           "TokenEvent.step_row",
    "TraceSpan.span_id",         "TraceSpan.trace_hi",
    "TraceSpan.trace_lo",        "WorkerHello.allow_inexact",
    "WorkerHello.core_budget",   "WorkerHello.embedding_size",
    "WorkerHello.home_cores",    "WorkerHello.kv_bytes_per_token",
};

// Which of the mutants would change a message of a run that breaks no promise.
std::set<Mutant> Felt(const SimOptions& base) {
  std::set<Mutant> felt;
  SimOptions options = base;
  options.tamper = [&felt](std::string_view type, std::string* bytes) {
    const std::unique_ptr<Message> message = Parse(type, *bytes);
    ForEachPart(message.get(), message->GetDescriptor()->name(),
                [&felt](Message* part, const std::string& place) {
                  const Descriptor* const descriptor = part->GetDescriptor();
                  const Reflection& reflection = *part->GetReflection();
                  for (int i = 0; i < descriptor->field_count(); ++i) {
                    const FieldDescriptor* const field = descriptor->field(i);
                    if (field->is_repeated()) {
                      const int size = reflection.FieldSize(*part, field);
                      if (size > 0) felt.insert({place, "lose " + field->name()});
                      if (field->is_map()) continue;
                      if (size > 0) felt.insert({place, "cut " + field->name()});
                      if (size > 1) felt.insert({place, "turn " + field->name()});
                      continue;
                    }
                    if (reflection.HasField(*part, field)) {
                      felt.insert({place, "lose " + field->name()});
                    }
                    const FieldDescriptor* const other = Partner(descriptor, i);
                    if (other != nullptr && ValueOf(*part, field) != ValueOf(*part, other)) {
                      felt.insert({place, "swap " + field->name() + " " + other->name()});
                    }
                  }
                });
  };
  const SimReport report = SimWorld(options).Run();
  EXPECT_TRUE(report.ok()) << report.ToTable();
  return felt;
}

// The kind of the promise that a run with `mutant` breaks first; "" = none.
std::string CaughtBy(const Mutant& mutant, const SimOptions& base) {
  SimOptions options = base;
  options.stop_at_first = true;
  options.tamper = [&mutant](std::string_view type, std::string* bytes) {
    if (!type.ends_with(mutant.place.substr(0, mutant.place.find('.')))) return;
    const std::unique_ptr<Message> message = Parse(type, *bytes);
    ForEachPart(message.get(), message->GetDescriptor()->name(),
                [&mutant](Message* part, const std::string& place) {
                  if (place == mutant.place) Apply(mutant, part);
                });
    *bytes = message->SerializeAsString();
  };
  const SimReport report = SimWorld(options).Run();
  return report.ok() ? "" : report.first_violations.front().kind;
}

TEST(SimBytesTest, EachFaultOfACodecBreaksAPromise) {
  ASSERT_TRUE(InitLog({.role = "sim", .level = LogLevel::kOff}).ok());
  std::set<Mutant> all;
  for (const Descriptor* const root : Roots()) AddMutants(root->name(), root, &all);
  std::map<Mutant, std::string> caught;  // by what; "" = by nothing yet
  for (const SimOptions& world : Worlds()) {
    for (const Mutant& mutant : Felt(world)) {
      ASSERT_TRUE(all.contains(mutant)) << mutant.Name();
      std::string& by = caught[mutant];
      if (by.empty()) by = CaughtBy(mutant, world);
    }
  }

  // By message and kind of mutant: what caught how many.
  std::map<std::string, std::map<std::string, int>> table;
  size_t num_caught = 0;
  size_t num_harmless = 0;
  for (const auto& [mutant, by] : caught) {
    const bool is_caught = !by.empty();
    EXPECT_NE(is_caught, IsHarmless(mutant)) << mutant.Name() << " is caught by '" << by << "'";
    num_caught += is_caught ? 1 : 0;
    num_harmless += is_caught ? 0 : 1;
    ++table[fmt::format("{:<30} {}", mutant.MessageName(), mutant.Kind())]
           [is_caught ? by : "nothing: harmless"];
  }
  for (const auto& [row, kinds] : table) {
    std::string line = fmt::format("{:<36}", row);
    for (const auto& [by, count] : kinds) line += fmt::format(" {} ({})", by, count);
    std::cout << line << "\n";
  }
  std::cout << fmt::format("{} mutants: {} caught, {} harmless\n", caught.size(), num_caught,
                           num_harmless);

  std::set<std::string> unsaid;
  for (const Mutant& mutant : all) {
    if (mutant.Kind() == "lose") unsaid.insert(FieldName(mutant));
  }
  for (const auto& [mutant, by] : caught) {
    if (mutant.Kind() == "lose") unsaid.erase(FieldName(mutant));
  }
  EXPECT_EQ(unsaid, kUnsaid);
}

}  // namespace
}  // namespace baton::sim
