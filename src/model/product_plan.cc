#include "src/model/product_plan.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "src/base/errno_text.h"
#include "src/base/hex.h"
#include "src/base/regular_file.h"
#include "src/base/xxh3.h"
#include "src/model/partial_file.h"

namespace baton::model {
namespace {

constexpr std::string_view kNoAlgorithm = "none";
constexpr size_t kMaxPlanBytes = size_t{1} << 20;       // of a model some 30 lines of 200
constexpr std::chrono::milliseconds kBetweenLooks{20};  // flock has no wait with an end

std::string HeaderOf(const ProductPlan& plan) {
  return fmt::format("baton products 1\n{}\n", plan.machine);
}

// The question of a line; its answer follows.
std::string QuestionOf(const PlannedProduct& product) {
  return fmt::format("n {} k {} {} rows {} ", product.shape.n, product.shape.k,
                     product.shape.is_float ? "fp32" : "bf16", product.rows);
}

std::string AnswerOf(const PlannedProduct& product) {
  if (!product.algorithm.has_value()) return std::string(kNoAlgorithm);
  return HexFromBytes(std::string_view(reinterpret_cast<const char*>(&*product.algorithm),
                                       sizeof(*product.algorithm)));
}

std::string HashLineOf(std::string_view text) {
  return fmt::format("hash {}\n", HexFromU64(Xxh3Hash64(text.data(), text.size())));
}

std::string TextOf(const ProductPlan& plan) {
  std::string text = HeaderOf(plan);
  for (const PlannedProduct& product : plan.products) {
    text += QuestionOf(product) + AnswerOf(product) + "\n";
  }
  return text + HashLineOf(text);
}

// Takes `start` from the front.
bool TakeStart(std::string_view* text, std::string_view start) {
  if (!text->starts_with(start)) return false;
  text->remove_prefix(start.size());
  return true;
}

// Takes an answer and the end of its line from the front.
Status TakeAnswer(std::string_view* text, PlannedProduct* product) {
  const size_t end = text->find('\n');
  const std::string_view answer = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  product->algorithm.reset();
  if (answer == kNoAlgorithm) return OkStatus();
  const std::optional<std::vector<uint8_t>> bytes = BytesFromHex(answer);
  cublasLtMatmulAlgo_t algorithm;
  if (!bytes.has_value() || bytes->size() != sizeof(algorithm)) {
    return DataLoss("'{}' is no algorithm", answer.substr(0, 32));
  }
  std::memcpy(&algorithm, bytes->data(), sizeof(algorithm));
  product->algorithm = algorithm;
  return OkStatus();
}

}  // namespace

std::string PlanPath(const std::string& folder, const ProductPlan& plan) {
  std::string asked = HeaderOf(plan);
  for (const PlannedProduct& product : plan.products) asked += QuestionOf(product);
  return fmt::format("{}/{}.plan", folder, HexFromU64(Xxh3Hash64(asked.data(), asked.size())));
}

Status ReadPlan(const std::string& path, ProductPlan* plan) {
  BATON_ASSIGN_OR_RETURN(const std::string file, ReadRegularFile(path, kMaxPlanBytes));
  std::string_view text = file;
  const size_t hash_begin = text.rfind("hash ");
  if (hash_begin == std::string_view::npos ||
      text.substr(hash_begin) != HashLineOf(text.substr(0, hash_begin))) {
    return DataLoss("its hash is wrong");
  }
  text = text.substr(0, hash_begin);
  ProductPlan read = *plan;
  if (!TakeStart(&text, HeaderOf(read))) return DataLoss("it is of another machine or version");
  for (PlannedProduct& product : read.products) {
    if (!TakeStart(&text, QuestionOf(product))) {
      return DataLoss("it lacks '{}'", QuestionOf(product));
    }
    BATON_RETURN_IF_ERROR(TakeAnswer(&text, &product));
  }
  if (!text.empty()) return DataLoss("it has lines of other products");
  *plan = std::move(read);
  return OkStatus();
}

Status WritePlan(const std::string& path, const ProductPlan& plan) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return Unavailable("cannot create the folder of {}: {}", path, error.message());
  ProductPlan kept = plan;
  const Status read = ReadPlan(path, &kept);
  if (read.ok()) return OkStatus();
  if (absl::IsDataLoss(read)) std::filesystem::remove(path, error);
  const std::string text = TextOf(plan);
  PartialFile file(path);
  Status status = file.Open();
  if (status.ok()) status = file.Write(std::as_bytes(std::span(text)));
  if (status.ok()) status = file.Finish();
  // The file that exists may be another process's whole plan. A half-written file that was left
  // over is an error.
  return absl::IsAlreadyExists(status) && ReadPlan(path, &kept).ok() ? OkStatus() : status;
}

PlanTurn::PlanTurn(const std::string& folder, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::error_code ignored;  // then it cannot be opened
  std::filesystem::create_directories(folder, ignored);
  UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (opened.valid() && ::flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= end) {
      failure_ = errno == EWOULDBLOCK ? folder + " is locked by another process"
                                      : fmt::format("lock of {}: {}", folder, ErrnoText(errno));
      return;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  if (!opened.valid()) failure_ = fmt::format("open {}: {}", folder, ErrnoText(errno));
  folder_ = std::move(opened);
}

}  // namespace baton::model
