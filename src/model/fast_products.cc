#include "src/model/fast_products.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/math.h"
#include "src/base/log.h"
#include "src/base/split_mix.h"
#include "src/model/device_batch.h"

namespace baton::model {

namespace cublaslt = kernels::cublaslt;
namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceKindName;
using kernels::Bf16FromFloat;
using kernels::FloatFromBf16;

using cublaslt::LtProduct;
using cublaslt::LtShape;
using simt::Bf16;

namespace {

static_assert(kMaxOwnRows >= kMaxPaddedRows, "the library must not enter recorded steps");

// The workspace size that NVIDIA advises for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// An algorithm that the library's estimate ranks after these has not won a timing yet [not measured
// here].
constexpr int kMaxCandidates = 8;
// A turn takes some seconds for each process that starts at once with another model. A longer turn
// is that of a process that hangs.
constexpr std::chrono::seconds kMaxTurnWait{60};
// Rows whose error is looked at together, so that a wrong tile is not lost among right ones.
constexpr uint32_t kPieceRows = 64;

// The last row counts of the ranges: doubling, so that a range's algorithm is timed at no more than
// twice the rows of any product that it takes.
std::vector<uint32_t> RangesUpTo(uint32_t max_rows) {
  std::vector<uint32_t> ranges;
  for (uint32_t rows = kMaxOwnRows; rows < max_rows;) {
    rows = std::min(2 * rows, max_rows);
    ranges.push_back(rows);
  }
  return ranges;
}

// The fewest rows of the range that ends with `last`, one of RangesUpTo(max_rows).
uint32_t FirstOfRange(uint32_t max_rows, uint32_t last) {
  const std::vector<uint32_t> ends = RangesUpTo(max_rows);
  const auto end = std::find(ends.begin(), ends.end(), last);
  return (end == ends.begin() ? kMaxOwnRows : *std::prev(end)) + 1;
}

LtShape ShapeOf(const cuda::GemmParams& params) {
  return {.n = params.n, .k = params.k, .is_float = params.y_float != nullptr};
}

size_t RowBytes(const LtShape& shape) {
  return shape.n * (shape.is_float ? sizeof(float) : sizeof(Bf16));
}

float ValueAt(std::span<const std::byte> values, size_t i, bool is_float) {
  if (is_float) {
    float value = 0;
    std::memcpy(&value, values.data() + i * sizeof(float), sizeof(float));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, values.data() + i * sizeof(Bf16), sizeof(Bf16));
  return FloatFromBf16(bits);
}

// Relative, of all; not a number where one is none.
double RelativeError(std::span<const std::byte> got, std::span<const std::byte> expected,
                     bool is_float) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size() / (is_float ? sizeof(float) : sizeof(Bf16)); ++i) {
    const double wanted = ValueAt(expected, i, is_float);
    const double difference = ValueAt(got, i, is_float) - wanted;
    error += difference * difference;
    norm += wanted * wanted;
  }
  return norm == 0 ? error : std::sqrt(error / norm);
}

}  // namespace

double FastLogitBound(const ModelConfig& config) {
  constexpr double kRounding = 0x1p-9;
  constexpr double kRoundingsOfLayer = 8;
  return 2 * 4 * kRounding * std::sqrt(kRoundingsOfLayer * config.num_layers);
}

StatusOr<std::unique_ptr<FastProducts>> FastProducts::Create(const FastMode& mode,
                                                             Accelerator* device,
                                                             std::span<const FastSite> sites) {
  const std::string library = fmt::format(
      "cuBLASLt {} ({})", cublaslt::VersionText(mode.library->version), mode.library->path);
  auto handle = cublaslt::LtHandle::Create(*mode.library);
  if (!handle.ok()) {
    BATON_LOG_WARN("all products are by our own kernels: {}: {}", library,
                   std::string(handle.status().message()));
    return nullptr;
  }
  std::unique_ptr<FastProducts> made(new FastProducts(device, *std::move(handle)));
  const Status status = made->Prepare(mode, sites);
  if (absl::IsFailedPrecondition(status)) {
    BATON_LOG_WARN("all products are by our own kernels: {}: {}", library,
                   std::string(status.message()));
    return nullptr;
  }
  BATON_RETURN_IF_ERROR(status);
  BATON_LOG_INFO("products of more than {} rows are by {}, with {} of {} kinds of matrices{}",
                 kMaxOwnRows, library, made->products_.size(), sites.size(), made->refused_);
  return made;
}

