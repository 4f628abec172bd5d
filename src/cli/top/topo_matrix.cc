#include "src/cli/top/topo_matrix.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/cli/json_fields.h"

namespace baton::cli {
namespace {

// A cell of the matrix: the link between two workers, and why it is no link ("" = not told).
struct Cell {
  std::string text;
  std::string why;
};

Cell CellOf(const TopWorker& from, const TopWorker& to) {
  const auto unpaired =
      std::find_if(from.not_paired.begin(), from.not_paired.end(),
                   [&to](const TopUnpaired& one) { return one.with == to.worker_id; });
  if (unpaired != from.not_paired.end()) return {"not paired", unpaired->why};
  const auto link = std::find_if(from.links.begin(), from.links.end(),
                                 [&to](const TopLink& one) { return one.to == to.worker_id; });
  if (link == from.links.end()) return {"-", ""};
  if (!link->up) return {"down", link->why};
  Cell cell{link->transport, ""};
  if (link->bytes_per_s >= 1e7) {
    cell.text += fmt::format(" {:.2f} GB/s", link->bytes_per_s * 1e-9);
  } else if (link->bytes_per_s > 0) {
    cell.text += fmt::format(" {:.2f} MB/s", link->bytes_per_s * 1e-6);
  }
  if (!link->why.empty()) {
    cell.text += " rests";
    cell.why = link->why;
  }
  return cell;
}

std::vector<const TopWorker*> WorkersOf(const TopSnapshot& cluster, std::string_view role) {
  std::vector<const TopWorker*> found;
  for (const TopWorker& worker : cluster.workers) {
    if (worker.role == role) found.push_back(&worker);
  }
  return found;
}

// Lines of cells, each column as wide as its widest cell.
std::string Aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string TopoText(const TopSnapshot& cluster) {
  const std::vector<const TopWorker*> decodes = WorkersOf(cluster, "decode");
  std::vector<std::vector<std::string>> rows = {{"from \\ to"}};
  std::string reasons;
  for (const TopWorker* decode : decodes) rows[0].push_back(decode->worker_id);
  for (const TopWorker* prefill : WorkersOf(cluster, "prefill")) {
    rows.push_back({prefill->worker_id});
    for (const TopWorker* decode : decodes) {
      Cell cell = CellOf(*prefill, *decode);
      rows.back().push_back(std::move(cell.text));
      if (cell.why.empty()) continue;
      reasons +=
          Printable(fmt::format("{} -> {}: {}", prefill->worker_id, decode->worker_id, cell.why)) +
          "\n";
    }
  }
  return Aligned(rows) + reasons;
}

std::string TopoJson(const TopSnapshot& cluster) {
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const TopWorker* prefill : WorkersOf(cluster, "prefill")) {
    for (const TopLink& link : prefill->links) {
      nlohmann::ordered_json row = {{"from", prefill->worker_id},
                                    {"to", link.to},
                                    {"transport", link.transport},
                                    {"up", link.up}};
      row["bytes_per_s"] = nullptr;
      if (link.bytes_per_s > 0) row["bytes_per_s"] = static_cast<uint64_t>(link.bytes_per_s);
      if (!link.why.empty()) row["why"] = link.why;
      links.push_back(std::move(row));
    }
  }
  nlohmann::ordered_json unpaired = nlohmann::ordered_json::array();
  for (const TopWorker* prefill : WorkersOf(cluster, "prefill")) {
    for (const TopUnpaired& other : prefill->not_paired) {
      unpaired.push_back({{"from", prefill->worker_id}, {"to", other.with}, {"why", other.why}});
    }
  }
  return nlohmann::ordered_json{{"links", std::move(links)}, {"not_paired", std::move(unpaired)}}
             .dump(1) +
         "\n";
}

}  // namespace baton::cli
