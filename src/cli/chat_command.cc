// `baton run` (a private server and a chat with it) and `baton chat` (a chat with a running
// server).
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/mutex.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/base/thread.h"
#include "src/base/unique_fd.h"
#include "src/cli/chat_session.h"
#include "src/cli/child_process.h"
#include "src/cli/commands.h"
#include "src/cli/conversation.h"
#include "src/cli/flags.h"
#include "src/cli/foreign_flags.h"
#include "src/cli/line_editor.h"
#include "src/cli/model_store.h"
#include "src/cli/piped_text.h"
#include "src/cli/run_folders.h"
#include "src/cli/worker_flags.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kServeStartLimitMs = 600'000;
constexpr int64_t kServeStopLimitMs = 10'000;

// Flags of both commands.
struct ChatFlags {
  std::string prompt;
  std::string system;
  std::string temperature = "0";
  int64_t max_tokens = 0;
  int64_t seed = -1;
  bool json = false;
  std::string json_schema;
  std::string api_key_env;  // of `chat` alone
  std::string model;        // of `chat` alone; "" = the only one
};

void DeclareChat(FlagSet& flags, ChatFlags& f) {
  flags.Add("--prompt", f.prompt,
            "answer this, with what a file or pipe at standard input holds after it, once and "
            "exit; without it, read questions");
  flags.Add("--system", f.system, "system message");
  flags.Add("--temperature", f.temperature,
            fmt::format("0 = always the likeliest token; at most {}", ChatMaxTemperature()));
  flags.Add("--max-tokens", f.max_tokens, {kChatMaxTokens.low, kChatMaxTokens.high},
            "longest answer; 0 = up to the context");
  flags.Add("--seed", f.seed, {kChatSeed.low, kChatSeed.high}, "random seed; -1 = drawn");
  flags.Add("--json", f.json, "print each answer as one line of JSON, with usage and times");
  flags.Add("--json-schema", f.json_schema,
            "JSON schema that answers follow: {...}, or a file that holds it");
}

// Says which flag here does the work of other programs' flags of a question. AddForeignHints comes
// before: its hints speak of servers.
void AddChatHints(FlagSet& flags) {
  flags.AddHint("-p", "one question is --prompt TEXT");
  flags.AddHint("--temp", "it is --temperature T");
  for (const char* name : {"-n", "--n-predict", "--predict", "--num-predict", "--max-new-tokens"}) {
    flags.AddHint(name, "the longest answer is --max-tokens N");
  }
  for (const char* name : {"--system-prompt", "-sys"}) {
    flags.AddHint(name, "the system message is --system TEXT");
  }
}

// `text`: the schema itself or a file. Whether it can be followed is the server's to say.
StatusOr<std::string> ReadSchema(const std::string& text) {
  std::string schema = text;
  if (!text.starts_with('{')) {
    StatusOr<std::string> file = ReadInput(text, limits::kMaxGrammarBytes);
    if (!file.ok()) return WithPrefix(file.status(), QuotedForMessage(text));
    schema = *std::move(file);
  }
  if (!nlohmann::json::parse(schema, nullptr, /*allow_exceptions=*/false).is_object()) {
    return InvalidArgument("{} is no JSON object", QuotedForMessage(text));
  }
  return schema;
}

StatusOr<ChatOptions> BuildOptions(const FlagSet& flags, const ChatFlags& f,
                                   const std::string& url) {
  ChatOptions options;
  if (f.prompt.empty() && flags.Given("--prompt")) {
    return InvalidArgument("--prompt is empty; give a question, or leave it out to be asked");
  }
  BATON_RETURN_IF_ERROR(WithPrefix(CheckChatText(f.prompt), "--prompt"));
  BATON_RETURN_IF_ERROR(WithPrefix(CheckChatText(f.system), "--system"));
  BATON_ASSIGN_OR_RETURN(options.url, ParseServer(url));
  if (!f.api_key_env.empty()) {
    const char* const key = std::getenv(f.api_key_env.c_str());
    if (key == nullptr) return InvalidArgument("--api-key-env {} is not set", f.api_key_env);
    options.api_key = key;
  }
  if (flags.Given("--json-schema")) {
    StatusOr<std::string> schema = ReadSchema(f.json_schema);
    if (!schema.ok()) return WithPrefix(schema.status(), "--json-schema");
    options.json_schema = *std::move(schema);
  }
  options.model = f.model;
  options.system = f.system;
  options.max_tokens = f.max_tokens;
  options.seed = f.seed;
  const StatusOr<double> temperature = ParseChatTemperature(f.temperature);
  if (!temperature.ok()) return WithPrefix(temperature.status(), "--temperature");
  options.temperature = *temperature;
  return options;
}

