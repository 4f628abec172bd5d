#include "src/loadgen/trace_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "nlohmann/json.hpp"

#include "src/base/regular_file.h"
#include "src/base/trimmed_text.h"
#include "src/loadgen/arrivals.h"
#include "src/loadgen/lengths.h"
#include "src/loadgen/quantity.h"

namespace baton::loadgen {
namespace {

using nlohmann::json;

constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr size_t kMaxTraceBytes = size_t{1} << 30;

// Days since 1970-01-01 of a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level
// date algorithms").
int64_t DaysFromCivil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

// The number in text[at, at + width), all digits.
std::optional<int64_t> Digits(std::string_view text, size_t at, size_t width) {
  int64_t value = 0;
  if (at + width > text.size()) return std::nullopt;
  for (const char c : text.substr(at, width)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

// Seconds east of Greenwich that end `text` ("Z", "+02:00", "-0730"), which are taken off it; 0
// when there are none.
std::optional<int64_t> TakeZoneSeconds(std::string_view* text) {
  if (text->ends_with('Z')) {
    text->remove_suffix(1);
    return 0;
  }
  constexpr size_t kDateSize = 10;  // its dashes are no signs
  const size_t sign = text->find_last_of("+-");
  if (sign == std::string_view::npos || sign < kDateSize) return 0;
  const std::string_view zone = text->substr(sign);
  const bool has_colon = zone.size() == 6 && zone[3] == ':';
  if (!has_colon && zone.size() != 5) return std::nullopt;
  const auto hours = Digits(zone, 1, 2);
  const auto minutes = Digits(zone, has_colon ? 4 : 3, 2);
  if (!hours || !minutes || *hours > 14 || *minutes > 59) return std::nullopt;
  text->remove_suffix(zone.size());
  const int64_t seconds = *hours * 3600 + *minutes * 60;
  return zone[0] == '-' ? -seconds : seconds;
}

// Microseconds of "2023-11-16 18:17:03.9799600" (1 to 9 decimals, or none), with or without a zone;
// a T may stand for the space, as ISO 8601 has it.
std::optional<int64_t> ParseDateUs(std::string_view text) {
  const std::optional<int64_t> zone_s = TakeZoneSeconds(&text);
  if (!zone_s) return std::nullopt;
  static constexpr std::string_view kShape = "dddd-dd-dd dd:dd:dd";
  if (text.size() < kShape.size() || text.size() > kShape.size() + 10) return std::nullopt;
  for (size_t i = 0; i < kShape.size(); ++i) {
    const bool is_iso = kShape[i] == ' ' && (text[i] == 'T' || text[i] == 't');
    if (kShape[i] != 'd' && text[i] != kShape[i] && !is_iso) return std::nullopt;
  }
  const auto year = Digits(text, 0, 4), month = Digits(text, 5, 2), day = Digits(text, 8, 2);
  const auto hour = Digits(text, 11, 2), minute = Digits(text, 14, 2), second = Digits(text, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (*month < 1 || *month > 12 || *day < 1 || *day > 31) return std::nullopt;
  if (*hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  int64_t fraction_us = 0;
  if (text.size() > kShape.size()) {
    const size_t digits = text.size() - kShape.size() - 1;
    const auto fraction = Digits(text, kShape.size() + 1, digits);
    if (text[kShape.size()] != '.' || digits == 0 || !fraction) return std::nullopt;
    fraction_us = std::llround(static_cast<double>(*fraction) *
                               std::pow(10.0, 6.0 - static_cast<double>(digits)));
  }
  const int64_t days = DaysFromCivil(*year, *month, *day);
  const int64_t seconds = days * 86400 + *hour * 3600 + *minute * 60 + *second - *zone_s;
  return seconds * 1'000'000 + fraction_us;
}

std::string_view WithoutBlanks(std::string_view text) { return Trimmed(text, " \t\r"); }

// The rest of `text` after its leading blanks and blank lines.
std::string_view WithoutBlankLines(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

// True for the header of Azure's table; other columns may follow its own.
bool IsAzureHeader(std::string_view line) {
  return line == kAzureHeader || line.starts_with(std::string(kAzureHeader) + ",");
}

// start_us is absolute here; the caller makes it relative. Columns after the first three are not
// read.
StatusOr<TraceRow> ParseAzureRow(std::string_view line) {
  std::vector<std::string_view> fields = SplitAt(line, ',');
  if (fields.size() < 3) return InvalidArgument("{} fields instead of 3", fields.size());
  for (std::string_view& field : fields) field = WithoutBlanks(field);
  TraceRow row;
  const std::optional<int64_t> at_us = ParseDateUs(fields[0]);
  if (!at_us) return InvalidArgument("TIMESTAMP '{}' is no date and time", fields[0]);
  row.start_us = *at_us;
  BATON_ASSIGN_OR_RETURN(const uint64_t input, ParseWhole(fields[1], {1, kMaxLength}));
  BATON_ASSIGN_OR_RETURN(const uint64_t output, ParseWhole(fields[2], {1, kMaxLength}));
  row.num_input = static_cast<uint32_t>(input);
  row.num_output = static_cast<uint32_t>(output);
  return row;
}

// A value for a message. Lists and objects are only named: writing one out follows its depth, which
// the file chooses.
std::string Written(const json& value) {
  if (value.is_array()) return "a list";
  return value.is_object() ? "an object" : value.dump().substr(0, 80);
}

StatusOr<uint64_t> Field(const json& object, const char* name, WholeRange range) {
  const auto found = object.find(name);
  if (found == object.end()) return InvalidArgument("{} is missing", name);
  if (!found->is_number_unsigned() || found->get<uint64_t>() < range.low ||
      found->get<uint64_t>() > range.high) {
    return InvalidArgument("{} {} is not a whole number in [{}, {}]", name, Written(*found),
                           range.low, range.high);
  }
  return found->get<uint64_t>();
}

StatusOr<std::vector<uint32_t>> BlockIds(const json& object, uint64_t num_input) {
  std::vector<uint32_t> ids;
  const auto found = object.find("hash_ids");
  if (found == object.end()) return ids;
  if (!found->is_array()) return InvalidArgument("hash_ids is not a list");
  for (const json& id : *found) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return InvalidArgument("hash_ids has {}, which is no block id", Written(id));
    }
    ids.push_back(id.get<uint32_t>());
  }
  const uint64_t blocks = (num_input + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (ids.size() != blocks) {
    return InvalidArgument("hash_ids has {} blocks, input_length {} needs {}", ids.size(),
                           num_input, blocks);
  }
  return ids;
}

StatusOr<TraceRow> ParseMooncakeRow(std::string_view line) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return InvalidArgument("it is no JSON object");
  TraceRow row;
  // A year in milliseconds.
  BATON_ASSIGN_OR_RETURN(const uint64_t at_ms, Field(object, "timestamp", {0, 31'536'000'000}));
  BATON_ASSIGN_OR_RETURN(const uint64_t input, Field(object, "input_length", {1, kMaxLength}));
  BATON_ASSIGN_OR_RETURN(const uint64_t output, Field(object, "output_length", {1, kMaxLength}));
  BATON_ASSIGN_OR_RETURN(row.block_ids, BlockIds(object, input));
  row.start_us = static_cast<int64_t>(at_ms) * 1000;
  row.num_input = static_cast<uint32_t>(input);
  row.num_output = static_cast<uint32_t>(output);
  return row;
}

// Closes a gzFile.
struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

}  // namespace

StatusOr<std::vector<TraceRow>> ParseTrace(std::string_view text, std::string_view name) {
  std::vector<TraceRow> rows;
  bool azure = false;
  size_t line_number = 0;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    line = WithoutBlanks(line);
    if (line_number == 1 && IsAzureHeader(line)) {
      azure = true;
      continue;
    }
    if (line.empty() && WithoutBlankLines(text).empty()) break;
    StatusOr<TraceRow> row = azure ? ParseAzureRow(line) : ParseMooncakeRow(line);
    if (row.ok() && !rows.empty() && row->start_us < rows.back().start_us) {
      row = InvalidArgument("the time goes back by {} us", rows.back().start_us - row->start_us);
    }
    if (!row.ok()) return WithPrefix(row.status(), fmt::format("{} line {}", name, line_number));
    rows.push_back(*std::move(row));
  }
  if (rows.empty()) return InvalidArgument("{} has no request", name);
  const int64_t first_us = rows.front().start_us;
  for (TraceRow& row : rows) row.start_us -= first_us;
  return rows;
}

StatusOr<std::vector<TraceRow>> ReadTraceFile(const std::string& path) {
  // zlib reads a file that is not gzip as it is.
  StatusOr<UniqueFd> input = OpenInput(path);
  if (!input.ok()) return WithPrefix(input.status(), path);
  const std::unique_ptr<gzFile_s, CloseGzip> file(gzdopen(input->get(), "rb"));
  if (file == nullptr) return ResourceExhausted("{}: no memory to read it", path);
  (void)input->release();  // the stream closes it
  std::string text;
  while (true) {
    const size_t old_size = text.size();
    text.resize(old_size + (size_t{1} << 20));
    const int got = gzread(file.get(), text.data() + old_size, 1 << 20);
    int code = Z_OK;
    const char* reason = gzerror(file.get(), &code);
    if (got < 0) return DataLoss("{} cannot be read: {}", path, reason);
    text.resize(old_size + static_cast<size_t>(got));
    if (got == 0 && code == Z_BUF_ERROR) return DataLoss("{} is a gzip file cut short", path);
    if (got == 0) break;
    if (text.size() > kMaxTraceBytes) {
      return ResourceExhausted("{} is larger than {} bytes", path, kMaxTraceBytes);
    }
  }
  return ParseTrace(text, path);
}

void ScaleTrace(const TraceScale& scale, RandomDraws& draws, std::vector<TraceRow>& rows) {
  for (size_t first = 0; scale.spread && first < rows.size();) {
    size_t end = first;
    while (end < rows.size() && rows[end].start_us == rows[first].start_us) ++end;
    // The rows after the last timestamp have no next one and stay.
    if (end == rows.size()) break;
    const double bucket_us = static_cast<double>(rows[end].start_us - rows[first].start_us);
    std::vector<int64_t> offsets;
    for (size_t i = first; i < end; ++i) {
      offsets.push_back(static_cast<int64_t>(bucket_us * draws.Uniform()));
    }
    std::sort(offsets.begin(), offsets.end());
    for (size_t i = first; i < end; ++i) rows[i].start_us += offsets[i - first];
    first = end;
  }
  for (TraceRow& row : rows) {
    row.start_us =
        std::llround(std::min(static_cast<double>(row.start_us) * scale.time, kMaxStartUs));
    const auto scaled = [&scale](uint32_t length) {
      const double value = std::round(length * scale.length);
      return static_cast<uint32_t>(std::clamp(value, 1.0, static_cast<double>(kMaxLength)));
    };
    row.num_input = scaled(row.num_input);
    row.num_output = scaled(row.num_output);
  }
}

}  // namespace baton::loadgen
