#include "src/base/open_files.h"

#include <sys/resource.h>

namespace baton {
namespace {

rlimit Limits() {
  rlimit limits{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  (void)::getrlimit(RLIMIT_NOFILE, &limits);  // fails for bad arguments only
  return limits;
}

uint64_t AsCount(rlim_t limit) { return limit == RLIM_INFINITY ? kNoOpenFilesLimit : limit; }

}  // namespace

uint64_t OpenFilesLimit() { return AsCount(Limits().rlim_cur); }

uint64_t MaxOpenFiles() { return AsCount(Limits().rlim_max); }

void RaiseOpenFilesLimit() {
  rlimit limits = Limits();
  limits.rlim_cur = limits.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limits);
}

Status CheckOpenFilesLimit() {
  const uint64_t limit = OpenFilesLimit();
  if (limit >= kMinOpenFiles) return OkStatus();
  return FailedPrecondition(
      "this process may have {} open files (ulimit -n) and needs {} or more; raise the limit",
      limit, kMinOpenFiles);
}

}  // namespace baton
