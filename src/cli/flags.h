// Flags of one subcommand: CLI11 underneath, with --config FILE (YAML, the same keys as the flags
// and the arguments without dashes: `model`),
// an unknown flag or key answered with the nearest name, and exit code 2 for every usage error.
#ifndef BATON_CLI_FLAGS_H_
#define BATON_CLI_FLAGS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace CLI {
class App;
}
namespace YAML {
class Node;
}

namespace baton::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// One subcommand's flags. Declare them, then Parse once; the bound variables hold defaults until
// then. A flag on the command line wins over the same key of the file.
class FlagSet {
 public:
  // `name` e.g. "serve"; `about` one sentence for --help.
  FlagSet(std::string_view name, std::string_view about);
  ~FlagSet();

  // `flag` with dashes ("--kv-memory"), or a bare name for a positional argument ("MODEL"). Of one
  // value that is given twice the last holds.
  void Add(const std::string& flag, std::string& value, const std::string& help);
  void Add(const std::string& flag, std::vector<std::string>& values, const std::string& help);
  // As the first; given as "", as by a variable that is not set, it is a usage error.
  void AddText(const std::string& flag, std::string& value, const std::string& help);
  // Values with commas between them, read by whoever has `value`; a flag that is given again adds
  // to them. "" is a usage error.
  void AddJoined(const std::string& flag, std::string& value, const std::string& help);
  // As the list above, and a value may hold commas: each is given by a flag, or an argument, of its
  // own. "" is a usage error of a flag; the caller says what an empty argument lacks.
  void AddWhole(const std::string& flag, std::vector<std::string>& values, const std::string& help);
  // A path; given as "", as by a variable that is not set, it is a usage error.
  void AddFile(const std::string& flag, std::string& value, const std::string& help);
  // HOST:PORT (base/host_port.h); "" stays what it is by default. Each of the list for the second.
  void AddAddress(const std::string& flag, std::string& value, const std::string& help);
  void AddAddress(const std::string& flag, std::vector<std::string>& values,
                  const std::string& help);
  // A decimal number within [low, high]; anything else is a usage error that names the range.
  struct Range {
    int64_t low;
    int64_t high;
  };
  void Add(const std::string& flag, int64_t& value, Range range, const std::string& help);
  // A switch: present = true; also true, yes, on, 1 and false, no, off, 0, here and in the file.
  void Add(const std::string& flag, bool& value, const std::string& help);
  // One of `choices`. A `reserved` word is taken too and listed nowhere: the caller refuses it with
  // a reason of its own.
  void AddChoice(const std::string& flag, std::string& value, std::vector<std::string> choices,
                 const std::string& help, const std::vector<std::string>& reserved = {});

  // Adds the admin address of a process: HOST:PORT, or the URL http://HOST:PORT, whose HOST:PORT
  // becomes the value.
  void AddAdmin(const std::string& flag, std::string& value, const std::string& help);
  // Adds what an error says about `flag`, which other programs have and this set has not ("-x"
  // too); "" stands for an argument that nothing takes.
  void AddHint(const std::string& flag, const std::string& text);
  // An error about a flag that `other` has and this set has not names the command of `other`.
  void AddElsewhere(const FlagSet& other);
  // --help shows these flags under the title `group`. Flags that this set lacks are passed over.
  void Arrange(const std::string& group, const std::vector<std::string>& flags);

  // Parses argv after the subcommand's name. Returns nothing when the command should run; otherwise
  // the exit code, after --help went to stdout or one error line to stderr.
  std::optional<int> Parse(const std::vector<std::string>& args);
  // True for a flag or argument of this set.
  bool Has(const std::string& flag) const;
  // True when the flag came from the command line or the file.
  bool Given(const std::string& flag) const;
  // True for a flag of this set that has no value ("-h" too); may be asked before Parse.
  bool IsSwitch(const std::string& flag) const;

 private:
  StatusOr<std::vector<std::string>> WithConfigFile(const std::vector<std::string>& args);
  Status TakeKey(const YAML::Node& name, const YAML::Node& value,
                 const std::vector<std::string>& args, std::vector<std::string>* merged);
  std::string WithConfigPlace(const std::string& message) const;
  std::vector<std::string> WithEmptyValuesApart(const std::vector<std::string>& args) const;
  Status CheckSwitches(const std::vector<std::string>& args) const;
  Status CheckExtras(const std::vector<std::string>& extras) const;
  std::string HintFor(const std::string& name) const;
  std::vector<std::string> FlagNames() const;

  std::string name_;
  std::unique_ptr<CLI::App> app_;
  std::string config_file_;
  std::map<std::string, std::string> hints_;          // by flag
  std::map<std::string, std::string> elsewhere_;      // command that has the flag, by flag
  std::map<std::string, std::string> config_places_;  // "FILE: line N" of each flag taken from it
};

// Prints "baton NAME: message" to stderr and returns `code`.
int Fail(std::string_view name, const Status& status, int code = kExitFailure);

}  // namespace baton::cli

#endif  // BATON_CLI_FLAGS_H_
