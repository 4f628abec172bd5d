#include "src/cli/flags.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "yaml-cpp/yaml.h"

#include "src/base/host_port.h"
#include "src/base/log.h"
#include "src/base/log_format.h"
#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/base/regular_file.h"
#include "src/cli/http_client.h"

namespace baton::cli {
namespace {

constexpr std::string_view kConfigFlag = "--config";

// The value of --config in args, or "".
std::string ConfigFileOf(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == kConfigFlag && i + 1 < args.size()) return args[i + 1];
    if (args[i].starts_with("--config=")) return args[i].substr(kConfigFlag.size() + 1);
  }
  return "";
}

// "" for a number: the one with the most digits in common is not what was meant.
std::string Suggestion(std::string_view name, const std::vector<std::string>& known) {
  if (!name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos) return "";
  const std::string nearest = NearestName(name, std::span<const std::string>(known));
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

// The flag nearest to `name`, by spelling or as what it abbreviates; "" = none is near. The dashes
// are no part of the name: --http is not nearly --help.
std::string NearestFlag(std::string_view name, const std::vector<std::string>& flags) {
  std::vector<std::string> bare;
  for (const std::string& flag : flags) bare.push_back(flag.substr(2));
  name.remove_prefix(2);
  const std::string nearest = NearestName(name, std::span<const std::string>(bare));
  return nearest.empty() ? "" : "--" + nearest;
}

// The nearest flag by spelling alone: a short name abbreviates many of the hundred flags of others.
std::string NearestBySpelling(std::string_view name, const std::vector<std::string>& flags) {
  const std::string nearest = NearestFlag(name, flags);
  const size_t most = std::max<size_t>(1, (name.size() - 2) / 3);
  return !nearest.empty() && EditDistance(name, nearest) <= most ? nearest : "";
}

// The long flags that a table of hints has.
std::vector<std::string> KeysOf(const std::map<std::string, std::string>& hints) {
  std::vector<std::string> flags;
  for (const auto& hint : hints) {
    if (hint.first.starts_with("--")) flags.push_back(hint.first);
  }
  return flags;
}

// CLI11's form of a check: "" = good.
std::string AddressError(const std::string& text) {
  const StatusOr<HostPort> address = ParseHostPort(text);
  return address.ok() ? "" : std::string(address.status().message());
}

// A check of values that say nothing when they are empty.
std::string EmptyError(const std::string& text) {
  return text.empty() ? "its value is empty; without one leave the flag out" : "";
}

// No list of flags is longer.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// A key of the file as the flag that it stands for.
std::string FlagOfKey(const std::string& key) {
  return "--" + absl::StrReplaceAll(key, {{"_", "-"}});
}

// Keys are names of flags. One that the file gives twice is a mistake of which nobody knows the
// right half.
Status CheckKeys(const YAML::Node& root, const std::string& path) {
  std::map<std::string, int> lines;  // by flag, of its first key
  for (const auto& entry : root) {
    const int line = entry.first.Mark().line + 1;
    if (!entry.first.IsScalar()) {
      return InvalidArgument("{}: line {}: a key must be the name of a flag", path, line);
    }
    const std::string key = entry.first.as<std::string>();
    const auto [first, inserted] = lines.emplace(FlagOfKey(key), line);
    if (inserted) continue;
    return InvalidArgument("{}: line {}: key '{}' is already given in line {}", path, line, key,
                           first->second);
  }
  return OkStatus();
}

}  // namespace

FlagSet::FlagSet(std::string_view name, std::string_view about)
    : name_(name), app_(std::make_unique<CLI::App>(std::string(about), "baton " + name_)) {
  app_->allow_extras(true);
  app_->add_option("--config", config_file_,
                   "YAML file with the same keys as these flags (model: what MODEL is)");
}

FlagSet::~FlagSet() = default;

