#include "src/cli/inspect.h"

#include <memory>

#include "src/base/quoted_text.h"
#include "src/cli/compute_threads.h"
#include "src/model/hf_folder.h"
#include "src/model/model_config.h"
#include "src/model/model_report.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"

namespace baton {
namespace {

// What the model reader cannot know: whether the text library can build the tokenizer, and routers
// take it.
Status CheckTokenizer(const GgufFile& file, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadModelTokenizer(file, path));
  BATON_RETURN_IF_ERROR(Tokenizer::Create(spec).status());
  return spec.SerializeForHello().status();
}

}  // namespace

int RunInspect(const std::string& path, const Status& name, std::ostream& out, std::ostream& err) {
  const auto refuse = [&](const Status& status) {
    err << "baton inspect: " << QuotedForMessage(path) << ": " << status.message() << "\n";
    return 1;
  };
  const StatusOr<std::unique_ptr<GgufFile>> file = OpenModelFile(path);
  if (!file.ok()) return refuse(file.status());
  Status servable = name;
  if (servable.ok()) servable = CheckServable(**file);
  if (servable.ok()) servable = CheckTokenizer(**file, path);
  if (servable.ok()) {
    ThreadPool pool(NumComputeThreads(0));
    servable = CheckWeights(**file, pool);
  }
  out << DescribeModelFile(**file, servable);
  return servable.ok() ? 0 : refuse(servable);
}

}  // namespace baton
