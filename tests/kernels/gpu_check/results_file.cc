#include "tests/kernels/gpu_check/results_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <utility>

#include "src/base/status.h"

namespace baton::kernels::gpu_check {
namespace {

// The end of a head line; the checks follow it.
constexpr std::string_view kChecks = ",\"checks\":[";

bool WriteAll(int fd, std::string_view text, size_t offset) {
  while (!text.empty()) {
    const ssize_t count = pwrite(fd, text.data(), text.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<size_t>(count);
  }
  return true;
}

// "17 pass, 1 FAIL" of those that there are.
std::string Counted(const std::map<std::string, int>& counts,
                    std::initializer_list<const char*> words) {
  std::string line;
  for (const char* word : words) {
    const auto found = counts.find(word);
    if (found == counts.end()) continue;
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", found->second, word);
  }
  return line;
}

nlohmann::json Parse(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::string LineOf(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status ResultsFile::Open(const std::string& path, const nlohmann::json& head) {
  path_ = path;
  std::string line = LineOf(head);
  line.pop_back();
  line += head.empty() ? kChecks.substr(1) : kChecks;
  fd_.reset(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd_ || !WriteAll(fd_.get(), line, 0)) {
    return Internal("{} cannot be written: {}", path, std::strerror(errno));
  }
  size_bytes_ = line.size();
  return absl::OkStatus();
}

absl::Status ResultsFile::Write(const nlohmann::json& check, const nlohmann::json& tail) {
  std::string text;
  if (!check.is_null()) text = (has_checks_ ? "\n," : "\n") + LineOf(check);
  const size_t end = size_bytes_ + text.size();
  text += "\n]";
  for (const auto& [key, value] : tail.items()) {
    text += ",\n" + LineOf(key) + ":" + LineOf(value);
  }
  text += "\n}\n";
  if (size_bytes_ + text.size() > kMaxFileBytes) {
    return Internal("{} would have {} bytes, and {} MiB a file may come back", path_,
                    size_bytes_ + text.size(), kMaxFileBytes >> 20);
  }
  const bool is_written =
      WriteAll(fd_.get(), text, size_bytes_) &&
      ftruncate(fd_.get(), static_cast<off_t>(size_bytes_ + text.size())) == 0 &&
      (check.is_null() || fsync(fd_.get()) == 0);
  if (!is_written) return Internal("{} cannot be written: {}", path_, std::strerror(errno));
  size_bytes_ = end;
  has_checks_ = has_checks_ || !check.is_null();
  return absl::OkStatus();
}

nlohmann::json ReadResults(const std::string& path) {
  std::ifstream file(path);
  if (!file) return nullptr;
  std::ostringstream whole;
  whole << file.rdbuf();
  if (nlohmann::json results = Parse(whole.str()); results.is_object()) return results;
  std::istringstream lines(whole.str());
  std::string line;
  std::getline(lines, line);
  nlohmann::json results = Parse(line + "]}");
  if (!results.is_object() || !results.contains("checks")) return nullptr;
  while (std::getline(lines, line)) {
    if (line.starts_with(',')) line.erase(0, 1);
    nlohmann::json check = Parse(line);
    if (!check.is_object()) break;
    results["checks"].push_back(std::move(check));
  }
  results["cut"] = true;
  return results;
}

absl::Status MendResults(const std::string& path, nlohmann::json* results) {
  *results = ReadResults(path);
  if (!results->is_object() || !results->contains("cut")) return absl::OkStatus();
  nlohmann::json head = *results;
  head.erase("checks");
  const std::string part = path + ".part";
  ResultsFile mended;
  BATON_RETURN_IF_ERROR(mended.Open(part, head));
  BATON_RETURN_IF_ERROR(mended.Write(nullptr, nlohmann::json::object()));
  for (const nlohmann::json& check : (*results)["checks"]) {
    BATON_RETURN_IF_ERROR(mended.Write(check, nlohmann::json::object()));
  }
  if (std::rename(part.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return Internal("{} cannot be written: {}", path, std::strerror(errno));
}

std::string PageLineOf(const nlohmann::json& results, const std::string& stage) {
  if (!results.is_object() || !results.contains("checks")) return "";
  std::map<std::string, int> counts;
  std::map<std::string, int> targets;
  std::string last;
  for (const nlohmann::json& check : results["checks"]) {
    if (!stage.empty() && check.value("stage", stage) != stage) continue;
    ++counts[check.value("verdict", "unknown")];
    ++targets[check.value("target", "")];
    last = check.value("name", "");
  }
  std::string line = Counted(counts, {"pass", "FAIL", "stopped", "tool failed", "not run"});
  if (const std::string judged = Counted(targets, {"met", "missed", "not judged"});
      !judged.empty()) {
    line += "; targets: " + judged;
  }
  const auto add = [&line](const std::string& words) {
    line += (line.empty() ? "" : ", ") + words;
  };
  const std::string under_way = results.value("under_way", "");
  if (!under_way.empty()) add(fmt::format("ended in \"{}\"", under_way));
  if (results.contains("cut")) add(fmt::format("cut behind \"{}\"", last));
  return line;
}

std::map<std::string, double> MediansOf(const nlohmann::json& results) {
  std::map<std::string, double> medians;
  if (!results.is_object() || !results.contains("checks")) return medians;
  for (const nlohmann::json& check : results["checks"]) {
    const double us = check.value("median_us", 0.0);
    if (us > 0) medians[check.value("name", "")] = us;
  }
  return medians;
}

}  // namespace baton::kernels::gpu_check