Status FastProducts::Prepare(const FastMode& mode, std::span<const FastSite> sites) {
  BATON_ASSIGN_OR_RETURN(workspace_,
                         DeviceBuffer::Create(device_, kWorkspaceBytes, "scratch of cuBLASLt"));
  for (const FastSite& site : sites) {
    auto product = LtProduct::Create(*handle_, site.shape);
    if (!product.ok()) return FailedPrecondition("{}", std::string(product.status().message()));
    products_.push_back({*std::move(product), {}, {}});
  }
  std::optional<PlanTurn> turn;  // taken by the first product that nobody has timed
  for (size_t i = 0; i < sites.size(); ++i) {
    BATON_RETURN_IF_ERROR(PrepareSite(mode.plan_folder, sites[i], &products_[i], &turn));
  }
  if (!kept_.ok()) {
    BATON_LOG_WARN("the next start times products again: {}", std::string(kept_.message()));
  }
  std::erase_if(products_, [](const Product& product) {
    return std::find(product.takes.begin(), product.takes.end(), true) == product.takes.end();
  });
  return products_.empty() ? FailedPrecondition("it has no algorithm for any product") : OkStatus();
}

Status FastProducts::PrepareSite(const std::string& folder, const FastSite& site, Product* product,
                                 std::optional<PlanTurn>* turn) {
  ProductPlan plan = QuestionsOf(site);
  const std::string path = folder.empty() ? "" : PlanPath(folder, plan);
  const bool is_kept = !path.empty() && ReadKept(folder, path, &plan, turn);
  if (!is_kept) BATON_RETURN_IF_ERROR(TuneAll(site, product->product.get(), &plan));
  for (const PlannedProduct& planned : plan.products) {
    if (planned.algorithm.has_value()) product->ranges.push_back(planned);
  }
  const Status checked = CheckSite(site, product);
  if (absl::IsFailedPrecondition(checked) && is_kept) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);  // the next start times again
  }
  BATON_RETURN_IF_ERROR(checked);
  NoteRows(site, product);
  if (path.empty() || is_kept) return OkStatus();
  kept_.Update(WritePlan(path, plan));
  return OkStatus();
}

ProductPlan FastProducts::QuestionsOf(const FastSite& site) const {
  ProductPlan plan;
  plan.machine = fmt::format("{} '{}' with {} multiprocessors, cuBLASLt {}, scratch {}",
                             DeviceKindName(device_->kind()), device_->product(),
                             device_->num_sms(), handle_->table().version, kWorkspaceBytes);
  for (const uint32_t rows : RangesUpTo(site.max_rows)) {
    plan.products.push_back({site.shape, rows});
  }
  return plan;
}

bool FastProducts::ReadKept(const std::string& folder, const std::string& path, ProductPlan* plan,
                            std::optional<PlanTurn>* turn) {
  Status read = ReadPlan(path, plan);
  if (!read.ok() && !turn->has_value()) {
    turn->emplace(folder, kMaxTurnWait);
    read = ReadPlan(path, plan);  // another may have timed meanwhile
    if (!read.ok() && !(*turn)->is_held()) {
      BATON_LOG_WARN("products are timed without a turn, another process may time beside: {}",
                     (*turn)->failure());
    }
  }
  if (!read.ok() && !absl::IsNotFound(read)) {
    BATON_LOG_WARN("{} is not used and written anew: {}", path, std::string(read.message()));
  }
  return read.ok();
}

Status FastProducts::TuneAll(const FastSite& site, LtProduct* product, ProductPlan* plan) {
  BATON_RETURN_IF_ERROR(FillRows(site));
  for (PlannedProduct& planned : plan->products) {
    BATON_RETURN_IF_ERROR(Tune(site, product, &planned));
  }
  return OkStatus();
}