void FlagSet::Add(const std::string& flag, std::string& value, const std::string& help) {
  app_->add_option(flag, value, help)
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void FlagSet::Add(const std::string& flag, std::vector<std::string>& values,
                  const std::string& help) {
  app_->add_option(flag, values, help)->delimiter(',');
}

void FlagSet::AddText(const std::string& flag, std::string& value, const std::string& help) {
  Add(flag, value, help);
  app_->get_option(flag)->check(EmptyError);
}

void FlagSet::AddJoined(const std::string& flag, std::string& value, const std::string& help) {
  app_->add_option(flag, value, help)->capture_default_str()->join(',')->check(EmptyError);
}

void FlagSet::AddWhole(const std::string& flag, std::vector<std::string>& values,
                       const std::string& help) {
  CLI::Option* option = app_->add_option(flag, values, help);
  if (flag.starts_with('-')) option->check(EmptyError);
}

void FlagSet::AddFile(const std::string& flag, std::string& value, const std::string& help) {
  Add(flag, value, help);
  app_->get_option(flag)->check([](const std::string& path) -> std::string {
    return path.empty() ? "names no file; without one leave the flag out" : "";
  });
}

void FlagSet::AddAddress(const std::string& flag, std::string& value, const std::string& help) {
  Add(flag, value, help);
  app_->get_option(flag)->check(AddressError);
}

void FlagSet::AddAddress(const std::string& flag, std::vector<std::string>& values,
                         const std::string& help) {
  Add(flag, values, help);
  app_->get_option(flag)->check(AddressError);
}

void FlagSet::AddAdmin(const std::string& flag, std::string& value, const std::string& help) {
  Add(flag, value, help + ": HOST:PORT, or its URL");
  const auto read = [](std::string& text) -> std::string {
    const StatusOr<HttpUrl> url = ParseServer(text);
    if (!url.ok()) return std::string(url.status().message());
    if (url->tls || BasePathOf(*url) != "") {
      return fmt::format("'{}' is no admin address, which is HOST:PORT or http://HOST:PORT", text);
    }
    text = fmt::format("{}:{}", BracketedHost(url->host), url->port);
    return "";
  };
  app_->get_option(flag)->transform(CLI::Validator(read, ""));
}

void FlagSet::AddHint(const std::string& flag, const std::string& text) { hints_[flag] = text; }

void FlagSet::AddElsewhere(const FlagSet& other) {
  for (const std::string& flag : other.FlagNames()) {
    if (!Has(flag)) elsewhere_[flag] = other.name_;
  }
}

void FlagSet::Arrange(const std::string& group, const std::vector<std::string>& flags) {
  for (const std::string& flag : flags) {
    CLI::Option* option = app_->get_option_no_throw(flag);
    if (option != nullptr) option->group(group);
  }
}

void FlagSet::Add(const std::string& flag, int64_t& value, Range range, const std::string& help) {
  // Decimal, whatever stands in front: CLI11 would read 010 as 8 and 2^64 as 2^63 - 1.
  const auto read = [range](std::string& text) -> std::string {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= range.low && number <= range.high) {
      text = std::to_string(number);
      return "";
    }
    return fmt::format("'{}' is not a whole number in [{}, {}]", text, range.low, range.high);
  };
  app_->add_option(flag, value, help)
      ->capture_default_str()
      ->transform(CLI::Validator(read, ""))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void FlagSet::Add(const std::string& flag, bool& value, const std::string& help) {
  app_->add_flag(flag, value, help);
}

void FlagSet::AddChoice(const std::string& flag, std::string& value,
                        std::vector<std::string> choices, const std::string& help,
                        const std::vector<std::string>& reserved) {
  const std::string list = absl::StrJoin(choices, "|");
  app_->add_option(flag, value, fmt::format("{} ({})", help, list))
      ->capture_default_str()
      ->check([choices = std::move(choices), reserved, list](const std::string& text) {
        for (const std::vector<std::string>* known : {&choices, &reserved}) {
          if (std::find(known->begin(), known->end(), text) != known->end()) return std::string();
        }
        // Short words are near to each other by chance: gpu is no cpu.
        return fmt::format("'{}' is not one of {}{}", text, list,
                           text.size() < 4 ? "" : Suggestion(text, choices));
      })
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::vector<std::string> FlagSet::FlagNames() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

Status FlagSet::CheckExtras(const std::vector<std::string>& extras) const {
  if (extras.empty()) return OkStatus();
  const std::string name = extras[0].substr(0, extras[0].find('='));
  if (name.starts_with("-") && name.size() > 1) {
    const std::string hint = HintFor(name);
    return InvalidArgument("unknown flag {}{}", name, hint.empty() ? "; --help lists them" : hint);
  }
  const auto hint = hints_.find("");
  if (hint == hints_.end()) return InvalidArgument("unexpected argument '{}'", extras[0]);
  return InvalidArgument("unexpected argument '{}': {}", extras[0], hint->second);
}

// The hint that follows an unknown name in an error: what the name means elsewhere, else the
// nearest flag of this set, else of another command or server. Their names are never proposed as
// flags of this command. "" = nothing is near.
std::string FlagSet::HintFor(const std::string& name) const {
  if (const auto hint = hints_.find(name); hint != hints_.end()) return ": " + hint->second;
  if (const auto there = elsewhere_.find(name); there != elsewhere_.end()) {
    return fmt::format(": it is a flag of `baton {}`", there->second);
  }
  if (!name.starts_with("--")) return "";
  const std::string ours = NearestFlag(name, FlagNames());
  const std::string foreign = NearestBySpelling(name, KeysOf(hints_));
  const bool is_foreign_nearer =
      !foreign.empty() &&
      (ours.empty() || (EditDistance(name, foreign) == 1 && EditDistance(name, ours) > 1));
  if (!ours.empty() && !is_foreign_nearer) return fmt::format("; did you mean {}?", ours);
  const std::string there = NearestBySpelling(name, KeysOf(elsewhere_));
  const bool is_there = !there.empty() && (foreign.empty() || EditDistance(name, there) <=
                                                                  EditDistance(name, foreign));
  if (is_there) return fmt::format("; {} is a flag of `baton {}`", there, elsewhere_.at(there));
  return foreign.empty() ? "" : ": " + hints_.at(foreign);
}

// How often the flag is among the arguments, with its value in the same one or in the next.
int64_t TimesGiven(const std::vector<std::string>& args, const std::string& flag) {
  return std::count_if(args.begin(), args.end(), [&flag](const std::string& arg) {
    return arg == flag || arg.starts_with(flag + "=");
  });
}

bool IsGiven(const std::vector<std::string>& args, const std::string& flag) {
  return TimesGiven(args, flag) > 0;
}

// The words that a switch takes on the command line and in the file; nothing for any other.
std::optional<bool> SwitchValue(const std::string& word) {
  const std::string lower = absl::AsciiStrToLower(word);
  if (lower == "on" || lower == "off") return lower == "on";
  bool is_on = false;
  return absl::SimpleAtob(word, &is_on) ? std::optional(is_on) : std::nullopt;
}

// Sets the value that an argument has unless the command line gives it.
Status TakeArgument(const std::string& key, const YAML::Node& value, CLI::Option* argument) {
  argument->run_callback_for_default();
  if (value.IsScalar()) {
    argument->default_val(value.as<std::string>());
    return OkStatus();
  }
  if (argument->get_expected_max() <= 1) return InvalidArgument("key '{}' takes one value", key);
  const auto items = value.as<std::vector<std::string>>();
  for (const std::string& item : items) {  // CLI11 would take it for several
    if (item.find_first_of(",[]") == item.npos) continue;
    return InvalidArgument("key '{}': '{}' has a comma or a bracket; give it on the command line",
                           key, item);
  }
  argument->default_val(items);
  return OkStatus();
}

// Appends one key of the file to `merged` as arguments, unless the command line gives the flag too:
// a list would hold both. Throws what yaml-cpp and CLI11 throw.
Status FlagSet::TakeKey(const YAML::Node& name, const YAML::Node& value,
                        const std::vector<std::string>& args, std::vector<std::string>* merged) {
  const std::string key = name.as<std::string>();
  const std::string flag = FlagOfKey(key);
  const CLI::Option* option = app_->get_option_no_throw(flag);
  CLI::Option* argument = app_->get_option_no_throw(absl::AsciiStrToUpper(key));
  const bool is_argument = option == nullptr && argument != nullptr && argument->get_positional();
  if (flag == kConfigFlag || flag == "--help") {
    return InvalidArgument("key '{}' belongs on the command line", key);
  }
  if (option == nullptr && !is_argument) {
    return InvalidArgument("unknown key '{}'{}", key, HintFor(flag));
  }
  if (value.IsMap()) return InvalidArgument("key '{}' is a map, not a value", key);
  const auto is_null = [](const YAML::Node& node) { return node.IsNull(); };
  if (value.IsNull() || (value.IsSequence() && std::any_of(value.begin(), value.end(), is_null))) {
    return InvalidArgument("key '{}' has no value", key);
  }
  if (is_argument) return TakeArgument(key, value, argument);
  if (IsGiven(args, flag)) return OkStatus();
  if (IsSwitch(flag)) {
    const std::optional<bool> is_on =
        value.IsScalar() ? SwitchValue(value.Scalar()) : std::optional<bool>();
    if (!is_on) return InvalidArgument("key '{}' is true or false", key);
    if (*is_on) merged->push_back(flag);
  } else if (value.IsSequence()) {
    const bool joins = option->get_multi_option_policy() == CLI::MultiOptionPolicy::Join;
    if (option->get_expected_max() <= 1 && !joins) {
      return InvalidArgument("key '{}' takes one value", key);
    }
    for (const auto& item : value) merged->push_back(flag + "=" + item.as<std::string>());
  } else {
    merged->push_back(flag + "=" + value.as<std::string>());
  }
  return OkStatus();
}

// The file's keys as arguments in front of the command line's own.
StatusOr<std::vector<std::string>> FlagSet::WithConfigFile(const std::vector<std::string>& args) {
  if (TimesGiven(args, std::string(kConfigFlag)) > 1) {
    return InvalidArgument("--config is given more than once; give one file with all keys");
  }
  const std::string path = ConfigFileOf(args);
  if (path.empty()) {
    const bool is_named = IsGiven(args, std::string(kConfigFlag));
    return is_named ? StatusOr<std::vector<std::string>>(InvalidArgument("--config names no file"))
                    : args;
  }
  const StatusOr<std::string> text = ReadInput(path, kMaxConfigBytes);
  if (!text.ok()) return WithPrefix(text.status(), "--config " + path);
  std::vector<std::string> merged;
  std::string place = path;  // of the key at hand
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(*text);
    if (documents.empty() || documents[0].IsNull()) return args;
    if (documents.size() > 1) return InvalidArgument("{}: the file has several documents", path);
    const YAML::Node& root = documents[0];
    if (!root.IsMap()) return InvalidArgument("{}: the file must be a map of flags", path);
    BATON_RETURN_IF_ERROR(CheckKeys(root, path));
    for (const auto& entry : root) {
      place = fmt::format("{}: line {}", path, entry.first.Mark().line + 1);
      const size_t num_before = merged.size();
      const Status taken = TakeKey(entry.first, entry.second, args, &merged);
      if (!taken.ok()) return WithPrefix(taken, place);
      if (merged.size() == num_before) continue;
      config_places_[FlagOfKey(entry.first.as<std::string>())] = place;
    }
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}: {}", path, error.what());
  } catch (const CLI::Error& error) {
    return InvalidArgument("{}: {}", place, error.what());
  }
  merged.insert(merged.end(), args.begin(), args.end());
  return merged;
}

