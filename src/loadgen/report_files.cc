#include "src/loadgen/report_files.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "nlohmann/json.hpp"

#include "src/base/unique_fd.h"

namespace baton::loadgen {
namespace {

using nlohmann::ordered_json;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "unknown";
}

// NaN is no JSON.
ordered_json Number(double value) {
  return std::isnan(value) ? ordered_json() : ordered_json(value);
}

ordered_json SummaryJson(const Summary& s) {
  ordered_json json;
  json["samples"] = s.count;
  if (s.count == 0) return json;
  json["mean_us"] = Number(s.mean);
  json["p50_us"] = Number(s.p50);
  json["p90_us"] = Number(s.p90);
  json["p99_us"] = s.p99_holds() ? Number(s.p99) : ordered_json();
  json["max_us"] = Number(s.max);
  return json;
}

ordered_json ReportJson(const RunReport& report) {
  ordered_json json;
  json["attempted"] = report.attempted;
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    json[std::string(OutcomeName(static_cast<RequestOutcome>(i)))] = report.by_outcome[i];
  }
  json["golden_asked"] = report.golden_asked;
  json["golden_wrong"] = report.golden_wrong;
  json["wrong_work"] = report.wrong_work;
  json["wall_s"] = report.wall_s;
  json["requests_per_s"] = report.requests_per_s;
  json["output_tokens_per_s"] = report.output_tokens_per_s;
  json["input_tokens_per_s"] = report.input_tokens_per_s;
  json["goodput_per_s"] = report.goodput_per_s;
  json["goodput_share"] = report.goodput_share;
  if (report.cached_share) json["cached_share"] = *report.cached_share;
  json["ttft"] = SummaryJson(report.ttft);
  json["ttft_sent"] = SummaryJson(report.ttft_sent);
  json["ttft_server"] = SummaryJson(report.ttft_server);
  json["second_token"] = SummaryJson(report.second_token);
  json["itl"] = SummaryJson(report.itl);
  json["tpot"] = SummaryJson(report.tpot);
  json["e2e"] = SummaryJson(report.e2e);
  json["start_lag"] = SummaryJson(report.start_lag);
  json["read_lag"] = SummaryJson(report.read_lag);
  json["client_cores"] = report.client_cores;
  for (size_t i = 0; i < kNumStages; ++i) {
    if (report.stage_mean_ms[i]) {
      json["stage_mean_ms"][std::string(StageName(i))] = *report.stage_mean_ms[i];
    }
  }
  json["cut_short"] = report.cut_short;
  json["void"] = report.void_reasons;
  return json;
}

std::string Quoted(const std::string& text) {
  return ordered_json(text).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// A record on one line: the first token's time, then gaps.
void AppendRecord(const RequestRecord& record, std::string& out) {
  out += fmt::format(
      "{{\"session\":{},\"turn\":{},\"intended_us\":{},\"sent_us\":{},\"end_us\":{},"
      "\"outcome\":\"{}\",\"want_input\":{},\"want_output\":{}",
      record.session_idx, record.turn_idx, record.intended_us, record.sent_us, record.end_us,
      OutcomeName(record.outcome), record.want_input, record.want_output);
  const AnswerFacts& facts = record.facts;
  if (facts.prompt_tokens) out += fmt::format(",\"prompt_tokens\":{}", *facts.prompt_tokens);
  if (facts.completion_tokens) {
    out += fmt::format(",\"completion_tokens\":{}", *facts.completion_tokens);
  }
  if (facts.cached_tokens) out += fmt::format(",\"cached_tokens\":{}", *facts.cached_tokens);
  if (record.golden_idx) {
    out +=
        fmt::format(",\"golden\":{},\"golden_wrong\":{}", *record.golden_idx, record.golden_wrong);
  }
  if (facts.stages) {
    out += ",\"stages_ms\":[";
    for (size_t i = 0; i < kNumStages; ++i) {
      out += fmt::format("{}{:g}", i == 0 ? "" : ",", StageMs(*facts.stages, i));
    }
    out += ']';
  }
  if (!record.error.empty()) out += ",\"error\":" + Quoted(record.error);
  if (!record.token_us.empty()) {
    out += fmt::format(",\"first_token_us\":{},\"gaps_us\":[", record.token_us.front());
    for (size_t i = 1; i < record.token_us.size(); ++i) {
      out += fmt::format("{}{}", i == 1 ? "" : ",", record.token_us[i] - record.token_us[i - 1]);
    }
    out += ']';
  }
  out += '}';
}

void AppendLags(const char* name, const std::vector<double>& lags, std::string& out) {
  out += fmt::format(",\n\"{}\":[", name);
  for (size_t i = 0; i < lags.size(); ++i)
    out += fmt::format("{}{:.0f}", i == 0 ? "" : ",", lags[i]);
  out += ']';
}

}  // namespace