// Nobody at a terminal and nothing to read: there will be no question. Waits for the first byte.
bool InputIsEmpty() {
  return ::isatty(STDIN_FILENO) == 0 &&
         (std::cin >> std::ws).peek() == std::char_traits<char>::eof();
}

// Asks InputIsEmpty only when the input has something to read or has ended. A pipe that is still
// silent may yet bring a question.
bool InputHasEnded() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) > 0 && InputIsEmpty();
}

int FailWithoutQuestion(std::string_view command) {
  return Fail(command, InvalidArgument("standard input has no question; give --prompt TEXT"),
              kExitUsage);
}

// FailedPrecondition where each question would be refused: the model has no chats.
Status CheckChats(const ChatOptions& options, std::string_view model) {
  constexpr int64_t kLimitMs =
      2000;  // a server that is busy may have chats: it is asked the question
  const std::string why = ChatSession(options).WhyNoChats(kLimitMs);
  if (why.empty()) return OkStatus();
  return FailedPrecondition("no chats with {}: {}; `baton run smollm2:135m` chats",
                            model.empty() ? "the server's model" : model, why);
}

// `begun_us`: when the command began.
int Converse(std::string_view command, const ChatFlags& f, ChatOptions options, int64_t begun_us) {
  const std::unique_ptr<AnswerPrinter> printer = MakeAnswerPrinter(f.json);
  options.on_thought = [&printer](std::string_view text) { printer->OnThought(text); };
  options.wants_more = [] { return std::ferror(stdout) == 0; };
  options.is_interrupted = &InterruptCounter::Interrupted;
  ChatSession session(std::move(options));
  if (f.prompt.empty()) {
    if (InputIsEmpty()) return FailWithoutQuestion(command);
    return Conversation(command, session, *printer).Hold();
  }
  StatusOr<std::string> question = WithPipedText(f.prompt, begun_us);
  if (!question.ok()) return Fail(command, question.status(), kExitUsage);
  const Status status = AskAndPrint(session, *printer, *question, stdout);
  if (std::ferror(stdout) != 0) return kExitFailure;  // main says why
  return status.ok() ? kExitOk : Fail(command, status);
}

// A `serve` process that lives as long as this object. Start and MarkClean are the main thread's;
// Stop may come from any.
class PrivateServer {
 public:
  explicit PrivateServer(std::string folder) : folder_(std::move(folder)) {}
  ~PrivateServer() { Stop(); }

  // Ends the process and waits for it; its folder goes with it when nothing failed. A second call
  // does nothing.
  void Stop() {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    EndProcess();
    std::error_code ignored;
    if (clean_) fs::remove_all(folder_, ignored);
  }

  // The server's HTTP address.
  StatusOr<std::string> Start(std::vector<std::string> args) {
    BATON_ASSIGN_OR_RETURN(ChildProcess* const process, StartProcess(std::move(args)));
    const int64_t deadline_us = SystemClock().NowUs() + kServeStartLimitMs * 1000;
    while (SystemClock().NowUs() < deadline_us) {
      pollfd fd{.fd = process->report_fd(), .events = POLLIN, .revents = 0};
      (void)::poll(&fd, 1, 1000);
      StatusOr<std::optional<ChildReport>> report = process->ReadReport();
      if (!report.ok()) {
        const std::string line = process->LastLogLine();
        return Unavailable("{}", line.empty() ? "the private server did not start" : line);
      }
      if (*report) return (*report)->at("http");
    }
    return DeadlineExceeded("the private server is not ready after {} s",
                            kServeStartLimitMs / 1000);
  }