// The message of CLI11 about a flag, with the place in the file if the flag came from there.
std::string FlagSet::WithConfigPlace(const std::string& message) const {
  const auto place = config_places_.find(message.substr(0, message.find(':')));
  return place == config_places_.end() ? message : place->second + ": " + message;
}

// "--flag=" as "--flag" and an empty value: CLI11 would take the next argument for the value.
std::vector<std::string> FlagSet::WithEmptyValuesApart(const std::vector<std::string>& args) const {
  std::vector<std::string> apart;
  for (const std::string& arg : args) {
    const bool ends_empty = arg.starts_with("--") && arg.find('=') + 1 == arg.size();
    const std::string flag = arg.substr(0, arg.find('='));
    const CLI::Option* option = ends_empty ? app_->get_option_no_throw(flag) : nullptr;
    const bool takes_value = option != nullptr && option->get_expected_min() > 0;
    apart.push_back(takes_value ? flag : arg);
    if (takes_value) apart.emplace_back();
  }
  return apart;
}

// CLI11 takes any number for true.
Status FlagSet::CheckSwitches(const std::vector<std::string>& args) const {
  for (const std::string& arg : args) {
    const size_t equals = arg.find('=');
    if (equals == std::string::npos || !IsSwitch(arg.substr(0, equals))) continue;
    const std::string value = arg.substr(equals + 1);
    if (!SwitchValue(value)) {
      return InvalidArgument("{}: '{}' is not true or false", arg.substr(0, equals), value);
    }
  }
  return OkStatus();
}