Environment ReadEnvironment(std::string_view version) {
  Environment environment;
  environment.cpu = CpuName();
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    environment.cores = static_cast<uint32_t>(CPU_COUNT(&set));
  }
  environment.clocks = FirstLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (environment.clocks.empty()) environment.clocks = "portable";
  utsname names{};
  (void)uname(&names);
  environment.kernel = fmt::format("{} {}", names.sysname, names.release);
  environment.version = std::string(version);
  return environment;
}

std::string ToString(const Environment& environment) {
  return fmt::format("{}, {} cores, clocks {}, {}, baton {}", environment.cpu, environment.cores,
                     environment.clocks, environment.kernel, environment.version);
}

std::string RunToJson(const ReportedRun& run) {
  ordered_json head;
  head["label"] = run.label;
  head["rate"] = run.rate;
  head["report"] = ReportJson(run.report);
  std::string out = head.dump(1, ' ', false, ordered_json::error_handler_t::replace);
  out.resize(out.rfind('\n'));
  out += ",\n\"requests\":[";
  bool first = true;
  for (const RequestRecord& record : run.result->records) {
    out += std::exchange(first, false) ? "\n" : ",\n";
    AppendRecord(record, out);
  }
  out += ']';
  AppendLags("start_lag_us", run.result->start_lag_us, out);
  AppendLags("read_lag_us", run.result->read_lag_us, out);
  return out + "}";
}

std::string ToJson(const JsonFile& file) {
  ordered_json head;
  head["benchmark"] = "load";
  head["cpu"] = file.environment.cpu;
  head["cores"] = file.environment.cores;
  head["clocks"] = file.environment.clocks;
  head["system"] = file.environment.kernel;
  head["version"] = file.environment.version;
  for (const auto& [name, value] : file.settings) head["settings"][name] = value;
  std::string out = head.dump(1, ' ', false, ordered_json::error_handler_t::replace);
  out.resize(out.rfind('\n'));
  if (!file.extra_key.empty()) out += fmt::format(",\n\"{}\":{}", file.extra_key, file.extra_json);
  out += ",\n\"runs\":[";
  for (size_t i = 0; i < file.runs.size(); ++i) {
    out += (i == 0 ? "\n" : ",\n") + RunToJson(file.runs[i]);
  }
  return out + "]}\n";
}

Status CheckWritable(const std::string& path) {
  // A file that is made to see whether it can be is no result: it goes again.
  const UniqueFd fresh(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (fresh) {
    (void)unlink(path.c_str());
    return OkStatus();
  }
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return Unavailable("{} cannot be written: {}", path, std::strerror(errno));
  return OkStatus();
}

Status WriteWholeFile(const std::string& path, std::string_view text) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return Unavailable("{} cannot be written: {}", path, std::strerror(errno));
  while (!text.empty()) {
    const ssize_t written = write(fd.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return Unavailable("{} is incomplete: {}", path, std::strerror(written < 0 ? errno : ENOSPC));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  // Some file systems report a full disk only here. Pipes and devices cannot be synced.
  if (fsync(fd.get()) != 0 && errno != EINVAL && errno != EROFS) {
    return Unavailable("{} is incomplete: {}", path, std::strerror(errno));
  }
  if (close(fd.release()) != 0) {
    return Unavailable("{} is incomplete: {}", path, std::strerror(errno));
  }
  return OkStatus();
}

}  // namespace baton::loadgen