  // Nothing failed, so nobody will ask for the logs.
  void MarkClean() { clean_ = true; }

 private:
  // The process stays once it is made: Stop only ends it.
  StatusOr<ChildProcess*> StartProcess(std::vector<std::string> args) {
    const MutexLock lock(mutex_);
    if (stopped_) return Cancelled("interrupted");
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) return Unavailable("cannot create {}: {}", folder_, error.message());
    args.push_back("--run-dir=" + folder_);
    const ChildSpec spec{.role = "serve",
                         .name = "serve",
                         .args = std::move(args),
                         .log_file = folder_ + "/serve.log"};
    BATON_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(spec));
    process_.emplace(std::move(process));
    return &*process_;
  }

  void EndProcess() BATON_REQUIRES(mutex_) {
    if (!process_) return;
    process_->Signal(SIGINT);
    const int64_t deadline_us = SystemClock().NowUs() + kServeStopLimitMs * 1000;
    int status = 0;
    while (::waitpid(process_->pid(), &status, WNOHANG) == 0) {
      if (SystemClock().NowUs() > deadline_us) process_->Signal(SIGKILL);
      (void)::poll(nullptr, 0, 5);
    }
  }

  const std::string folder_;
  Mutex mutex_;  // held until the process has ended: a second Stop waits for the first
  bool stopped_ BATON_GUARDED_BY(mutex_) = false;
  std::optional<ChildProcess> process_ BATON_GUARDED_BY(mutex_);
  std::atomic<bool> clean_ = false;
};

// Ctrl-C, SIGTERM or SIGHUP during `run`: ends the private server, takes its folder away and ends
// this process, whatever the main thread waits for (a line of the terminal, an answer). Made before
// the server starts.
class InterruptWatch {
 public:
  explicit InterruptWatch(PrivateServer& server) : server_(server) {
    sigset_t mask;
    sigemptyset(&mask);
    for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, number);
    ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
    signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC));
    quit_.reset(::eventfd(0, EFD_CLOEXEC));
    thread_ = Thread("signals", [this] { Loop(); });
  }
  ~InterruptWatch() {
    const uint64_t one = 1;
    (void)!::write(quit_.get(), &one, sizeof(one));
    thread_.Join();
  }
  // From here on Ctrl-C belongs to the conversation. The watch must not read it too.
  void LeaveInterrupts() {
    sigset_t mask;
    sigemptyset(&mask);
    for (int number : {SIGTERM, SIGHUP}) sigaddset(&mask, number);
    (void)::signalfd(signals_.get(), &mask, SFD_CLOEXEC);
  }
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  void Loop() {
    pollfd fds[] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                    {.fd = quit_.get(), .events = POLLIN, .revents = 0}};
    while (::poll(fds, 2, -1) < 0) {
    }
    signalfd_siginfo info;
    if (fds[0].revents == 0 || ::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
    server_.MarkClean();
    server_.Stop();
    // This is not exit(): the main thread still uses what exit's handlers would take down.
    ::_exit(128 + static_cast<int>(info.ssi_signo));
  }

  PrivateServer& server_;
  UniqueFd signals_;
  UniqueFd quit_;  // eventfd: ends the thread
  Thread thread_;
};

// Flags of `run` that the private server gets.
struct RunFlags {
  std::string model = "smollm2:135m";
  std::string mode = "disagg";
  int64_t threads = 0;
  WorkerTuning tuning;
};

}  // namespace

