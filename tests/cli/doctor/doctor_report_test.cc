#include "src/cli/doctor/doctor_report.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/cli/doctor/host_checks.h"
#include "tests/cli/doctor/good_host.h"

namespace baton::cli {
namespace {

std::vector<HostCheck> OneOfEach() {
  return {AsOk({.id = "a", .why = "wa"}, "va"),
          AsWarning({.id = "b", .why = "wb"}, "vb", {"fb", "true"}),
          AsProblem({.id = "c", .why = "wc"}, "vc", {"fc", ""}),
          AsNotApplicable({.id = "d", .why = "wd"}, "vd")};
}

TEST(DoctorReportTest, TextSaysWhyAndHowOnlyWhereSomethingIsWrong) {
  const std::string text = DoctorText(OneOfEach(), 1234);
  for (const char* part : {"va", "vb", "vc", "vd", "why: wb", "fix: fb", "why: wc", "fix: fc",
                           "4 checks in 1234 ms: 1 ok, 1 warning, 1 problem, 1 not applicable"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(text.find("wa"), text.find("warning")) << "nothing to say about what is in order";
  EXPECT_EQ(text.find("why: wd"), std::string::npos);
}

TEST(DoctorReportTest, JsonHasEveryCheck) {
  const auto root = nlohmann::json::parse(DoctorJson(OneOfEach(), 5));
  EXPECT_EQ(root["verdict"], "problem");
  EXPECT_EQ(root["elapsed_ms"], 5);
  EXPECT_EQ(root["counts"]["ok"], 1);
  EXPECT_EQ(root["counts"]["not applicable"], 1);
  ASSERT_EQ(root["checks"].size(), 4u);
  EXPECT_EQ(root["checks"][1]["command"], "true");
  EXPECT_FALSE(root["checks"][0].contains("fix"));
  EXPECT_FALSE(root["checks"][2].contains("command"));
  const auto clean = nlohmann::json::parse(DoctorJson(CheckHost(GoodHost(), {}), 5));
  EXPECT_EQ(clean["verdict"], "ok");
}

// Runs a script with `sh`; returns its exit code and the text that it printed.
std::pair<int, std::string> RunShell(const std::string& options, const std::string& script) {
  const std::string path = testing::TempDir() + "/doctor_report_test.sh";
  std::ofstream(path) << script;
  std::FILE* const pipe = popen(("sh " + options + " " + path + " 2>&1").c_str(), "r");
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe))
    output.push_back(static_cast<char>(c));
  const int code = pclose(pipe);
  std::remove(path.c_str());
  return {code, output};
}

// Everything that has a command, wrong at once.
HostFacts WorstHost() {
  HostFacts facts = GoodHost();
  facts.cpu.governors = {"powersave"};
  facts.cpu.num_numa_nodes = 2;
  facts.cpu.numa_balancing = true;
  facts.memory.swap_bytes = 1 << 20;
  facts.memory.transparent_huge_pages = "never";
  facts.memory.shmem_huge_pages = "never";
  facts.memory.hugetlb_bytes = 2 << 20;
  facts.memory.overcommit = 2;
  facts.memory.dev_shm_bytes = 1 << 20;
  facts.system.clock_source = "hpet";
  facts.system.clock_synchronised = false;
  facts.network.first_local_port = 1024;
  facts.network.somaxconn = 1;
  facts.network.max_send_buffer_bytes = 4096;
  return facts;
}

TEST(DoctorReportTest, TheFixPlanIsAShellScript) {
  const std::string script = DoctorFixPlan(CheckHost(WorstHost(), {}));
  const auto [code, output] = RunShell("-n", script);
  EXPECT_EQ(code, 0) << output << script;
  for (const char* line :
       {"\nswapoff -a\n", "\nsysctl -w vm.overcommit_memory=0\n", "echo performance",
        "\nsysctl -w net.core.somaxconn=4096\n", "\nsysctl -w kernel.numa_balancing=0\n"}) {
    EXPECT_NE(script.find(line), std::string::npos) << line << " in\n" << script;
  }
}

// A model's file name, say, comes from whoever wrote the folder.
TEST(DoctorReportTest, TextOfTheHostCannotBecomeACommand) {
  std::vector<HostCheck> checks = OneOfEach();
  checks[1].value = "x\necho taken\r\necho over";
  checks[2].fix.text = "y\necho taken";
  const auto [code, output] = RunShell("", DoctorFixPlan(checks));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(output, "");
}

TEST(DoctorReportTest, WithNothingToMendTheScriptDoesNothing) {
  const std::string script = DoctorFixPlan(CheckHost(GoodHost(), {}));
  EXPECT_NE(script.find("Everything is in order"), std::string::npos);
  EXPECT_EQ(RunShell("", script), std::make_pair(0, std::string()));
}

}  // namespace
}  // namespace baton::cli
