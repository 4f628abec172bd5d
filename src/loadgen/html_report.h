// A load's results as one HTML page: no script, no font, no picture from elsewhere. Pure; any
// thread.
#ifndef BATON_LOADGEN_HTML_REPORT_H_
#define BATON_LOADGEN_HTML_REPORT_H_

#include <string>
#include <vector>

#include "src/loadgen/report_files.h"

namespace baton::loadgen {

// The content of the page.
struct HtmlPage {
  std::string title;
  Environment environment;
  Settings settings;
  std::string notes;  // a table as text, e.g. of a comparison; "" = none
  std::vector<ReportedRun> runs;
  uint64_t warmup_sessions = 0;  // the first of each run, which no picture shows
};

// The page: a table of the runs, the throughput-latency curve, the distributions of ttft and itl,
// itl over the time of the run, and bars of the server's stages.
std::string ToHtml(const HtmlPage& page);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_HTML_REPORT_H_
