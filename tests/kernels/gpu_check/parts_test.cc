// The parts of gpu_check that need no device: other programs, libraries, clocks, limits, files.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/gpu_check/clock_log.h"
#include "tests/kernels/gpu_check/device_body.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/divided_sms.h"
#include "tests/kernels/gpu_check/limits.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/results_file.h"
#include "tests/kernels/gpu_check/sanitizer_words.h"
#include "tests/kernels/gpu_check/targets.h"

namespace baton::kernels::gpu_check {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder of its own, and an environment that is set back.
class PartsTest : public ::testing::Test {
 protected:
  PartsTest() : folder_(std::filesystem::path(::testing::TempDir()) / "gpu_check_XXXXXX") {
    std::string name = folder_.string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    if (const char* path = std::getenv("PATH"); path != nullptr) path_ = path;
  }
  ~PartsTest() override {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    chmod(Path(name).c_str(), 0755);
    return Path(name);
  }
  // Programs of the folder are found before all others.
  void PutFolderOnPath() { setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1); }

  std::filesystem::path folder_;
  std::string path_;
};

std::vector<std::string> Lines(const std::vector<std::string>& words, int* code) {
  std::vector<std::string> lines;
  const absl::StatusOr<int> done = RunProgram(words, [&lines](std::string_view line) {
    lines.emplace_back(line);
    return absl::OkStatus();
  });
  EXPECT_TRUE(done.ok()) << done.status();
  *code = done.value_or(-1);
  return lines;
}

TEST_F(PartsTest, AProgramsLinesAndExitStatusArrive) {
  int code = 0;
  EXPECT_THAT(Lines({"sh", "-c", "echo one; echo two >&2; printf three; exit 5"}, &code),
              ElementsAre("one", "two", "three"));
  EXPECT_EQ(code, 5);
  EXPECT_THAT(Lines({"sh", "-c", "kill -TERM $$"}, &code), IsEmpty());
  EXPECT_EQ(code, 128 + 15);
  EXPECT_THAT(Lines({"sh", "-c", "cat; exit 0"}, &code), IsEmpty()) << "its input is empty";
  EXPECT_EQ(code, 0);
}