// No two rows are alike, so that a product of other rows shows.
Status FastProducts::FillRows(const FastSite& site) {
  std::vector<Bf16> rows(size_t{site.max_rows} * site.shape.k);
  uint64_t state = site.shape.k;
  for (Bf16& value : rows) {
    const uint64_t bits = SplitMix(state += kSplitMixStep);
    value.bits = Bf16FromFloat(static_cast<float>(static_cast<int64_t>(bits)) * 0x1p-63f);
  }
  BATON_RETURN_IF_ERROR(
      device_->CopyIn(site.x->data(), rows.data(), std::as_bytes(std::span(rows)).size()));
  return device_->Wait();  // before the rows are freed
}

Status FastProducts::Tune(const FastSite& site, LtProduct* product, PlannedProduct* planned) {
  auto candidates = product->Candidates(planned->rows, kWorkspaceBytes, kMaxCandidates);
  if (!candidates.ok()) {
    return FailedPrecondition("{}", std::string(candidates.status().message()));
  }
  double least_s = std::numeric_limits<double>::infinity();
  Status failed;
  for (const cublasLtMatmulAlgo_t& candidate : *candidates) {
    const StatusOr<double> seconds =
        TimeOf(site, product, {planned->shape, planned->rows, candidate});
    if (absl::IsFailedPrecondition(seconds.status())) failed = seconds.status();
    if (absl::IsFailedPrecondition(seconds.status())) continue;
    BATON_RETURN_IF_ERROR(seconds.status());
    if (*seconds >= least_s) continue;
    least_s = *seconds;
    planned->algorithm = candidate;
  }
  return planned->algorithm.has_value() ? OkStatus() : failed;
}

Status FastProducts::Put(const FastSite& site, LtProduct* product, const PlannedProduct& planned,
                         const void* weights) {
  const Status put =
      product->Multiply(*planned.algorithm, {site.x->data(), weights, site.y->data(), planned.rows},
                        Workspace(), device_->stream());
  if (put.ok()) return OkStatus();
  return FailedPrecondition("its {} of {} rows: {}", site.name, planned.rows,
                            std::string(put.message()));
}

StatusOr<double> FastProducts::TimeOf(const FastSite& site, LtProduct* product,
                                      const PlannedProduct& planned) {
  BATON_ASSIGN_OR_RETURN(const void* const weights, site.weights());
  const auto seconds_of = [&](uint32_t count) -> StatusOr<double> {
    BATON_RETURN_IF_ERROR(device_->Wait());
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < count; ++i) {
      BATON_RETURN_IF_ERROR(Put(site, product, planned, weights));
    }
    BATON_RETURN_IF_ERROR(device_->Wait());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    return elapsed.count() / count;
  };
  constexpr double kLongS = 20e-3;   // one launch is as good as several
  constexpr double kSampleS = 2e-3;  // enough for the host's launches not to count
  // The first loads the algorithm's code, from a file that may be cold.
  BATON_RETURN_IF_ERROR(seconds_of(1).status());
  BATON_ASSIGN_OR_RETURN(double least, seconds_of(1));
  if (!(least < kLongS)) return least;
  const auto count = static_cast<uint32_t>(std::clamp(kSampleS / std::max(least, 1e-9), 1.0, 32.0));
  for (int sample = 0; sample < 3; ++sample) {
    BATON_ASSIGN_OR_RETURN(const double seconds, seconds_of(count));
    least = sample == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

StatusOr<std::vector<std::byte>> FastProducts::ReadRows(const FastSite& site, uint32_t count) {
  std::vector<std::byte> rows(count * RowBytes(site.shape));
  BATON_RETURN_IF_ERROR(device_->CopyOut(rows.data(), site.y->data(), rows.size()));
  BATON_RETURN_IF_ERROR(device_->Wait());
  return rows;
}

Status FastProducts::CheckSite(const FastSite& site, Product* product) {
  if (product->ranges.empty()) return OkStatus();
  BATON_RETURN_IF_ERROR(FillRows(site));
  BATON_RETURN_IF_ERROR(site.multiply(site.max_rows));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> expected, ReadRows(site, site.max_rows));
  const double limit = site.shape.is_float ? kMaxFloatError : kMaxError;
  for (PlannedProduct checked : product->ranges) {
    // The most rows of the range, and the fewest, which are odd.
    const uint32_t fewest = FirstOfRange(site.max_rows, checked.rows);
    for (const uint32_t rows : {checked.rows, fewest}) {
      if (!product->product->Takes(*checked.algorithm, rows, kWorkspaceBytes)) continue;
      checked.rows = rows;
      BATON_ASSIGN_OR_RETURN(const double error, ErrorOf(site, product, checked, expected));
      if (error <= limit) continue;
      return FailedPrecondition("its {} of {} rows is wrong, relative error {:.2g}", site.name,
                                rows, error);
    }
  }
  return OkStatus();
}

