#include "tests/kernels/gpu_check/busy_loop.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

namespace baton::kernels::gpu_check {

using device::Accelerator;
using device::DeviceBuffer;

namespace {

// A step of 32 layers' worth of launches, 8 MiB each, which L2 holds: some 100 us on a GPU.
constexpr uint32_t kLaunches = 32;
constexpr size_t kBytes = 8 << 20;
constexpr uint32_t kCtas = 264;
constexpr uint32_t kTinyLaunches = 2;
constexpr size_t kTinyBytes = 4 << 10;
constexpr uint32_t kTinyCtas = 1;
constexpr auto kTinyRest = std::chrono::milliseconds(1);
constexpr size_t kEnoughForP99 = 1000;

using Microseconds = std::chrono::duration<double, std::micro>;

}  // namespace

StatusOr<std::unique_ptr<BusyLoop>> BusyLoop::Start(Accelerator* device, const DeviceBody& body) {
  std::unique_ptr<BusyLoop> loop(new BusyLoop(body));
  BATON_ASSIGN_OR_RETURN(loop->device_, device->Share());
  const size_t bytes = body.is_gpu ? kBytes : kTinyBytes;
  const size_t out_bytes =
      size_t{body.is_gpu ? kCtas : kTinyCtas} * kLoopThreads * sizeof(simt::Vec16);
  BATON_ASSIGN_OR_RETURN(loop->from_, DeviceBuffer::Create(loop->device_.get(), bytes, "steps"));
  BATON_ASSIGN_OR_RETURN(loop->to_, DeviceBuffer::Create(loop->device_.get(), out_bytes, "steps"));
  const std::vector<std::byte> zeros(bytes);
  BATON_RETURN_IF_ERROR(loop->device_->CopyIn(loop->from_.data(), zeros.data(), bytes));
  BATON_RETURN_IF_ERROR(loop->device_->Wait());
  loop->thread_ = Thread("steps", [loop = loop.get()] { loop->Run(); });
  return loop;
}

BusyLoop::~BusyLoop() {
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
  }
  thread_.Join();
}

Status BusyLoop::Step() {
  const bool is_gpu = body_.is_gpu;
  const LoopParams params = {reinterpret_cast<const simt::Vec16*>(from_.data()),
                             reinterpret_cast<simt::Vec16*>(to_.data()),
                             from_.size_bytes() / sizeof(simt::Vec16), is_gpu ? kCtas : kTinyCtas};
  for (uint32_t i = 0; i < (is_gpu ? kLaunches : kTinyLaunches); ++i) {
    BATON_RETURN_IF_ERROR(body_.loops().read(params, device_->stream()));
  }
  return device_->Wait();
}

void BusyLoop::Run() {
  device_->MakeCurrent();
  while (true) {
    const auto begin = std::chrono::steady_clock::now();
    const Status status = Step();
    const Microseconds elapsed = std::chrono::steady_clock::now() - begin;
    {
      const std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = status;
      steps_us_.push_back(elapsed.count());
      ended_.notify_all();
      if (is_done_ || !status_.ok()) return;
    }
    if (!body_.is_gpu) std::this_thread::sleep_for(kTinyRest);
  }
}

StatusOr<std::vector<double>> BusyLoop::During(const std::function<Status()>& work) {
  {
    const std::lock_guard lock(mutex_);
    steps_us_.clear();
  }
  BATON_RETURN_IF_ERROR(work());
  std::unique_lock lock(mutex_);
  const size_t num_ended = steps_us_.size();
  ended_.wait(lock, [&] { return steps_us_.size() > num_ended || !status_.ok(); });
  BATON_RETURN_IF_ERROR(status_);
  return std::exchange(steps_us_, {});
}

StatusOr<std::vector<double>> BusyLoop::During(std::chrono::milliseconds rest) {
  return During([rest] {
    std::this_thread::sleep_for(rest);
    return OkStatus();
  });
}

nlohmann::json JsonOfSteps(std::vector<double> steps_us) {
  nlohmann::json json = {{"num", steps_us.size()}, {"samples_us", steps_us}};
  if (steps_us.empty()) return json;
  std::sort(steps_us.begin(), steps_us.end());
  const auto rank = [&steps_us](double share) {
    const auto at = static_cast<size_t>(std::ceil(share * static_cast<double>(steps_us.size())));
    return steps_us[std::max<size_t>(at, 1) - 1];
  };
  json["p50_us"] = rank(0.5);
  json["max_us"] = steps_us.back();
  json["p99_us"] = nullptr;
  if (steps_us.size() >= kEnoughForP99) json["p99_us"] = rank(0.99);
  return json;
}

std::string WordsOfSteps(const nlohmann::json& steps) {
  if (!steps.contains("p50_us")) return "none";
  const std::string p99 =
      steps["p99_us"].is_null() ? "" : fmt::format("p99 {:.1f}, ", steps["p99_us"].get<double>());
  return fmt::format("p50 {:.1f}, {}most {:.1f} us of {}", steps["p50_us"].get<double>(), p99,
                     steps["max_us"].get<double>(), steps["num"].get<size_t>());
}

}  // namespace baton::kernels::gpu_check