TEST_F(PartsTest, AProgramThatIsNotThereIsUnavailable) {
  const auto ignore = [](std::string_view) { return absl::OkStatus(); };
  EXPECT_EQ(RunProgram({Path("nothing")}, ignore).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PartsTest, ProgramsAreFoundOnPathThenInFolders) {
  const std::string tool = Write("a_tool", "#!/bin/sh\n");
  EXPECT_EQ(FindProgram("a_tool"), "");
  EXPECT_EQ(FindProgram("a_tool", {folder_.string()}), tool);
  PutFolderOnPath();
  EXPECT_EQ(FindProgram("a_tool"), tool);
}

// ---- Clocks.

TEST_F(PartsTest, ClocksAreAskedBeforeAndBeside) {
  // Knows the old name of the last column only, as drivers before 535; then repeats itself.
  Write("nvidia-smi",
        "#!/bin/sh\n"
        "case \"$*\" in *event_reasons*) echo no such field; exit 2;; esac\n"
        "echo 'now, Fake, 580.1, P0, 1980, 2619, 40, 100.5, 0x0'\n"
        "case \"$*\" in *--loop-ms*) "
        "while echo 'later, Fake, 580.1, P0, 1200, 2619, 80, 700.5, 0x4'; do sleep 0.01; done;; "
        "esac\n");
  PutFolderOnPath();
  ClockLog log;
  log.Start();
  nlohmann::json json;
  do {
    json = log.Json();
    ASSERT_FALSE(json.contains("not_run")) << json;
  } while (json["lines"].size() < 4);  // ends with the test's limit
  EXPECT_EQ(json["columns"].back(), "clocks_throttle_reasons.active");
  EXPECT_EQ(json["columns"].size(), json["lines"][0].size());
  EXPECT_EQ(json["lines"][0][0], "now");
  EXPECT_EQ(json["lines"][3][4], "1200");
  EXPECT_EQ(json["lines"][3].back(), "0x4");
}

TEST_F(PartsTest, WithoutATellerClocksSayWhy) {
  setenv("PATH", folder_.c_str(), 1);
  ClockLog log;
  log.Start();
  EXPECT_EQ(log.Json()["not_run"], "there is no nvidia-smi");
  Write("nvidia-smi", "#!/bin/sh\necho broken\nexit 9\n");
  ClockLog broken;
  broken.Start();
  EXPECT_THAT(broken.Json()["not_run"].get<std::string>(), HasSubstr("exit status 9, broken"));
}

TEST_F(PartsTest, APythonTellsWhereItsPackagesAre) {
  EXPECT_THAT(PackagesOf(""), IsEmpty());
  EXPECT_THAT(PackagesOf(Path("missing")), IsEmpty());
  const std::string python = Write("python", "#!/bin/sh\necho\necho /nowhere\necho /site\n");
  EXPECT_THAT(PackagesOf(python), ElementsAre("/nowhere", "/site"));
  EXPECT_THAT(PackagesOf(Write("broken", "#!/bin/sh\necho /site\nexit 1\n")), IsEmpty());
}

// ---- What of a failed case is kept.

TEST_F(PartsTest, AWrongResultIsKeptWithItsPlacesAndBits) {
  std::vector<float> wanted(70);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = 0.5f * static_cast<float>(i);
  std::vector<float> got = wanted;
  for (size_t i = 3; i < 43; i += 4) got[i] = -got[i];
  EXPECT_TRUE(ExpectSameBits("y", wanted, wanted).ok());
  Differences differences = Compare("y", got, wanted);
  ASSERT_FALSE(differences.empty());
  EXPECT_EQ(differences.first(), 3u);
  const std::vector<uint16_t> row = {0x3f80, 0x0001};
  differences.Add("operands", {{"x", HexOfElements(row.data(), row.size())}});
  const absl::Status status =
      OfCase(differences.Result(got.size()), {{"m", 7}, {"n", 10}, {"seed", 6}});
  EXPECT_EQ(status.message(), "y: 10 of 70 elements differ, first [3] bfc00000, not 3fc00000");
  {
    Report report(Path("j"), {{"stage", "kernels"}});
    ASSERT_TRUE(report.Add(OutcomeOf("gemm", status, "7 x 10")).ok());
    EXPECT_EQ(report.ExitCode(), 1);
  }
  const auto json = nlohmann::json::parse(std::ifstream(Path("j")));
  const auto& failed = json["checks"][0]["failed"];
  EXPECT_EQ(failed["case"]["seed"], 6);
  EXPECT_EQ(failed["differences"]["num_differing"], 10);
  EXPECT_EQ(failed["differences"]["num_elements"], 70);
  EXPECT_EQ(failed["differences"]["operands"]["x"], "3f800001");
  const auto& first = failed["differences"]["first"];
  ASSERT_EQ(first.size(), kKeptDifferences);
  EXPECT_EQ(first[1]["index"], 7);
  EXPECT_EQ(first[1]["got"], "c0600000");
  EXPECT_EQ(first[1]["wanted"], "40600000");
}

TEST_F(PartsTest, WhatIsKeptIsBoundedAndOfAnyType) {
  struct Tile {
    uint32_t expert;
    uint32_t first;
    uint32_t count;
  };
  EXPECT_EQ(BitsOf(Tile{1, 2, 0xDEADBEEF}), "0000000100000002deadbeef");
  EXPECT_EQ(BitsOf(uint64_t{0x0102030405060708}), "0102030405060708");
  EXPECT_EQ(BitsOf(std::byte{7}), "07");
  const std::vector<std::byte> bytes(1 << 20);
  EXPECT_EQ(HexOfElements(bytes.data(), bytes.size()).size(), 2 * kKeptElements);
  const absl::Status all = ExpectSameBits("blocks", bytes, {bytes.size(), std::byte{1}});
  EXPECT_LT(CarriedBy(all).dump().size(), 4096u);
  EXPECT_THAT(std::string(ExpectSameBits("out", {}, bytes).message()),
              HasSubstr("0 elements, not 1048576"));
  EXPECT_TRUE(CarriedBy(Internal("the device's own words")).is_null());
  EXPECT_EQ(CarriedBy(OfCase(Internal("words"), {{"m", 1}}))["case"]["m"], 1);
  EXPECT_TRUE(OfCase(absl::OkStatus(), {{"m", 1}}).ok());
}

TEST_F(PartsTest, OfAResultThatIsTooFarTheFarthestAreKept) {
  const std::vector<double> exact = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<float> got = {1, 2, 30, 4, 5, std::nanf(""), 7, 8, 9, 11};
  const absl::Status status = TooFar("y", 0.5, got, exact);
  EXPECT_EQ(status.message(), "y: relative error 0.5");
  const nlohmann::json farthest = CarriedBy(status)["differences"]["farthest"];
  ASSERT_EQ(farthest.size(), kKeptDifferences);
  EXPECT_EQ(farthest[0]["index"], 5);
  EXPECT_EQ(farthest[1]["index"], 2);
  EXPECT_EQ(farthest[1]["got"], "41f00000");
  EXPECT_EQ(farthest[1]["wanted"], "3");
}

// ---- Limits and files.

TEST_F(PartsTest, ALimitIsTheLongerOfReadingAndComputing) {
  const MeasuredLimits limits = {.read_bytes_per_s = 4e12, .bf16_flops_per_s = 800e12};
  EXPECT_DOUBLE_EQ(limits.LimitUs(8e9, 0), 2'000);
  EXPECT_DOUBLE_EQ(limits.LimitUs(0, 8e12), 10'000);
  EXPECT_DOUBLE_EQ(limits.LimitUs(8e9, 8e12), 10'000);
  EXPECT_EQ(MeasuredLimits().LimitUs(8e9, 0), 0) << "nothing was measured";
  EXPECT_DOUBLE_EQ((MeasuredLimits{.copy_bytes_per_s = 4e12}.CopyLimitUs(8e9)), 2'000);
  EXPECT_EQ(limits.CopyLimitUs(8e9), 0);
}

TEST_F(PartsTest, WhatReadingBindsIsJudgedThoughComputingWasNotMeasured) {
  const MeasuredLimits reading = {.read_bytes_per_s = 4e12};
  EXPECT_DOUBLE_EQ(reading.LimitUs(8e9, 1), 2'000);
  EXPECT_DOUBLE_EQ(reading.LimitUs(8e9, (kComputeFlopsPerByte - 1) * 8e9), 2'000);
  EXPECT_EQ(reading.LimitUs(8e9, kComputeFlopsPerByte * 8e9), 0);
  EXPECT_EQ(reading.LimitUs(0, 1), 0);
  EXPECT_EQ((MeasuredLimits{.bf16_flops_per_s = 8e14}.LimitUs(8e9, 8e13)), 0);
}

TEST_F(PartsTest, AGpuIsDividedWhenBothPartsAreOfIt) {
  EXPECT_TRUE(CheckDividedSms({.whole = 132, .first = 100, .second = 32}).ok());
  EXPECT_TRUE(CheckDividedSms({.whole = 132, .first = 96, .second = 32}).ok());
  for (const DividedSms& sms :
       {DividedSms{132, 132, 132}, {132, 101, 32}, {132, 0, 32}, {132, 100, 0}}) {
    const absl::Status status = CheckDividedSms(sms);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(std::string(CheckDividedSms({132, 132, 132}).message()),
              HasSubstr("not divided, 132 and 132 of 132 multiprocessors"));
}

TEST_F(PartsTest, WorkThatRunsOnItsPartTakesLongerOnTheSmallerOne) {
  const DividedSms sms = {.whole = 132, .first = 100, .second = 32};
  constexpr uint32_t kTiles = 768;  // 8 rounds of 100, 24 of 32
  EXPECT_TRUE(CheckGrowth(sms, kTiles, {100, 300}).ok());
  EXPECT_TRUE(CheckGrowth(sms, kTiles, {100, 201}).ok()) << "clocks differ";
  const absl::Status status = CheckGrowth(sms, kTiles, {100, 130});
  EXPECT_EQ(status.message(), "1.30 times the time in 24 rounds of tiles instead of 8");
  // One round on either: as long, however many multiprocessors there are.
  EXPECT_TRUE(CheckGrowth(sms, 32, {100, 100}).ok());
  EXPECT_FALSE(CheckGrowth(sms, 33, {100, 100}).ok());
}

TEST_F(PartsTest, ASampleIsLongEnoughForWhatAnEventCosts) {
  EXPECT_EQ(RepeatsFor(1.3, 1), 1u);
  EXPECT_EQ(RepeatsFor(0.25, 20), 4u);
  EXPECT_EQ(RepeatsFor(0.06, 20), 17u);
  EXPECT_EQ(RepeatsFor(0.001, 20), 102u) << "a graph of 2048 launches";
  EXPECT_EQ(RepeatsFor(0, 2048), 1u);
  EXPECT_EQ(RepeatsFor(0.1, 5000), 1u);
}

TEST_F(PartsTest, WhatTheSanitizerFoundIsNotWhatItFailedIn) {
  for (const char* line :
       {"========= Invalid __global__ read of size 4 bytes", "========= Error: Race reported",
        "========= Program hit cudaErrorLaunchFailure (error 719)",
        "========= Warpgroup MMA sequence error detected", "========= Barrier error detected.",
        "========= Deadlock detected in the kernel", "========= Uninitialized __shared__ memory"}) {
    EXPECT_EQ(SanitizerWordOf(line), SanitizerWord::kFound) << line;
  }
  for (const char* line : {"========= Error: process didn't terminate successfully",
                           "========= Error: No attachable process found. compute-sanitizer"}) {
    EXPECT_EQ(SanitizerWordOf(line), SanitizerWord::kToolFailed) << line;
  }
  for (const char* line : {"========= COMPUTE-SANITIZER", "========= ERROR SUMMARY: 0 errors",
                           "Program hit", "  FAIL    gemm", ""}) {
    EXPECT_EQ(SanitizerWordOf(line), SanitizerWord::kNothing) << line;
  }
}

// ---- Targets.

TEST_F(PartsTest, TheDesignsTargetsAreOfTheirShapes) {
  EXPECT_EQ(DecodeStepTarget(1, 1024).percent, 70);
  EXPECT_EQ(DecodeStepTarget(1, 8192).percent, 0);
  for (const uint32_t rows : {8u, 64u}) EXPECT_EQ(DecodeStepTarget(rows, 1024).percent, 80);
  EXPECT_EQ(DecodeStepTarget(65, 1024).percent, 0);
  // 2048 tokens at 75 % of 790 TFLOP/s: 5.925e8 operations a microsecond.
  EXPECT_DOUBLE_EQ(PromptTarget({2048, 5.925e11, true}).h200_us, 1000);
  EXPECT_DOUBLE_EQ(PromptTarget({8192, 0.72 * 790e9, false}).h200_us, 1000);
  EXPECT_DOUBLE_EQ(PromptTarget({8192, 0.80 * 790e9, true}).h200_us, 1000);
  EXPECT_EQ(PromptTarget({66, 1e9, true}).h200_us, 0);
  constexpr size_t kToken = 4096;  // bytes of KV of a layer
  EXPECT_EQ(DecodeAttentionTarget({64, 1024, 64 * 1024 * kToken, false}).percent, 90);
  EXPECT_EQ(DecodeAttentionTarget({1, 1024, 1024 * kToken, false}).h200_us, 7);
  EXPECT_EQ(DecodeAttentionTarget({8, 1024, 8 * 1024 * kToken, false}).h200_us, 13);
  EXPECT_EQ(DecodeAttentionTarget({8, 1024, 8 * 1024 * kToken / 2, true}).h200_us, 0);
  EXPECT_EQ(SkinnyProductTarget("qkv", 32, false).percent, 85);
  EXPECT_EQ(SkinnyProductTarget("o", 1, false).percent, 70);
  EXPECT_EQ(SkinnyProductTarget("qkv", 64, false).percent, 0);
  EXPECT_EQ(SkinnyProductTarget("qkv", 64, true).percent, 85);
  EXPECT_EQ(SkinnyProductTarget("qkv", 2048, true).percent, 0);
  EXPECT_EQ(PackedProductTarget(8, 32).percent, 85);
  EXPECT_EQ(PackedProductTarget(4, 1).percent, 0);
}

TEST_F(PartsTest, ATargetThatIsMissedIsToldBesideTheNumber) {
  const Target share = {.percent = 85};
  EXPECT_EQ(Judge(share, {10, 9, "NVIDIA A100"}).words, " (target 85 %: met)");
  const TargetResult missed = Judge(share, {10, 8, ""});
  EXPECT_EQ(missed.words, " (target 85 %: missed)");
  EXPECT_EQ(missed.verdict, "missed");
  EXPECT_EQ(Judge(share, {10, 0, ""}).verdict, "not judged");
  const Target time = {.h200_us = 7};
  EXPECT_EQ(Judge(time, {6.9, 1, "NVIDIA H200"}).verdict, "met");
  EXPECT_EQ(Judge(time, {7.5, 1, "NVIDIA H200"}).words, " (target of an H200 7.0 us: missed)");
  const TargetResult other = Judge(time, {7.5, 1, "NVIDIA H100 80GB HBM3"});
  EXPECT_EQ(other.words, " (target of an H200 7.0 us; this is none)");
  EXPECT_EQ(other.verdict, "not judged");
  EXPECT_EQ(Judge({}, {7, 1, "NVIDIA H200"}).words, "");
  EXPECT_EQ(JudgeRatio(kEngineStepRatio, 1.02).words, " (target 1.03: met)");
  EXPECT_EQ(JudgeRatio(kExposedOfCopy, 0.2).verdict, "missed");
  EXPECT_EQ(JudgeRatio(kExposedOfCopy, NAN).verdict, "not judged");
  EXPECT_EQ(CompareTimes(9, 10).words, "0.90 of its time, ahead");
  EXPECT_EQ(CompareTimes(11, 10).words, "1.10 of its time, behind");
  EXPECT_FALSE(CompareTimes(10, 10).is_ahead);
}

// ---- Files.

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_F(PartsTest, AFileIsWholeAfterEachCheckAndGrowsByItOnly) {
  Report report(Path("j"), {{"stage", "timings"}});
  report.Describe("device", "Fake");
  std::string before;
  for (int i = 0; i < 5; ++i) {
    Finding finding{.name = fmt::format("check {}", i), .detail = "said"};
    finding.data["samples_us"] = std::vector<double>(10, i);
    if (i == 2) report.Describe("limits", {{"read_bytes_per_s", 4e12}});
    ASSERT_TRUE(report.Add(std::move(finding)).ok());
    const std::string text = ReadText(Path("j"));
    const auto json = nlohmann::json::parse(text);
    ASSERT_EQ(json["checks"].size(), i + 1u);
    EXPECT_EQ(json["device"], "Fake");
    EXPECT_EQ(json.contains("limits"), i >= 2);
    EXPECT_EQ(text.substr(0, before.size()), before) << "what was written stays";
    before = text.substr(0, text.find("\n]"));
  }
  EXPECT_EQ(ReadLimits(Path("j"), "Fake").read_bytes_per_s, 4e12);
  EXPECT_EQ(ReadLimits(Path("j"), "Another").read_bytes_per_s, 0) << "of another device";
}

TEST_F(PartsTest, AFileThatWasCutAnywhereHasAllChecksThatAreWhole) {
  {
    Report report(Path("j"), {{"stage", "kernels"}, {"commit", "abc"}});
    report.Watch("clocks", [] { return nlohmann::json{{"lines", {1, 2}}}; });
    ASSERT_TRUE(report.Add({"one", Verdict::kPass, "a \"quoted\" word"}).ok());
    ASSERT_TRUE(report.Add({"two", Verdict::kFail, "[1] wrong"}).ok());
    ASSERT_TRUE(report.Add({"three", Verdict::kStopped, "}"}).ok());
    ASSERT_TRUE(report.Add({"four", Verdict::kNotRun, "none"}).ok());
  }
  const std::string text = ReadText(Path("j"));
  EXPECT_EQ(PageLineOf(ReadResults(Path("j")), "kernels"), "1 pass, 1 FAIL, 1 stopped, 1 not run");
  // Also with what is left of an older end behind a check that was not written to its end.
  for (const char* behind : {"", "\n],\n\"clocks\":{\"lines\":[1]}\n}\n"}) {
    const size_t end = *behind == 0 ? text.size() : text.find("\n]");
    for (size_t size = 0; size < end; ++size) {
      Write("cut", text.substr(0, size) + behind);
      const nlohmann::json results = ReadResults(Path("cut"));
      const size_t head = text.find('\n');
      if (size < head) {
        EXPECT_TRUE(results.is_null() || results["checks"].empty()) << size;
        continue;
      }
      size_t num_whole = 0;
      size_t line_end = head;
      while ((line_end = text.find('\n', line_end + 1)) <= size && num_whole < 4) ++num_whole;
      ASSERT_TRUE(results.is_object()) << size;
      EXPECT_GE(results["checks"].size(), num_whole) << size;
      EXPECT_LE(results["checks"].size(), num_whole + 1) << "a line may lack its end only";
    }
  }
  Write("cut", text.substr(0, text.find("\n,", text.find("\n,") + 1) + 9));
  nlohmann::json results;
  ASSERT_TRUE(MendResults(Path("cut"), &results).ok());
  EXPECT_EQ(PageLineOf(results, "kernels"), "1 pass, 1 FAIL, cut behind \"two\"");
  const auto mended = nlohmann::json::parse(ReadText(Path("cut")));
  EXPECT_EQ(mended["checks"].size(), 2u);
  EXPECT_EQ(mended["commit"], "abc");
  EXPECT_EQ(mended["cut"], true);
  Report next(Path("cut"), {{"stage", "peers"}});
  next.KeepEarlierChecks();
  ASSERT_TRUE(next.Add({"five"}).ok());
  EXPECT_EQ(PageLineOf(ReadResults(Path("cut")), "kernels"), "1 pass, 1 FAIL");
  EXPECT_EQ(PageLineOf(ReadResults(Path("cut")), "peers"), "1 pass");
}

TEST_F(PartsTest, WhatAFileHasNoRoomForFailsAndItsWordsStay) {
  Report report(Path("j"), {{"stage", "primitives"}});
  const auto add = [&report](const char* name, size_t bytes) {
    Finding finding{.name = name, .detail = "5 words"};
    finding.data["out"] = std::string(bytes, '0');
    return report.Add(std::move(finding));
  };
  ASSERT_TRUE(add("large", size_t{14} << 20).ok());
  EXPECT_EQ(report.ExitCode(), 0);
  ASSERT_TRUE(add("too much", size_t{2} << 20).ok());
  EXPECT_EQ(report.ExitCode(), 1);
  ASSERT_TRUE(add("small", 100).ok());
  const auto json = nlohmann::json::parse(ReadText(Path("j")));
  ASSERT_EQ(json["checks"].size(), 3u);
  EXPECT_EQ(json["checks"][1]["verdict"], "FAIL");
  EXPECT_FALSE(json["checks"][1].contains("out"));
  EXPECT_THAT(json["checks"][1]["detail"].get<std::string>(),
              HasSubstr("may have 16 MiB; it was: 5 words"));
  EXPECT_EQ(json["checks"][2]["verdict"], "pass");
  EXPECT_LT(ReadText(Path("j")).size(), kMaxFileBytes);
}

TEST_F(PartsTest, AFileThatIsFullIsAnErrorAndStaysAsItIs) {
  ResultsFile file;
  ASSERT_TRUE(file.Open(Path("j"), {{"stage", "x"}}).ok());
  ASSERT_TRUE(file.Write({{"name", "one"}}, nullptr).ok());
  const nlohmann::json large = std::string(kMaxFileBytes, 'x');
  const absl::Status status = file.Write({{"name", large}}, nullptr);
  EXPECT_THAT(std::string(status.message()), HasSubstr("and 16 MiB a file may come back"));
  EXPECT_EQ(nlohmann::json::parse(ReadText(Path("j")))["checks"].size(), 1u);
  EXPECT_FALSE(file.Open(Path("no/folder"), {}).ok());
}

TEST_F(PartsTest, MediansAndTargetsAreCounted) {
  const nlohmann::json results = {
      {"checks",
       {{{"name", "gemm"}, {"median_us", 5.0}, {"verdict", "pass"}, {"target", "missed"}},
        {{"name", "embed"}, {"median_us", 2.0}, {"verdict", "pass"}, {"target", "met"}},
        {{"name", "not timed"}, {"verdict", "pass"}, {"target", "not judged"}}}}};
  EXPECT_EQ(PageLineOf(results, "timings"), "3 pass; targets: 1 met, 1 missed, 1 not judged");
  EXPECT_EQ(MediansOf(results), (std::map<std::string, double>{{"embed", 2}, {"gemm", 5}}));
  EXPECT_EQ(PageLineOf(nullptr, ""), "");
  EXPECT_TRUE(MediansOf(nullptr).empty());
}

TEST_F(PartsTest, LimitsComeFromTheirStagesFile) {
  const MeasuredLimits limits = {1e12, 2e12, 3e12};
  Write("bandwidth.json", nlohmann::json{{"device", "Fake"}, {"limits", JsonOf(limits)}}.dump());
  const MeasuredLimits read = ReadLimits(Path("bandwidth.json"), "Fake");
  EXPECT_EQ(read.read_bytes_per_s, 1e12);
  EXPECT_EQ(read.copy_bytes_per_s, 2e12);
  EXPECT_EQ(read.bf16_flops_per_s, 3e12);
  Write("damaged.json", "{\"limits\": ");
  for (const char* name : {"damaged.json", "missing.json"}) {
    EXPECT_EQ(ReadLimits(Path(name), "Fake").read_bytes_per_s, 0) << name;
  }
}

// ---- Processes that end with a check.

TEST_F(PartsTest, AStageGoesOnBehindTheCheckThatItsProcessEndedIn) {
  {
    Report report(Path("j"), {{"stage", "kernels"}});
    report.Describe("device", "Fake");
    report.Watch("clocks", [] { return nlohmann::json{{"lines", {1}}}; });
    ASSERT_TRUE(report.Begin("one"));
    ASSERT_TRUE(report.Add({"one"}).ok());
    report.Describe("limits", {{"read_bytes_per_s", 4e12}});
    ASSERT_TRUE(report.Begin("two"));
  }
  EXPECT_EQ(PageLineOf(ReadResults(Path("j")), "kernels"), "1 pass, ended in \"two\"");
  Report report(Path("j"), {{"stage", "kernels"}});
  ASSERT_TRUE(report.Resume().ok());
  EXPECT_EQ(report.ExitCode(), 1) << "what it ended in has failed";
  EXPECT_FALSE(report.Begin("one"));
  EXPECT_FALSE(report.Begin("two"));
  EXPECT_TRUE(report.BeginNeeded("one")) << "others are compared with it";
  EXPECT_FALSE(report.BeginNeeded("two"));
  ASSERT_TRUE(report.Add({"one", Verdict::kFail, "again"}).ok());
  ASSERT_TRUE(report.Begin("three"));
  ASSERT_TRUE(report.Add({"three"}).ok());
  EXPECT_EQ(LimitsOf(report.Described("limits")).read_bytes_per_s, 4e12);
  const nlohmann::json results = ReadResults(Path("j"));
  ASSERT_EQ(results["checks"].size(), 3u);
  EXPECT_EQ(results["checks"][0]["verdict"], "pass");
  EXPECT_EQ(results["checks"][1]["detail"], "the process ended in it");
  EXPECT_EQ(results["stage"], "kernels");
  EXPECT_EQ(results["clocks_before"][0]["lines"][0], 1);
  EXPECT_EQ(PageLineOf(results, "kernels"), "2 pass, 1 FAIL");
  ASSERT_TRUE(report.Begin("four"));
  ASSERT_TRUE(report.Flush().ok());
  EXPECT_FALSE(ReadResults(Path("j")).contains("under_way")) << "the stage has come to its end";
}

TEST_F(PartsTest, AStageResumesBesideTheChecksOfAnother) {
  for (const char* stage : {"sanitizer", "peers"}) {
    Report report(Path("j"), {{"stage", stage}});
    report.KeepEarlierChecks();
    ASSERT_TRUE(report.Add({"all", Verdict::kFail, "wrong"}).ok());
  }
  Report report(Path("j"), {{"stage", "peers"}});
  ASSERT_TRUE(report.Resume().ok());
  EXPECT_FALSE(report.Begin("all"));
  ASSERT_TRUE(report.Add({"more"}).ok());
  EXPECT_EQ(ReadResults(Path("j"))["stage"], "sanitizer+peers");
  EXPECT_EQ(PageLineOf(ReadResults(Path("j")), "sanitizer"), "1 FAIL");
  EXPECT_EQ(PageLineOf(ReadResults(Path("j")), "peers"), "1 pass, 1 FAIL");
  Report missing(Path("missing"), {{"stage", "peers"}});
  EXPECT_TRUE(missing.Resume().ok());
  EXPECT_TRUE(missing.Begin("all"));
}

using PartsDeathTest = PartsTest;

TEST_F(PartsDeathTest, AProcessEndsWithTheCheckThatLostItsDevice) {
  const auto lose = [this](bool is_lost) {
    Report report(Path("j"), {{"stage", "kernels"}});
    report.GuardBy({.ask_device = [is_lost] {
      return is_lost ? Internal("an illegal address") : absl::OkStatus();
    }});
    (void)report.Begin("one");
    (void)report.Add({"one"});  // nothing is asked after what passed
    (void)report.Begin("two");
    (void)report.Add({"two", Verdict::kFail, "wrong"});
    std::exit(3);
  };
  EXPECT_EXIT(lose(false), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(lose(true), ::testing::ExitedWithCode(kExitLost), "");
  const nlohmann::json results = ReadResults(Path("j"));
  EXPECT_EQ(results["lost"][0], "an illegal address");
  EXPECT_EQ(PageLineOf(results, "kernels"), "1 pass, 1 FAIL");
}

TEST_F(PartsDeathTest, ACheckThatTakesTooLongIsStopped) {
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const auto hang = [&](bool in_check) {
    Report report(Path("j"), {{"stage", "kernels"}});
    report.GuardBy({.ask_device =
                        [] {
                          pause();
                          return absl::OkStatus();
                        },
                    .patience = kPatience});
    (void)report.Begin("one");
    (void)report.Add({"one"});
    std::this_thread::sleep_for(2 * kPatience);  // between checks nothing is stopped
    (void)report.Begin("two");
    if (in_check) pause();
    (void)report.Add({"two", Verdict::kFail, "wrong"});
  };
  EXPECT_EXIT(hang(true), ::testing::ExitedWithCode(kExitLost), "");
  nlohmann::json results = ReadResults(Path("j"));
  ASSERT_EQ(results["checks"].size(), 2u);
  EXPECT_EQ(results["checks"][1]["verdict"], "FAIL");
  EXPECT_EQ(results["checks"][1]["detail"], "stopped after 0.1 s");
  EXPECT_EQ(results["lost"][0], "\"two\" was stopped after 0.1 s");
  // Also while the device is asked; the check has its own words by then.
  EXPECT_EXIT(hang(false), ::testing::ExitedWithCode(kExitLost), "");
  results = ReadResults(Path("j"));
  ASSERT_EQ(results["checks"].size(), 2u);
  EXPECT_EQ(results["checks"][1]["detail"], "wrong");
}

TEST_F(PartsTest, StagesMayShareAFile) {
  const std::string path = Path("tools.json");
  int asked = 0;
  {
    Report first(path, {{"stage", "sanitizer"}});
    first.KeepEarlierChecks();
    ASSERT_TRUE(first.Add({"one", Verdict::kFail, "wrong"}).ok());
    EXPECT_EQ(first.ExitCode(), 1);
  }
  Report second(path, {{"stage", "peers"}});
  second.KeepEarlierChecks();
  second.Watch("asked", [&asked] { return ++asked; });
  ASSERT_TRUE(second.Add({"two", Verdict::kPass, "right"}).ok());
  ASSERT_TRUE(second.Flush().ok());
  EXPECT_EQ(second.ExitCode(), 0) << "of its own checks";
  const auto json = nlohmann::json::parse(std::ifstream(path));
  EXPECT_EQ(json["stage"], "sanitizer+peers");
  EXPECT_EQ(json["asked"], 2);
  ASSERT_EQ(json["checks"].size(), 2u);
  EXPECT_EQ(json["checks"][0]["verdict"], "FAIL");
  EXPECT_EQ(json["checks"][1]["name"], "two");
}

}  // namespace
}  // namespace baton::kernels::gpu_check
