// `baton eval`: how well a model file predicts a text.
#include <cstdio>

#include "src/base/limits.h"
#include "src/base/print.h"
#include "src/base/regular_file.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/model_store.h"
#include "src/cli/perplexity.h"
#include "src/loadgen/report_files.h"
#include "src/text/utf8.h"

namespace baton::cli {

using kernels::ParseIsa;
using kv::KvDtype;
using kv::KvDtypeNamed;
using limits::kMaxEncodeBytes;
using loadgen::CheckWritable;
using loadgen::WriteWholeFile;
using text::ValidUtf8Prefix;

namespace {

// The flags as they were typed.
struct EvalFlags {
  std::string text_file;
  std::string model = "smollm2:135m";
  std::string isa = "auto";
  std::string kv_dtype = "bf16";
  std::string json;
  int64_t context = 0;
  int64_t threads = 0;
};

StatusOr<std::string> ReadText(const std::string& path) {
  StatusOr<std::string> text = ReadRegularFile(path, kMaxEncodeBytes);
  if (text.ok() && text->empty()) text = InvalidArgument("0 bytes: nothing to predict");
  if (text.ok() && ValidUtf8Prefix(*text) != text->size()) {
    text = InvalidArgument("the text is not UTF-8 at byte {}", ValidUtf8Prefix(*text));
  }
  if (!text.ok()) return WithPrefix(text.status(), "--perplexity " + path);
  return text;
}

Status Eval(const EvalFlags& f) {
  // Before the minutes that the text takes.
  if (!f.json.empty()) BATON_RETURN_IF_ERROR(WithPrefix(CheckWritable(f.json), "--json"));
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadText(f.text_file));
  BATON_ASSIGN_OR_RETURN(const ModelFile model, ResolveModel(f.model));
  PerplexityOptions options;
  options.model_path = model.path;
  options.text = text;
  options.context = static_cast<uint32_t>(f.context);
  options.num_threads = NumComputeThreads(f.threads);
  BATON_ASSIGN_OR_RETURN(options.isa, ParseIsa(f.isa));
  options.kv_dtype = KvDtypeNamed(f.kv_dtype).value_or(KvDtype::kBf16);
  const StatusOr<PerplexityReport> report = MeasurePerplexity(options);
  if (!report.ok()) return WithPrefix(report.status(), model.path);
  Print("{}", report->ToText());
  if (f.json.empty()) return OkStatus();
  return WithPrefix(WriteWholeFile(f.json, report->ToJson() + "\n"), "--json");
}

}  // namespace

int RunEval(const std::vector<std::string>& args) {
  FlagSet flags("eval", "Measures how well a model predicts a text.");
  EvalFlags f;
  flags.Add("--perplexity", f.text_file, "the text: a UTF-8 file of at most 4 MiB");
  flags.Add("--model", f.model, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.Add("--context", f.context, {0, limits::kMaxContextTokens},
            "tokens of a window, at least 2; 0 = 2048 or the model's, if that is shorter");
  flags.Add("--threads", f.threads, kThreadsRange, "compute threads; 0 = all processors");
  flags.AddChoice("--isa", f.isa, {"auto", "avx512", "avx2", "portable"},
                  "instruction set of the CPU backend");
  flags.AddChoice("--kv-dtype", f.kv_dtype, {"bf16", "f32", "q8"}, "type of stored K and V");
  flags.Add("--json", f.json, "also write the result to this file");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (f.text_file.empty()) {
    return Fail("eval", InvalidArgument("--perplexity is missing: the text file to predict"),
                kExitUsage);
  }
  if (f.context == 1) {
    return Fail("eval", InvalidArgument("--context 1 leaves nothing to predict from; at least 2"),
                kExitUsage);
  }
  const Status status = Eval(f);
  return status.ok() ? kExitOk : Fail("eval", status);
}

}  // namespace baton::cli
