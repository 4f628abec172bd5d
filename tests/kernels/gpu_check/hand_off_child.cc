#include "tests/kernels/gpu_check/hand_off_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "src/base/log.h"
#include "tests/kernels/gpu_check/hand_off_sender.h"

namespace baton::kernels::gpu_check {

using kv::HostId;
using kv::PeerAddress;
using kv::ReceiveSpec;
using kv::TransportKind;

namespace {

// The line that the child writes before it dials the process that started it.
constexpr char kDials[] = "it dials";

// The work that the child does for the process that started it.
class Servant {
 public:
  Servant(HandOffSide* side, Incarnation starter, int64_t patience_us)
      : side_(side), starter_(starter), patience_us_(patience_us), sender_(side, starter) {}

  Status FillBlocks(bool is_wrong) { return sender_.FillBlocks(is_wrong); }
  // Until the other one hangs up.
  Status Serve();

 private:
  Status Obey(const nlohmann::json& word);
  // Blocks from the first on, of generation 1.
  Status Take(const nlohmann::json& word);
  Status Answer(const char* verb, const nlohmann::json& word) {
    return side_->transport()->SendControl(
        starter_, fmt::format("{} {}", verb, word["transfer"].get<uint64_t>()));
  }

  HandOffSide* const side_;
  const Incarnation starter_;
  const int64_t patience_us_;
  HandOffSender sender_;
};

Status Servant::Take(const nlohmann::json& word) {
  ReceiveSpec spec = {
      .transfer = TransferId(word["transfer"].get<uint64_t>()), .attempt = 1, .peer = starter_};
  for (uint32_t i = 0; i < word["blocks"].get<uint32_t>(); ++i) {
    spec.blocks.push_back({BlockIndex(i), 1});
  }
  return side_->transport()->OpenReceive(std::move(spec));
}

Status Servant::Obey(const nlohmann::json& word) {
  const auto verb = word["verb"].get<std::string>();
  if (verb == "go") return sender_.Send();
  if (verb == "flood") {
    sender_.Flood([] { return false; });
    return OkStatus();
  }
  if (verb == "close") {
    BATON_RETURN_IF_ERROR(sender_.Close(patience_us_));
    return Answer("closed", word);
  }
  if (verb == "take") {
    BATON_RETURN_IF_ERROR(Take(word));
  } else {
    sender_.Prepare({TransferId(word["transfer"].get<uint64_t>()), word["first"].get<uint32_t>(),
                     word["generations"].get<std::vector<uint32_t>>()});
  }
  return Answer("ready", word);
}

Status Servant::Serve() {
  // The other one compares bytes between two words.
  const int64_t limit_us = 4 * patience_us_;
  for (size_t next = 0;; ++next) {
    BATON_RETURN_IF_ERROR(side_->sink()->WaitFor("a word", limit_us, [&](const auto& events) {
      return events.words.size() > next || !events.down_us.empty();
    }));
    const HandOffEvents now = side_->sink()->Snapshot();
    if (now.words.size() <= next) return OkStatus();
    BATON_RETURN_IF_ERROR(Obey(nlohmann::json::parse(now.words[next])));
  }
}

Status Run(const nlohmann::json& config) {
  const SideOptions options = {.kind = static_cast<TransportKind>(config["kind"].get<int>()),
                               .on_runner = config["on_runner"].get<bool>(),
                               .num_ranks = config["ranks"].get<uint32_t>(),
                               .nccl_library = config["nccl"].get<std::string>(),
                               .incarnation = Incarnation(config["own"].get<uint64_t>())};
  const Incarnation starter(config["starter"].get<uint64_t>());
  BATON_ASSIGN_OR_RETURN(const auto side, HandOffSide::Open(options));
  Servant servant(side.get(), starter, HandOffPatienceUs(options.on_runner));
  BATON_RETURN_IF_ERROR(servant.FillBlocks(config["is_wrong"].get<bool>()));
  const PeerAddress address = {.worker_id = "decode-0",
                               .incarnation = starter,
                               .host_id = HostId(),
                               .tcp = config["tcp"].get<std::string>(),
                               .unix_name = config["unix"].get<std::string>()};
  std::printf("%s\n", kDials);
  std::fflush(stdout);
  BATON_RETURN_IF_ERROR(side->endpoint()->SetPeers({&address, 1}));
  return servant.Serve();
}

}  // namespace

int RunHandOffChild(const std::string& text) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)InitLog({.role = "child", .level = LogLevel::kWarn});
  const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return 2;
  // Its parent was gone before it asked to be told.
  if (getppid() != config.value("parent", 0)) return 1;
  const Status status = Run(config);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

Status HandOffChild::Start(HandOffSide* starter, const SideOptions& options, bool is_wrong) {
  const nlohmann::json config = {{"parent", getpid()},
                                 {"kind", static_cast<int>(options.kind)},
                                 {"on_runner", options.on_runner},
                                 {"ranks", options.num_ranks},
                                 {"nccl", options.nccl_library},
                                 {"own", options.incarnation.value()},
                                 {"starter", starter->incarnation().value()},
                                 {"tcp", starter->endpoint()->tcp_address()},
                                 {"unix", starter->endpoint()->unix_name()},
                                 {"is_wrong", is_wrong}};
  BATON_RETURN_IF_ERROR(program_.Start({OwnPath(), kHandOffChildFlag, config.dump()}));
  reader_ = Thread("child-output", [this, starter, own = options.incarnation] {
    bool has_dialled = false;
    while (program_.Read(/*wait=*/true, &output_)) {
      if (has_dialled || output_.find(kDials) == std::string::npos) continue;
      has_dialled = true;
      starter->sink()->NoteDials(own);
    }
    starter->sink()->NoteEnded(own);
  });
  return OkStatus();
}

std::string HandOffChild::Output() {
  program_.Kill();
  reader_.Join();
  std::string_view rest = output_;
  while (rest.ends_with('\n')) rest.remove_suffix(1);
  return std::string(rest.substr(rest.rfind('\n') + 1));
}

}  // namespace baton::kernels::gpu_check
