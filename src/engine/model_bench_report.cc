// Prints and writes the report of `baton bench model`.
#include <algorithm>

#include "fmt/format.h"

#include "src/engine/model_bench.h"

namespace baton::engine {
namespace {

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

}  // namespace

std::string ModelBenchReport::ToTable() const {
  std::string text =
      fmt::format("{}, {} weights of {} MB, {} KV, {} threads, {}, {}\n\n", model_path, model_name,
                  weight_bytes / 1'000'000, kv_dtype, num_threads, isa, processor);
  text += "| case | tokens/s (median) | smallest | largest | of the limit |\n";
  text += "|---|---:|---:|---:|---:|\n";
  for (const ModelBenchRow& row : rows) {
    const auto [low, high] = std::minmax_element(row.tokens_per_s.begin(), row.tokens_per_s.end());
    text += fmt::format("| {} | {:.1f} | {:.1f} | {:.1f} | {:.0f} % of {} |\n",
                        row.bench_case.Name(), row.median(), *low, *high,
                        100.0 * row.work.Share(row.median()), row.work.limit);
  }
  return text;
}

std::string ModelBenchReport::ToJson() const {
  std::string text = fmt::format(
      "{{\"model\":{},\"name\":{},\"isa\":{},\"processor\":{},\"kv_dtype\":{},\"threads\":{},"
      "\"chunk\":{},\"weight_bytes\":{},\"results\":[",
      JsonString(model_path), JsonString(model_name), JsonString(isa), JsonString(processor),
      JsonString(kv_dtype), num_threads, chunk, weight_bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    const ModelBenchRow& row = rows[i];
    text += fmt::format(
        "{}{{\"case\":\"{}\",\"prompt\":{},\"generate\":{},\"streams\":{},\"depth\":{},"
        "\"limit\":\"{}\",\"work_per_token\":{:.0f},\"limit_per_s\":{:.4g},"
        "\"share_of_limit\":{:.4f},\"median\":{:.3f},\"tokens_per_s\":[",
        i > 0 ? "," : "", row.bench_case.Name(), row.bench_case.num_prompt,
        row.bench_case.num_generate, row.bench_case.num_streams, row.bench_case.depth,
        row.work.limit, row.work.per_token, row.work.limit_per_s, row.work.Share(row.median()),
        row.median());
    for (size_t j = 0; j < row.tokens_per_s.size(); ++j) {
      text += fmt::format("{}{:.3f}", j > 0 ? "," : "", row.tokens_per_s[j]);
    }
    text += "]}";
  }
  return text + "]}";
}

}  // namespace baton::engine
