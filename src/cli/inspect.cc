#include "src/cli/inspect.h"

#include <memory>

#include "src/model/gguf.h"
#include "src/model/model_report.h"

namespace baton {

int RunInspect(const std::string& path, std::ostream& out, std::ostream& err) {
  const auto refuse = [&](const absl::Status& status) {
    err << "baton inspect: " << QuotedForMessage(path) << ": " << status.message() << "\n";
    return 1;
  };
  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return refuse(file.status());
  out << DescribeModelFile(**file);
  const absl::Status servable = CheckServable(**file);
  return servable.ok() ? 0 : refuse(servable);
}

}  // namespace baton