int RunChat(const std::vector<std::string>& args) {
  const int64_t begun_us = SystemClock().NowUs();
  FlagSet flags("chat", "Chats with a running server.");
  std::string url = "http://127.0.0.1:8080";
  ChatFlags f;
  flags.Add("--url", url, "the server's HTTP API: HOST:PORT or a URL");
  flags.Add("--api-key-env", f.api_key_env, "environment variable that holds the API key");
  flags.AddHint("--api-key",
                "a key is not for a command line: --api-key-env NAME names its variable");
  flags.AddHint("", "a chat asks for its questions; `baton chat --prompt TEXT` asks one and ends");
  for (const char* name : {"--admin", "--http", "--host", "--port", "--base-url", "--server"}) {
    flags.AddHint(name, "chat takes the HTTP address: --url HOST:PORT");
  }
  flags.AddHint("-m", "one of several models is asked by --model NAME");
  AddChatHints(flags);
  flags.Add("--model", f.model,
            "the model to ask, by a name of the server's /v1/models; not needed where it has one");
  DeclareChat(flags, f);
  AddServeFlagsElsewhere(flags);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<ChatOptions> options = BuildOptions(flags, f, url);
  if (!options.ok()) return Fail("chat", options.status(), kExitUsage);
  if (const Status s = CheckChats(*options, f.model); !s.ok()) return Fail("chat", s);
  return Converse("chat", f, *options, begun_us);
}

int RunRun(const std::vector<std::string>& args) {
  const int64_t begun_us = SystemClock().NowUs();
  FlagSet flags("run", "Starts a private server on free ports and chats with it.");
  RunFlags run;
  ChatFlags f;
  flags.Add("MODEL", run.model, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.Add("PROMPT", f.prompt, "as --prompt");
  flags.AddChoice("--mode", run.mode, {"disagg", "aggregated", "adaptive"}, "who computes prompts");
  flags.Add("--threads", run.threads, {0, 1024}, "compute threads; 0 = one per processor");
  DeclareChat(flags, f);
  DeclareTuning(flags, run.tuning);
  AddForeignHints(flags, "the server of `run` is private; for `baton serve`: ");
  AddChatHints(flags);
  AddServeFlagsElsewhere(flags);
  flags.AddHint("--url",
                "`run` starts a server of its own; ask one that runs by `baton chat --url "
                "HOST:PORT`");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (flags.Given("PROMPT") && (flags.Given("--prompt") || f.prompt.empty())) {
    return Fail("run", InvalidArgument("give PROMPT or --prompt, one of them and not empty"),
                kExitUsage);
  }
  StatusOr<ChatOptions> options = BuildOptions(flags, f, "http://127.0.0.1:1");
  if (!options.ok()) return Fail("run", options.status(), kExitUsage);
  if (const Status status = CheckTuning(run.tuning); !status.ok()) {
    return Fail("run", status, kExitUsage);
  }
  if (const Status name = CheckPullName(run.model); !name.ok()) {
    return Fail("run", name, kExitUsage);
  }
  const StatusOr<ModelFile> model = ResolveOrPullModel(run.model);
  if (!model.ok()) return Fail("run", model.status());
  if (f.prompt.empty() && InputHasEnded()) return FailWithoutQuestion("run");

  ::signal(SIGPIPE, SIG_IGN);  // `run ... | head`: the server is ended all the same
  StatusOr<std::string> folder = MakeRunFolder();
  if (!folder.ok()) return Fail("run", folder.status());
  PrivateServer server(*std::move(folder));
  InterruptWatch watch(server);
  std::vector<std::string> serve_args = {run.model,
                                         "--http=127.0.0.1:0",
                                         "--grpc=127.0.0.1:0",
                                         "--admin=127.0.0.1:0",
                                         "--mode=" + run.mode,
                                         fmt::format("--threads={}", run.threads)};
  AppendTuning(run.tuning, serve_args);
  const StatusOr<std::string> address = server.Start(std::move(serve_args));
  if (!address.ok()) return Fail("run", address.status());
  options->url = *ParseHttpUrl("http://" + *address);
  if (const Status chats = CheckChats(*options, model->id); !chats.ok()) {
    server.MarkClean();  // the server did nothing wrong
    return Fail("run", chats);
  }
  if (f.prompt.empty() && ::isatty(STDIN_FILENO) != 0) watch.LeaveInterrupts();
  const int code = Converse("run", f, *options, begun_us);
  // A reader who has left, as `head` does, asks for no logs either.
  if (code == kExitOk || std::ferror(stdout) != 0) server.MarkClean();
  return code;
}

}  // namespace baton::cli
