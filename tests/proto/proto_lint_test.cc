// The rules of proto/README.md, checked on the .proto files themselves. Runs from the repository
// root.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

namespace pb = google::protobuf;

constexpr const char* kRoot = "proto";
constexpr const char* kOwn = "proto/baton";  // beside it lie the protocols of others
constexpr const char* kLockPath = "tests/proto/wire.lock";

// All our files as protoc understands them, with their comments.
class Protos {
 public:
  Protos() {
    const char* protoc = std::getenv("BATON_PROTOC");
    const std::string set_path = testing::TempDir() + "baton_proto_lint.bin";
    std::string command = std::string(protoc != nullptr ? protoc : "protoc") +
                          " --include_source_info --include_imports -I" + kRoot + " -o" + set_path;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kOwn)) {
      if (entry.path().extension() == ".proto") command += " " + entry.path().string();
    }
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream file(set_path, std::ios::binary);
    pb::FileDescriptorSet set;
    EXPECT_TRUE(set.ParseFromIstream(&file)) << set_path;
    for (const pb::FileDescriptorProto& proto : set.file()) {
      if (const pb::FileDescriptor* built = pool_.BuildFile(proto)) files_.push_back(built);
    }
  }
  const std::vector<const pb::FileDescriptor*>& files() const { return files_; }

  // Every message, nested ones too, without the entries of maps.
  std::vector<const pb::Descriptor*> Messages() const {
    std::vector<const pb::Descriptor*> messages;
    for (const pb::FileDescriptor* file : files_) {
      for (int i = 0; i < file->message_type_count(); ++i) {
        AddMessages(file->message_type(i), &messages);
      }
    }
    return messages;
  }
  std::vector<const pb::EnumDescriptor*> Enums() const {
    std::vector<const pb::EnumDescriptor*> enums;
    for (const pb::FileDescriptor* file : files_) {
      for (int i = 0; i < file->enum_type_count(); ++i) enums.push_back(file->enum_type(i));
    }
    for (const pb::Descriptor* message : Messages()) {
      for (int i = 0; i < message->enum_type_count(); ++i) enums.push_back(message->enum_type(i));
    }
    return enums;
  }

 private:
  static void AddMessages(const pb::Descriptor* message,
                          std::vector<const pb::Descriptor*>* messages) {
    if (message->options().map_entry()) return;
    messages->push_back(message);
    for (int i = 0; i < message->nested_type_count(); ++i) {
      AddMessages(message->nested_type(i), messages);
    }
  }

  pb::DescriptorPool pool_;
  std::vector<const pb::FileDescriptor*> files_;
};

// The comment before, or after on the same line.
template <typename Descriptor>
std::string CommentOf(const Descriptor* descriptor) {
  pb::SourceLocation location;
  if (!descriptor->GetSourceLocation(&location)) return {};
  return location.leading_comments + location.trailing_comments;
}

// "baton.v1.Usage.prompt_tokens" -> "1 uint32" for every field, enum value and rpc.
std::map<std::string, std::string> WireFacts(const Protos& protos) {
  std::map<std::string, std::string> facts;
  for (const pb::Descriptor* message : protos.Messages()) {
    for (int i = 0; i < message->field_count(); ++i) {
      const pb::FieldDescriptor* field = message->field(i);
      std::string type = field->type_name();
      if (field->message_type() != nullptr) type = field->message_type()->full_name();
      if (field->enum_type() != nullptr) type = field->enum_type()->full_name();
      const std::string label = field->is_repeated() ? "repeated " : "";
      facts[field->full_name()] = std::to_string(field->number()) + " " + label + type;
    }
  }
  for (const pb::EnumDescriptor* type : protos.Enums()) {
    for (int i = 0; i < type->value_count(); ++i) {
      facts[type->full_name() + "." + type->value(i)->name()] =
          std::to_string(type->value(i)->number()) + " value";
    }
  }
  return facts;
}

// Lines "name = number type" of the lock file; '#' begins a comment.
std::map<std::string, std::string> ReadLock() {
  std::map<std::string, std::string> facts;
  std::ifstream file(kLockPath);
  std::string line;
  while (std::getline(file, line)) {
    const size_t equals = line.find(" = ");
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    facts[line.substr(0, equals)] = line.substr(equals + 3);
  }
  return facts;
}

// True when the message or enum that held `name` now reserves its number.
bool IsReserved(const Protos& protos, const std::string& name, int number) {
  const std::string parent = name.substr(0, name.rfind('.'));
  for (const pb::Descriptor* message : protos.Messages()) {
    if (message->full_name() == parent) return message->IsReservedNumber(number);
  }
  for (const pb::EnumDescriptor* type : protos.Enums()) {
    if (type->full_name() == parent) return type->IsReservedNumber(number);
  }
  return true;  // the whole message is gone, and with it everything that could carry the number
}

