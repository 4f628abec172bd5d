#include "src/router/link_metrics.h"

#include <iterator>
#include <string_view>

#include "fmt/format.h"

namespace baton::router {
namespace {

// `text` as the value of a label.
std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string LinkMetricsText(std::span<const LinkRow> links, std::string_view router_id) {
  std::string speeds =
      "# HELP baton_link_bytes_per_second Speed of KV from one worker to another over recent "
      "hand-offs; 0 = not measured yet.\n"
      "# TYPE baton_link_bytes_per_second gauge\n";
  std::string stalls =
      "# HELP baton_link_stalls_total Hand-offs of KV that failed, or came so slowly that another "
      "way was better.\n"
      "# TYPE baton_link_stalls_total counter\n";
  for (const LinkRow& link : links) {
    const std::string labels = fmt::format(
        "{{role=\"router\",worker=\"{}\",model=\"{}\",from=\"{}\",to=\"{}\",transport=\"{}\"}}",
        Escaped(router_id), Escaped(link.model), Escaped(link.from), Escaped(link.to),
        LinkKindName(link.kind));
    fmt::format_to(std::back_inserter(speeds), "baton_link_bytes_per_second{} {}\n", labels,
                   link.bytes_per_s);
    fmt::format_to(std::back_inserter(stalls), "baton_link_stalls_total{} {}\n", labels,
                   link.num_stalls);
  }
  return speeds + stalls;
}

}  // namespace baton::router
