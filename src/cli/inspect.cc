#include "src/cli/inspect.h"

#include <memory>

#include "src/model/gguf.h"
#include "src/model/model_report.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"

namespace baton {
namespace {

// What the model reader cannot know: whether the text library can build the tokenizer.
Status CheckTokenizer(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const TokenizerMetadata metadata, ReadTokenizerMetadata(file));
  return Tokenizer::Create(TokenizerSpecFrom(metadata)).status();
}

}  // namespace

int RunInspect(const std::string& path, std::ostream& out, std::ostream& err) {
  const auto refuse = [&](const Status& status) {
    err << "baton inspect: " << QuotedForMessage(path) << ": " << status.message() << "\n";
    return 1;
  };
  const StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return refuse(file.status());
  Status servable = CheckServable(**file);
  if (servable.ok()) servable = CheckTokenizer(**file);
  out << DescribeModelFile(**file, servable);
  return servable.ok() ? 0 : refuse(servable);
}

}  // namespace baton
