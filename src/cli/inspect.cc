#include "src/cli/inspect.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/available_memory.h"
#include "kvcache/kv_arena.h"
#include "src/base/quoted_text.h"
#include "src/cli/compute_threads.h"
#include "src/engine/first_token.h"
#include "src/model/hf_folder.h"
#include "src/model/model.h"
#include "src/model/model_config.h"
#include "src/model/model_report.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/chat_template.h"
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"

namespace baton::cli {

using device::ThreadPool;
using engine::ComputeFirstToken;
using kv::AvailableMemoryBytes;
using kv::KvArena;
using kv::KvView;
using model::CheckServable;
using model::CheckWeights;
using model::DescribeModelFile;
using model::GgufFile;
using model::Model;
using model::ModelConfig;
using model::ModelOptions;
using model::OpenModelFile;
using model::ReadModelConfig;
using text::ChatMessage;
using text::ChatTemplate;
using text::ReadModelTokenizer;
using text::Tokenizer;
using text::TokenizerSpec;

namespace {

constexpr uint32_t kTriedContext = 128;  // tokens; the first token needs two

// Why there are no chats; OK: there are.
Status CheckChats(const TokenizerSpec& spec, const Tokenizer& tokenizer) {
  if (spec.chat_template.empty()) return NotFound("the model has no chat template");
  BATON_ASSIGN_OR_RETURN(const ChatTemplate chats,
                         ChatTemplate::CreateFor(spec.chat_template, tokenizer));
  const ChatMessage hello{.role = "user", .content = "Hello"};
  return chats.Render(std::span(&hello, 1), {.now_unix_s = 0}).status();
}

// Lacks of a model that is served all the same.
struct Lacks {
  Status chats;         // the result of CheckChats
  bool no_end = false;  // no token ends an answer
};

// Checks what the model reader cannot know: whether the text library can build the tokenizer, and
// routers take it.
Status CheckTokenizer(const GgufFile& file, const std::string& path, Lacks* lacks) {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadModelTokenizer(file, path));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(spec));
  lacks->chats = CheckChats(spec, *tokenizer);
  lacks->no_end = tokenizer->eog_ids().empty();
  return spec.SerializeForHello().status();
}

// Packed weights take as much memory as the file, those of fp8 twice as much, and the file's pages
// come on top. Others may need the rest.
bool FitsMemory(const GgufFile& file) {
  const StatusOr<uint64_t> available = AvailableMemoryBytes();
  return available.ok() && *available / 4 >= file.file_bytes();
}

// The token that a worker computes before it is ready: weights may be finite, and what they give
// not.
Status TryFirstToken(const GgufFile& file, ThreadPool* pool) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file));
  const ModelOptions options{
      .pool = pool, .max_rows = 1, .max_context = std::min(config.context_length, kTriedContext)};
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(file, options));
  const uint32_t num_blocks = model->layout().BlocksOfSequence(1);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<KvArena> arena,
                         KvArena::Create(model->layout(), num_blocks));
  const KvView kv{.base = arena->base(), .layout = &arena->layout(), .num_blocks = num_blocks};
  return ComputeFirstToken(model.get(), kv).status();
}

}  // namespace

int RunInspect(std::string_view command, const std::string& path, const Status& name,
               std::ostream& out, std::ostream& err) {
  const auto refuse = [&](const Status& status) {
    err << "baton " << command << ": " << QuotedForMessage(path) << ": " << status.message()
        << "\n";
    return 1;
  };
  const StatusOr<std::unique_ptr<GgufFile>> file = OpenModelFile(path);
  if (!file.ok()) return refuse(file.status());
  Status servable = name;
  if (servable.ok()) servable = CheckServable(**file);
  Lacks lacks;
  if (servable.ok()) servable = CheckTokenizer(**file, path, &lacks);
  bool tries = FitsMemory(**file);
  if (servable.ok()) {
    ThreadPool pool(NumComputeThreads(0));
    // First, since loading joins matrices and would name another one.
    servable = CheckWeights(**file, pool);
    if (servable.ok() && tries) {
      const Status token = TryFirstToken(**file, &pool);
      tries = !absl::IsResourceExhausted(token);
      if (tries) servable = token;
    }
  }
  out << DescribeModelFile(**file, servable);
  if (servable.ok() && !lacks.chats.ok()) out << "no chats      " << lacks.chats.message() << "\n";
  if (servable.ok() && lacks.no_end) {
    out << "no end        no token ends an answer: it goes on until max_tokens\n";
  }
  if (servable.ok() && !tries) {
    out << "not tried     the first token: the model does not fit the memory that is free here\n";
  }
  return servable.ok() ? 0 : refuse(servable);
}

}  // namespace baton::cli
