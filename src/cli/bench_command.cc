// `baton bench`: dispatches to the load client, and `baton bench model MODEL`: tokens a second of
// the forward pass, in the cases of llama-bench.
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "src/base/print.h"
#include "src/cli/bench_load_flags.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/model_store.h"
#include "src/engine/model_bench.h"
#include "src/loadgen/report_files.h"

namespace baton::cli {

using engine::DefaultModelBenchCases;
using engine::ModelBenchCase;
using engine::ModelBenchOptions;
using engine::ModelBenchReport;
using engine::ModelBenchRow;
using engine::RunModelBench;
using kernels::ParseIsa;
using kv::KvDtype;
using kv::KvDtypeNamed;
using loadgen::CheckWritable;
using loadgen::WriteWholeFile;

namespace {

// The flags as they were typed.
struct BenchFlags {
  std::string what;
  std::string model;
  std::string isa = "auto";
  std::string kv_dtype = "bf16";
  std::string json;
  std::string cases;
  int64_t threads = 0;
  int64_t repetitions = 5;
  int64_t chunk = 512;
};

void Declare(FlagSet& flags, BenchFlags& f) {
  flags.Add("WHAT", f.what, "model: the forward pass of one process, without a server");
  flags.Add("MODEL", f.model, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.Add("--threads", f.threads, kThreadsRange, "compute threads; 0 = all processors");
  flags.AddChoice("--isa", f.isa, {"auto", "avx512", "avx2", "portable"},
                  "instruction set of the CPU backend");
  flags.AddChoice("--kv-dtype", f.kv_dtype, {"bf16", "f32", "q8"}, "type of stored K and V");
  flags.Add("--repetitions", f.repetitions, {1, 1000}, "timed runs of each case");
  flags.Add("--chunk", f.chunk, {1, 8192}, "prompt tokens of one forward pass");
  flags.AddJoined(
      "--cases", f.cases,
      "e.g. pp512,tg64,tg64@2000,tg16x8@512; default pp128,pp512,pp2000,tg64,tg64@2000");
  flags.Add("--json", f.json, "also write the samples to this file");
}

std::optional<uint32_t> ParseCount(std::string_view text) {
  uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return count;
}

// Cuts `mark` and the number after it off the end of `text`, and returns the number. Returns
// `fallback` when `text` has no such mark.
std::optional<uint32_t> CutCount(std::string_view& text, char mark, uint32_t fallback) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return fallback;
  const std::optional<uint32_t> count = ParseCount(text.substr(at + 1));
  text = text.substr(0, at);
  return count;
}

// "pp512", "tg64", "tg64@2000", "tg16x8@512".
StatusOr<ModelBenchCase> ParseCase(std::string_view text) {
  std::string_view head = text;
  const std::optional<uint32_t> depth = CutCount(head, '@', 0);
  const std::optional<uint32_t> streams = CutCount(head, 'x', 1);
  const std::optional<uint32_t> count = ParseCount(head.substr(std::min<size_t>(2, head.size())));
  const bool prompt = head.substr(0, 2) == "pp";
  const bool known = prompt ? streams == 1u : head.substr(0, 2) == "tg";
  if (!known || !count || *count == 0 || !depth || !streams || *streams == 0) {
    return InvalidArgument(
        "--cases: '{}' is none of ppN, tgN, tgNxSTREAMS, each with or without @DEPTH", text);
  }
  ModelBenchCase result;
  (prompt ? result.num_prompt : result.num_generate) = *count;
  result.depth = *depth;
  result.num_streams = *streams;
  return result;
}

StatusOr<std::vector<ModelBenchCase>> ParseCases(std::string_view text) {
  if (text.empty()) return DefaultModelBenchCases();
  std::vector<ModelBenchCase> cases;
  while (true) {
    const size_t comma = text.find(',');
    BATON_ASSIGN_OR_RETURN(const ModelBenchCase one, ParseCase(text.substr(0, comma)));
    cases.push_back(one);
    if (comma == std::string_view::npos) return cases;
    text.remove_prefix(comma + 1);
  }
}

Status BenchModel(const BenchFlags& f, std::vector<ModelBenchCase> cases) {
  if (!f.json.empty()) BATON_RETURN_IF_ERROR(WithPrefix(CheckWritable(f.json), "--json"));
  ModelBenchOptions options;
  options.cases = std::move(cases);
  BATON_ASSIGN_OR_RETURN(const ModelFile model, ResolveModel(f.model));
  BATON_ASSIGN_OR_RETURN(options.isa, ParseIsa(f.isa));
  options.kv_dtype = KvDtypeNamed(f.kv_dtype).value_or(KvDtype::kBf16);
  options.model_path = model.path;
  options.num_threads = NumComputeThreads(f.threads);
  options.repetitions = static_cast<uint32_t>(f.repetitions);
  options.max_rows = static_cast<uint32_t>(f.chunk);
  const StatusOr<ModelBenchReport> report = RunModelBench(options, [](const ModelBenchRow& row) {
    Print(stderr, "{}: {:.1f} tokens/s\n", row.bench_case.Name(), row.median());
  });
  if (!report.ok()) return WithPrefix(report.status(), model.path);
  Print("{}", report->ToTable());
  if (f.json.empty()) return OkStatus();
  return WithPrefix(WriteWholeFile(f.json, report->ToJson() + "\n"), "--json");
}

// True for `bench model ...`: the first argument that belongs to no flag is the word. A model or a
// file that a flag names may be called so. (`bench model` itself has no switch but --help.)
bool WantsModel(const std::vector<std::string>& args) {
  FlagSet flags("bench", "");
  BenchLoadFlags load;
  DeclareBenchLoad(flags, load);
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with('-')) return args[i] == "model";
    const bool has_value = args[i].find('=') != std::string::npos;
    if (!has_value && !flags.IsSwitch(args[i])) ++i;  // its value
  }
  return false;
}

}  // namespace

int RunBench(const std::vector<std::string>& args) {
  if (!WantsModel(args)) return RunBenchLoad(args);
  FlagSet flags("bench", "Measures the forward pass on this machine.");
  BenchFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (f.model.empty()) {
    return Fail("bench",
                InvalidArgument("MODEL is missing: a .gguf file, a model folder or smollm2:135m"),
                kExitUsage);
  }
  StatusOr<std::vector<ModelBenchCase>> cases = ParseCases(f.cases);
  if (!cases.ok()) return Fail("bench", cases.status(), kExitUsage);
  const Status status = BenchModel(f, *std::move(cases));
  return status.ok() ? kExitOk : Fail("bench", status);
}

}  // namespace baton::cli
