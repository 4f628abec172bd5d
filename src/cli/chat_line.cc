#include "src/cli/chat_line.h"

#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

#include "src/base/nearest_name.h"
#include "src/base/quoted_text.h"

namespace baton::cli {
namespace {

using Kind = ChatStep::Kind;

// "{}" is the highest temperature.
constexpr std::string_view kHelp =
    "/help                     this list\n"
    "/clear                    forget the conversation\n"
    "/system TEXT              set the system message; without TEXT take it away\n"
    "/set temperature NUMBER   0 = always the likeliest token; at most {}\n"
    "/set max-tokens N         longest answer; 0 = up to the context\n"
    "/set seed N               random seed; -1 = drawn\n"
    "/show                     the settings\n"
    "/exit                     end the chat (also /quit, /bye and Ctrl-D)\n"
    "//TEXT                    ask something that begins with /\n"
    "Ctrl-C stops an answer or drops what was typed; twice at an empty prompt it ends the chat.";

constexpr std::string_view kCommands[] = {"/help", "/clear", "/system", "/set",
                                          "/show", "/exit",  "/quit",   "/bye"};
constexpr std::string_view kSettings[] = {"temperature", "max-tokens", "seed"};

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// The first word, and what follows it.
std::pair<std::string_view, std::string_view> FirstWord(std::string_view text) {
  const size_t end = text.find_first_of(" \t");
  if (end == std::string_view::npos) return {text, {}};
  return {text.substr(0, end), Trimmed(text.substr(end))};
}

std::string Suggestion(std::string_view name, std::span<const std::string_view> known) {
  const std::string nearest = NearestName(name, known);
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

std::string Shown(const ChatOptions& options) {
  return fmt::format(
      "server       {}\ntemperature  {}\nmax-tokens   {}\nseed         {}\nsystem       {}",
      options.url.ToString(), options.temperature,
      options.max_tokens == 0 ? "up to the context" : std::to_string(options.max_tokens),
      options.seed < 0 ? "drawn" : std::to_string(options.seed),
      options.system.empty() ? "the template's own" : options.system);
}

ChatStep WholeNumber(std::string_view name, std::string_view text, FlagRange range,
                     int64_t& value) {
  int64_t number = 0;
  const bool is_good = absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number) &&
                       number >= range.low && number <= range.high;
  if (!is_good) {
    return {Kind::kComplain, fmt::format("/set {}: {} is not a whole number in [{}, {}]", name,
                                         QuotedForMessage(text), range.low, range.high)};
  }
  value = number;
  return {Kind::kSay, fmt::format("{} is {}", name, number)};
}

ChatStep Set(std::string_view arguments, ChatOptions& options) {
  const auto [name, value] = FirstWord(arguments);
  if (name.empty()) return {Kind::kSay, Shown(options)};
  if (name == "max-tokens") return WholeNumber(name, value, kChatMaxTokens, options.max_tokens);
  if (name == "seed") return WholeNumber(name, value, kChatSeed, options.seed);
  if (name != "temperature") {
    return {Kind::kComplain,
            fmt::format("/set: there is no setting {}{}; it has temperature, max-tokens and seed",
                        QuotedForMessage(name), Suggestion(name, kSettings))};
  }
  const StatusOr<double> temperature = ParseChatTemperature(value);
  if (!temperature.ok()) {
    return {Kind::kComplain,
            fmt::format("/set temperature: {}", std::string(temperature.status().message()))};
  }
  options.temperature = *temperature;
  return {Kind::kSay, fmt::format("temperature is {}", *temperature)};
}

}  // namespace

ChatStep TakeChatLine(std::string_view line, ChatSession& session) {
  if (const Status status = CheckChatText(line); !status.ok()) {
    return {Kind::kComplain, std::string(status.message())};
  }
  const std::string_view text = Trimmed(line);
  if (text.empty()) return {};
  if (!text.starts_with('/')) return {Kind::kAsk, std::string(text)};
  if (text.starts_with("//")) return {Kind::kAsk, std::string(text.substr(1))};
  const auto [word, arguments] = FirstWord(text);
  const std::string command = absl::AsciiStrToLower(absl::string_view(word.data(), word.size()));
  if (command == "/exit" || command == "/quit" || command == "/bye") return {Kind::kEnd, ""};
  if (command == "/help" || command == "/?") {
    return {Kind::kSay, fmt::format(kHelp, ChatMaxTemperature())};
  }
  if (command == "/show") return {Kind::kSay, Shown(session.options())};
  if (command == "/set") return Set(arguments, session.options());
  if (command == "/clear") {
    session.Clear();
    return {Kind::kSay, "the conversation is forgotten"};
  }
  if (command == "/system") {
    session.options().system = std::string(arguments);
    return {Kind::kSay, arguments.empty() ? "the system message is the template's own"
                                          : "the system message is set"};
  }
  // A "/" alone is near to every short name.
  const std::string nearest = command.size() < 3 ? "" : Suggestion(command, kCommands);
  return {Kind::kComplain,
          fmt::format("there is no command {}{} /help lists them; //... asks what begins with /",
                      QuotedForMessage(word), nearest.empty() ? ";" : nearest)};
}

}  // namespace baton::cli
