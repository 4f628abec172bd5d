#include "src/cli/chat_line.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

#include "src/base/nearest_name.h"
#include "src/base/quoted_text.h"
#include "src/base/trimmed_text.h"
#include "src/cli/chat_file.h"

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
    "/model [NAME]             the server's models; ask this one from now on\n"
    "/split on|off|auto        prompts: a prefill worker's, the decode worker's own, the server's\n"
    "                          choice\n"
    "/stats [on|off]           the sums of this chat; the line after each answer\n"
    "/trace                    the stages of the last answer\n"
    "/save FILE, /load FILE    keep the conversation; go on with one\n"
    "/exit                     end the chat (also /quit, /bye and Ctrl-D)\n"
    "//TEXT                    ask something that begins with /\n"
    "\"\"\"                       begins a question of many lines, which ends with another one\n"
    "Ctrl-C stops an answer or drops what was typed; twice at an empty prompt it ends the chat.";

constexpr std::string_view kCommands[] = {"/help",  "/clear", "/system", "/set",   "/show",
                                          "/model", "/split", "/stats",  "/trace", "/save",
                                          "/load",  "/exit",  "/quit",   "/bye"};
constexpr std::string_view kSettings[] = {"temperature", "max-tokens", "seed"};

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

constexpr std::pair<std::string_view, std::string_view> kSplits[] = {
    {"on", "disagg"}, {"off", "local"}, {"auto", ""}};

std::string_view SplitName(std::string_view path) {
  for (const auto& [name, value] : kSplits) {
    if (value == path) return name;
  }
  return path;
}

std::string Shown(const ChatOptions& options) {
  return fmt::format(
      "server       {}\nmodel        {}\nsplit        {}\ntemperature  {}\nmax-tokens   {}\n"
      "seed         {}\nsystem       {}",
      options.url.ToString(), options.model.empty() ? "the server's only one" : options.model,
      SplitName(options.path), options.temperature,
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
            fmt::format("/set: there is no setting {}; it has temperature, max-tokens and seed{}",
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

ChatStep Split(std::string_view name, ChatOptions& options) {
  for (const auto& [known, path] : kSplits) {
    if (known != name) continue;
    options.path = path;
    return {Kind::kSay, fmt::format("split is {}", name)};
  }
  return {Kind::kComplain,
          fmt::format("/split: {} is not on, off or auto", QuotedForMessage(name))};
}

ChatStep Stats(std::string_view name, ChatSession& session) {
  if (name == "on" || name == "off") {
    session.options().shows_stats = name == "on";
    return {Kind::kSay, fmt::format("the line after each answer is {}", name)};
  }
  if (!name.empty()) {
    return {Kind::kComplain, fmt::format("/stats: {} is not on or off", QuotedForMessage(name))};
  }
  const ChatTotals& totals = session.totals();
  return {Kind::kSay,
          fmt::format("{} answers | {} prompt tokens, {} of them cached | {} tokens | KV {} bytes",
                      totals.num_answers, totals.prompt_tokens, totals.cached_tokens,
                      totals.completion_tokens, totals.kv_bytes)};
}

ChatStep Trace(const ChatSession& session) {
  if (!session.last().has_value()) return {Kind::kComplain, "/trace: there is no answer yet"};
  const AnswerStats& last = *session.last();
  return {Kind::kSay, fmt::format("{}\nwhat ran beside it: baton why --admin HOST:PORT {}",
                                  DescribeStages(last), last.request_id)};
}

ChatStep Model(std::string_view name, ChatSession& session) {
  const StatusOr<std::vector<std::string>> models = session.ListModels();
  if (!models.ok()) {
    return {Kind::kComplain, fmt::format("/model: {}", std::string(models.status().message()))};
  }
  std::vector<std::string_view> known(models->begin(), models->end());
  if (name.empty()) {
    std::string list;
    for (const std::string_view model : known) {
      const bool is_asked = model == session.options().model || known.size() == 1;
      list += fmt::format("{}{} {}", list.empty() ? "" : "\n", is_asked ? '*' : ' ', model);
    }
    return {Kind::kSay, list};
  }
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    return {Kind::kComplain,
            fmt::format("/model: the server has no {}; it has {}{}", QuotedForMessage(name),
                        fmt::join(known, ", "), Suggestion(name, known))};
  }
  session.options().model = std::string(name);
  return {Kind::kSay, fmt::format("the model is {}", name)};
}

ChatStep Keep(std::string_view command, std::string_view path, ChatSession& session) {
  if (path.empty()) return {Kind::kComplain, fmt::format("{} FILE: the file is missing", command)};
  const bool saves = command == "/save";
  const Status status =
      saves ? SaveChat(std::string(path), session) : LoadChat(std::string(path), session);
  if (!status.ok()) {
    return {Kind::kComplain, fmt::format("{}: {}", command, std::string(status.message()))};
  }
  return {Kind::kSay, fmt::format("{} messages {} {}", session.messages().size(),
                                  saves ? "are in" : "of", QuotedForMessage(path))};
}

}  // namespace

std::optional<ChatStep> QuotedQuestion::Push(std::string_view line) {
  std::string_view text = line;
  if (!is_open_) {
    const std::string_view begin = Trimmed(text);
    if (!begin.starts_with(kMark)) return TakeChatLine(line, *session_);
    is_open_ = true;
    text = begin.substr(kMark.size());
  }
  const size_t end = text.find(kMark);
  const std::string_view part = text.substr(0, end);
  const bool is_last = end != text.npos;
  if (text_.size() + part.size() > kMaxBytes) {
    Drop();
    return ChatStep{Kind::kComplain, fmt::format("a question has at most {} bytes", kMaxBytes)};
  }
  text_.append(part).append(is_last ? "" : "\n");
  if (!is_last) return std::nullopt;
  const std::string question(Trimmed(text_));
  const bool has_rest = !Trimmed(text.substr(end + kMark.size())).empty();
  Drop();
  if (has_rest) {
    return ChatStep{Kind::kComplain, "nothing may follow the \"\"\" that ends a question"};
  }
  if (const Status status = CheckChatText(question); !status.ok()) {
    return ChatStep{Kind::kComplain, std::string(status.message())};
  }
  return question.empty() ? ChatStep{} : ChatStep{Kind::kAsk, question};
}

void QuotedQuestion::Drop() {
  is_open_ = false;
  text_.clear();
}

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
  if (command == "/model") return Model(arguments, session);
  if (command == "/split") return Split(arguments, session.options());
  if (command == "/stats") return Stats(arguments, session);
  if (command == "/trace") return Trace(session);
  if (command == "/save" || command == "/load") return Keep(command, arguments, session);
  // A "/" alone is near to every short name.
  const std::string nearest = command.size() < 3 ? "" : Suggestion(command, kCommands);
  return {Kind::kComplain,
          fmt::format("there is no command {}{} /help lists them; //... asks what begins with /",
                      QuotedForMessage(word), nearest.empty() ? ";" : nearest)};
}

}  // namespace baton::cli