std::optional<int> FlagSet::Parse(const std::vector<std::string>& args) {
  StatusOr<std::vector<std::string>> merged = WithConfigFile(args);
  if (!merged.ok()) return Fail(name_, merged.status(), kExitUsage);
  // CLI11 would read "-hf" as "-h" and "-f", and help.
  for (const std::string& arg : *merged) {
    if (!arg.starts_with("-h") || hints_.count(arg) == 0) continue;
    return Fail(name_, CheckExtras({arg}), kExitUsage);
  }
  const Status switches = CheckSwitches(*merged);
  if (!switches.ok()) return Fail(name_, switches, kExitUsage);
  try {
    const std::vector<std::string> apart = WithEmptyValuesApart(*merged);
    std::vector<std::string> reversed(apart.rbegin(), apart.rend());  // CLI11's order
    app_->parse(reversed);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ArgumentMismatch& error) {
    // CLI11 counts: "--http: 1 required TEXT missing".
    const std::string message = error.what();
    const std::string text = message.ends_with(" missing")
                                 ? message.substr(0, message.find(':')) + ": its value is missing"
                                 : message;
    return Fail(name_, InvalidArgument("{}", WithConfigPlace(text)), kExitUsage);
  } catch (const CLI::ParseError& error) {
    return Fail(name_, InvalidArgument("{}", WithConfigPlace(error.what())), kExitUsage);
  }
  const Status extras = CheckExtras(app_->remaining());
  if (!extras.ok()) return Fail(name_, extras, kExitUsage);
  return std::nullopt;
}

bool FlagSet::Has(const std::string& flag) const {
  return app_->get_option_no_throw(flag) != nullptr;
}

bool FlagSet::Given(const std::string& flag) const {
  const CLI::Option* option = app_->get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

bool FlagSet::IsSwitch(const std::string& flag) const {
  const CLI::Option* option = app_->get_option_no_throw(flag);
  return option != nullptr && option->get_expected_min() == 0;
}

// Where the log is JSON, stderr is read by a program.
int Fail(std::string_view name, const Status& status, int code) {
  if (CurrentLogFormat() == LogFormat::kJson) {
    BATON_LOG_ERROR("baton {}: {}", name, std::string(status.message()));
    return code;
  }
  Print(stderr, "baton {}: {}\n", name,
        std::string_view(status.message().data(), status.message().size()));
  return code;
}

}  // namespace baton::cli