// The largest of any piece of rows.
StatusOr<double> FastProducts::ErrorOf(const FastSite& site, Product* product,
                                       const PlannedProduct& planned,
                                       std::span<const std::byte> expected) {
  const size_t row_bytes = RowBytes(site.shape);
  // NaNs, so that an output which is not written shows.
  const std::vector<std::byte> nans(planned.rows * row_bytes, std::byte{0xFF});
  BATON_RETURN_IF_ERROR(device_->CopyIn(site.y->data(), nans.data(), nans.size()));
  BATON_ASSIGN_OR_RETURN(const void* const weights, site.weights());
  BATON_RETURN_IF_ERROR(Put(site, product->product.get(), planned, weights));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> got, ReadRows(site, planned.rows));
  double worst = 0;
  for (uint32_t row = 0; row < planned.rows; row += kPieceRows) {
    const size_t begin = row * row_bytes;
    const size_t bytes = std::min<size_t>(kPieceRows, planned.rows - row) * row_bytes;
    const double error = RelativeError(std::span(got).subspan(begin, bytes),
                                       expected.subspan(begin, bytes), site.shape.is_float);
    if (!(error <= worst)) worst = error;  // also what is no number
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

void FastProducts::NoteRows(const FastSite& site, Product* product) {
  size_t num_refused = 0;
  product->takes.assign(site.max_rows > kMaxOwnRows ? site.max_rows - kMaxOwnRows : 0, false);
  for (const PlannedProduct& planned : product->ranges) {
    // A range that has no algorithm is not among these, and its rows are nobody's.
    const uint32_t first = FirstOfRange(site.max_rows, planned.rows);
    for (uint32_t rows = first; rows <= planned.rows; ++rows) {
      const bool takes = product->product->Takes(*planned.algorithm, rows, kWorkspaceBytes);
      product->takes[rows - kMaxOwnRows - 1] = takes;
      num_refused += takes ? 0 : 1;
    }
  }
  if (num_refused == 0 && !product->ranges.empty()) return;
  const std::string count = product->ranges.empty() ? "all" : std::to_string(num_refused);
  refused_ += fmt::format("; it refuses {} numbers of rows of {}", count, site.name);
}

FastProducts::Product* FastProducts::Find(const LtShape& shape) {
  const auto found = std::find_if(products_.begin(), products_.end(), [&](const Product& product) {
    return product.product->shape() == shape;
  });
  return found == products_.end() ? nullptr : &*found;
}

bool FastProducts::Takes(const cuda::GemmParams& params) {
  if (params.m <= kMaxOwnRows || params.bias_float != nullptr || params.bias_bf16 != nullptr) {
    return false;
  }
  const Product* const product = Find(ShapeOf(params));
  const size_t index = params.m - kMaxOwnRows - 1;
  return product != nullptr && index < product->takes.size() && product->takes[index];
}

bool FastProducts::Multiply(const cuda::GemmParams& params) {
  if (!Takes(params)) return false;
  Product& product = *Find(ShapeOf(params));
  const auto planned =
      std::find_if(product.ranges.begin(), product.ranges.end(),
                   [&](const PlannedProduct& range) { return range.rows >= params.m; });
  void* const y = params.y_float != nullptr ? static_cast<void*>(params.y_float)
                                            : static_cast<void*>(params.y_bf16);
  const Status put = product.product->Multiply(
      *planned->algorithm, {params.x, params.w, y, params.m}, Workspace(), device_->stream());
  if (put.ok()) return true;
  product.takes[params.m - kMaxOwnRows - 1] = false;
  BATON_LOG_WARN("products of {} rows with [{}][{}] are by our own kernels from now on: {}",
                 params.m, params.n, params.k, std::string(put.message()));
  return false;
}

std::string FastProducts::NumericsText() const {
  return fmt::format("cublaslt={} rows>{}", cublaslt::VersionText(handle_->table().version),
                     kMaxOwnRows);
}

}  // namespace baton::model