TEST(ProtoLintTest, FilesParseAndThePackageHasAVersion) {
  const Protos protos;
  ASSERT_GE(protos.files().size(), 4u);
  for (const pb::FileDescriptor* file : protos.files()) {
    EXPECT_EQ(file->package(), "baton.v1") << file->name();
    EXPECT_EQ(file->name().rfind("baton/v1/", 0), 0u) << file->name();
    EXPECT_EQ(file->syntax(), pb::FileDescriptor::SYNTAX_PROTO3) << file->name();
  }
}

TEST(ProtoLintTest, EnumsBeginWithUnspecifiedZero) {
  const Protos protos;
  ASSERT_FALSE(protos.Enums().empty());
  for (const pb::EnumDescriptor* type : protos.Enums()) {
    std::string prefix;
    for (const char c : type->name()) {
      if (std::isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
      prefix += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    ASSERT_GT(type->value_count(), 0);
    EXPECT_EQ(type->value(0)->number(), 0) << type->full_name();
    EXPECT_EQ(type->value(0)->name(), prefix + "_UNSPECIFIED") << type->full_name();
    std::set<int> numbers;
    for (int i = 0; i < type->value_count(); ++i) {
      EXPECT_TRUE(numbers.insert(type->value(i)->number()).second)
          << type->value(i)->full_name() << " shares its number";
      EXPECT_EQ(type->value(i)->name().rfind(prefix + "_", 0), 0u) << type->value(i)->name();
    }
  }
}

TEST(ProtoLintTest, EverythingHasAComment) {
  const Protos protos;
  for (const pb::Descriptor* message : protos.Messages()) {
    EXPECT_NE(CommentOf(message), "") << message->full_name();
    for (int i = 0; i < message->field_count(); ++i) {
      EXPECT_GE(CommentOf(message->field(i)).size(), 4u) << message->field(i)->full_name();
    }
    for (int i = 0; i < message->real_oneof_decl_count(); ++i) {
      EXPECT_NE(CommentOf(message->oneof_decl(i)), "") << message->oneof_decl(i)->full_name();
    }
  }
  for (const pb::EnumDescriptor* type : protos.Enums()) {
    EXPECT_NE(CommentOf(type), "") << type->full_name();
  }
  for (const pb::FileDescriptor* file : protos.files()) {
    for (int s = 0; s < file->service_count(); ++s) {
      const pb::ServiceDescriptor* service = file->service(s);
      EXPECT_NE(CommentOf(service), "") << service->full_name();
      for (int m = 0; m < service->method_count(); ++m) {
        EXPECT_NE(CommentOf(service->method(m)), "") << service->method(m)->full_name();
      }
    }
  }
}

// A number once on the wire keeps its meaning for ever.
TEST(ProtoLintTest, NumbersAreNeverReused) {
  const Protos protos;
  const std::map<std::string, std::string> now = WireFacts(protos);
  const std::map<std::string, std::string> locked = ReadLock();
  ASSERT_FALSE(now.empty());
  for (const auto& [name, fact] : locked) {
    const auto it = now.find(name);
    if (it != now.end()) {
      EXPECT_EQ(it->second, fact) << name << " has another number or type than it once had";
      continue;
    }
    const int number = std::atoi(fact.c_str());
    EXPECT_TRUE(IsReserved(protos, name, number))
        << name << " is gone: its message must say `reserved " << number << ";`";
  }
  std::vector<std::string> added;
  for (const auto& [name, fact] : now) {
    if (locked.count(name) == 0) added.push_back(name + " = " + fact);
  }
  if (std::getenv("BATON_UPDATE_WIRE_LOCK") != nullptr) {
    std::ofstream file(kLockPath, std::ios::app);
    for (const std::string& line : added) file << line << "\n";
    added.clear();
  }
  EXPECT_TRUE(added.empty()) << added.size() << " new, first " << added.front()
                             << ": run this test with BATON_UPDATE_WIRE_LOCK=1 and commit "
                             << kLockPath;
}

// Two names must not have carried one number in the history that the lock file keeps.
TEST(ProtoLintTest, LockFileHasEachNumberOnce) {
  std::map<std::string, std::string> owner;  // parent and number -> name
  for (const auto& [name, fact] : ReadLock()) {
    const std::string parent = name.substr(0, name.rfind('.'));
    const std::string key = parent + "#" + fact.substr(0, fact.find(' '));
    const auto [it, inserted] = owner.emplace(key, name);
    EXPECT_TRUE(inserted) << name << " and " << it->second << " had the same number";
  }
  EXPECT_GT(owner.size(), 100u);
}

}  // namespace
}  // namespace baton
