// `baton convert`: a model as one GGUF file with its matrices in another type.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "src/base/clock.h"
#include "src/base/print.h"
#include "src/base/size_text.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/model_store.h"
#include "src/cli/tokenizer_keys.h"
#include "src/device/thread_pool.h"
#include "src/model/convert.h"
#include "src/model/hf_folder.h"
#include "src/model/model_config.h"        // IWYU pragma: keep
#include "src/model/tokenizer_metadata.h"  // IWYU pragma: keep
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"

namespace baton::cli {

using device::ThreadPool;
using model::ConvertModel;
using model::ConvertOptions;
using model::GgufFile;
using model::GgufWriter;
using model::OpenModelFile;
using model::ParseConvertType;
using text::ReadModelTokenizer;
using text::Tokenizer;
using text::TokenizerSpec;

namespace {

namespace fs = std::filesystem;

// The flags as they were typed.
struct ConvertFlags {
  std::string source;
  std::string target;
  std::string type = "bf16";
  int64_t threads = 0;
};

// Finds an error in the target before anything is read.
Status CheckTarget(const std::string& source, const std::string& target) {
  std::error_code error;
  if (fs::equivalent(source, target, error)) {
    return InvalidArgument("SRC and DST are the same: {}", target);
  }
  if (fs::is_directory(target, error)) {
    return InvalidArgument("DST {} is a folder; name the file to write", target);
  }
  const fs::path folder = fs::path(target).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error)) {
    return NotFound("DST {} is in no folder that exists", target);
  }
  return OkStatus();
}

Status Convert(const ConvertFlags& f) {
  BATON_ASSIGN_OR_RETURN(const ModelFile source, ResolveModel(f.source));
  BATON_RETURN_IF_ERROR(CheckTarget(source.path, f.target));
  StatusOr<std::unique_ptr<GgufFile>> opened = OpenModelFile(source.path);
  if (!opened.ok()) return WithPrefix(opened.status(), source.path);
  const std::unique_ptr<GgufFile> file = *std::move(opened);
  const StatusOr<TokenizerSpec> spec = ReadModelTokenizer(*file, source.path);
  if (!spec.ok()) return WithPrefix(spec.status(), source.path);
  // A file that serve would refuse is not worth writing.
  if (const Status s = Tokenizer::Create(*spec).status(); !s.ok()) {
    return WithPrefix(s, source.path);
  }
  ThreadPool pool(NumComputeThreads(f.threads));
  ConvertOptions options{.type = {}, .pool = &pool, .add_keys = nullptr};
  BATON_ASSIGN_OR_RETURN(options.type, ParseConvertType(f.type));
  if (file->is_folder()) {
    options.add_keys = [&spec](GgufWriter& writer) { AddTokenizerKeys(*spec, writer); };
  }
  const int64_t start_us = SystemClock().NowUs();
  BATON_RETURN_IF_ERROR(ConvertModel(*file, options, f.target));
  const double seconds = static_cast<double>(SystemClock().NowUs() - start_us) / 1e6;
  std::error_code error;
  Print("{}: {}, {} from {} in {:.1f} s\n", f.target, FormatSize(fs::file_size(f.target, error)),
        f.type, FormatSize(file->file_bytes()), seconds);
  return OkStatus();
}

}  // namespace

int RunConvert(const std::vector<std::string>& args) {
  FlagSet flags("convert", "Writes a model as one GGUF file with its matrices in another type.");
  ConvertFlags f;
  flags.Add("SRC", f.source, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.Add("DST", f.target, "the file to write; must not exist");
  flags.AddChoice("--type", f.type, {"bf16", "q8_0", "q4_0", "q4_1"}, "type of the matrices");
  flags.Add("--threads", f.threads, kThreadsRange, "compute threads; 0 = all processors");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (f.source.empty() || f.target.empty()) {
    return Fail("convert",
                InvalidArgument("{} is missing: baton convert SRC DST --type TYPE",
                                f.source.empty() ? "SRC" : "DST"),
                kExitUsage);
  }
  const Status status = Convert(f);
  return status.ok() ? kExitOk : Fail("convert", status);
}

}  // namespace baton::cli
