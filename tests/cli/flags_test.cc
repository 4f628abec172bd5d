#include "src/cli/flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

// The flags that the cases below use.
struct Bound {
  FlagSet flags{"serve", "Test."};
  std::string model;
  std::string memory = "1GiB";
  std::string isa = "auto";
  std::string secret_file;
  int64_t threads = 0;
  bool deterministic = false;

  Bound() {
    flags.Add("MODEL", model, "model");
    flags.Add("--kv-memory", memory, "memory");
    flags.AddChoice("--isa", isa, {"auto", "avx2"}, "isa");
    flags.AddFile("--secret-file", secret_file, "secret");
    flags.Add("--threads", threads, {0, 64}, "threads");
    flags.Add("--deterministic", deterministic, "switch");
  }
};

// Exit code and what went to stderr.
struct Outcome {
  std::optional<int> code;
  std::string error;
};

Outcome Parse(Bound& bound, const std::vector<std::string>& args) {
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = bound.flags.Parse(args);
  outcome.error = testing::internal::GetCapturedStderr();
  return outcome;
}

std::string WriteFile(const std::string& text) {
  const std::string path = testing::TempDir() + "/flags_test.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(FlagSetTest, BindsValuesInBothForms) {
  Bound b;
  EXPECT_FALSE(Parse(b, {"m.gguf", "--kv-memory", "2GiB", "--threads=4", "--deterministic"}).code);
  EXPECT_EQ(b.model, "m.gguf");
  EXPECT_EQ(b.memory, "2GiB");
  EXPECT_EQ(b.threads, 4);
  EXPECT_TRUE(b.deterministic);
  EXPECT_TRUE(b.flags.Given("--threads"));
  EXPECT_FALSE(b.flags.Given("--isa"));
}

TEST(FlagSetTest, NumbersAreDecimal) {
  Bound b;
  EXPECT_FALSE(Parse(b, {"--threads=010"}).code);
  EXPECT_EQ(b.threads, 10);
  const std::string config = WriteFile("threads: 08\n");
  Bound of_file;
  EXPECT_FALSE(Parse(of_file, {"--config", config}).code);
  EXPECT_EQ(of_file.threads, 8);
  for (const char* text : {"0x10", "1e1", "7.0", "", "65", "-1", "seven"}) {
    Bound bad;
    const Outcome outcome = Parse(bad, {std::string("--threads=") + text});
    EXPECT_EQ(outcome.code, kExitUsage) << text;
    EXPECT_NE(outcome.error.find("is not a whole number in [0, 64]"), std::string::npos)
        << outcome.error;
  }
  FlagSet flags("sim", "Test.");
  int64_t seed = 0;
  flags.Add("--seed", seed, {0, INT64_MAX}, "seed");
  EXPECT_FALSE(flags.Parse({"--seed=9223372036854775807"}));
  EXPECT_EQ(seed, INT64_MAX);
  testing::internal::CaptureStderr();
  EXPECT_EQ(flags.Parse({"--seed=9223372036854775808"}), kExitUsage) << "one more";
  testing::internal::GetCapturedStderr();
}

TEST(FlagSetTest, SwitchesAreTrueOrFalse) {
  // The command line and the file take the same words.
  const auto by_flag = [](const std::string& word) { return "--deterministic=" + word; };
  const auto by_file = [](const std::string& word) {
    return "--config=" + WriteFile("deterministic: '" + word + "'\n");
  };
  for (const std::string word : {"true", "yes", "on", "On", "1", "false", "no", "off", "0"}) {
    const bool is_on = word == "true" || word == "yes" || word == "1" || word[1] == 'n';
    for (const std::string& arg : {by_flag(word), by_file(word)}) {
      Bound b;
      EXPECT_FALSE(Parse(b, {arg}).code) << arg;
      EXPECT_EQ(b.deterministic, is_on) << word;
    }
  }
  for (const std::string word : {"5", "maybe", "enable", ""}) {
    for (const std::string& arg : {by_flag(word), by_file(word)}) {
      Bound bad;
      const Outcome outcome = Parse(bad, {arg});
      EXPECT_EQ(outcome.code, kExitUsage) << arg;
      EXPECT_NE(outcome.error.find("deterministic"), std::string::npos) << outcome.error;
    }
  }
}

TEST(FlagSetTest, KnowsWhichFlagsHaveNoValue) {
  const Bound b;
  for (const char* flag : {"--deterministic", "--help", "-h"}) {
    EXPECT_TRUE(b.flags.IsSwitch(flag)) << flag;
  }
  for (const char* flag : {"--threads", "--isa", "--config", "--unknown", "MODEL", ""}) {
    EXPECT_FALSE(b.flags.IsSwitch(flag)) << flag;
  }
}

TEST(FlagSetTest, ANumberThatIsNoChoiceGetsTheListAlone) {
  FlagSet flags("serve", "Test.");
  std::string ranks = "1";
  flags.AddChoice("--ranks", ranks, {"1", "2", "4", "8"}, "ranks");
  testing::internal::CaptureStderr();
  EXPECT_EQ(flags.Parse({"--ranks", "16"}), 2);
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("'16' is not one of 1|2|4|8"), std::string::npos) << error;
  EXPECT_EQ(error.find("did you mean"), std::string::npos) << error;
}

TEST(FlagSetTest, UsageErrorsNameTheNearestOrTheRange) {
  const struct {
    std::vector<std::string> args;
    std::string expected;
  } cases[] = {
      {{"--kv-memroy=1"}, "did you mean --kv-memory?"},
      {{"--thread", "2"}, "did you mean --threads?"},
      {{"m", "extra"}, "unexpected argument 'extra'"},
      {{"--threads", "65"}, "[0, 64]"},
      {{"--threads", "two"}, "[0, 64]"},
      {{"--isa", "avx3"}, "did you mean avx2?"},
      {{"--secret-file", ""}, "--secret-file: names no file"},
      {{"--secret-file="}, "--secret-file: names no file"},
  };
  for (const auto& c : cases) {
    Bound b;
    const Outcome outcome = Parse(b, c.args);
    EXPECT_EQ(outcome.code, kExitUsage) << c.args[0];
    EXPECT_NE(outcome.error.find(c.expected), std::string::npos) << outcome.error;
    EXPECT_EQ(outcome.error.find("baton serve: "), 0u);
  }
}

TEST(FlagSetTest, ConfigFileHoldsTheSameKeysAndTheCommandLineWins) {
  const std::string path =
      WriteFile("kv-memory: 3GiB\nthreads: 8\ndeterministic: true\nisa: avx2\n");
  Bound b;
  EXPECT_FALSE(Parse(b, {"m", "--config", path, "--threads", "2"}).code);
  EXPECT_EQ(b.memory, "3GiB");
  EXPECT_EQ(b.threads, 2);
  EXPECT_EQ(b.isa, "avx2");
  EXPECT_TRUE(b.deterministic);
}

TEST(FlagSetTest, AnEmptyValueIsItsOwnAndNotTheNextArgument) {
  const std::string path = WriteFile("kv-memory: \"\"\n");
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--kv-memory=", "m"}, {"--kv-memory", "", "m"}, {"--config", path, "m"}}) {
    Bound b;
    EXPECT_FALSE(Parse(b, args).code) << args[0];
    EXPECT_EQ(b.memory, "") << args[0];
    EXPECT_EQ(b.model, "m") << args[0];
  }
}

TEST(FlagSetTest, AListOnTheCommandLineReplacesTheFilesList) {
  const std::string path = WriteFile("router: [a:1, b:2]\n");
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--router=c:3"}, {"--router", "c:3"}, {"--router=c:3", "--router=d:4"}, {}}) {
    FlagSet flags("decode", "Test.");
    std::vector<std::string> routers;
    flags.Add("--router", routers, "routers");
    std::vector<std::string> all = args;
    all.push_back("--config=" + path);
    ASSERT_FALSE(flags.Parse(all));
    const std::vector<std::string> expected =
        args.empty()
            ? std::vector<std::string>{"a:1", "b:2"}
            : (args.size() == 2 && args[0] != "--router" ? std::vector<std::string>{"c:3", "d:4"}
                                                         : std::vector<std::string>{"c:3"});
    EXPECT_EQ(routers, expected);
  }
}

TEST(FlagSetTest, AJoinedFlagAddsToWhatItHas) {
  const std::string path = WriteFile("names: [a, b]\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--names", "a", "--names=b,c"}, "a,b,c"},
      {{"--names=a,b"}, "a,b"},
      {{"--names=x=a,b", "--names", "y=c"}, "x=a,b,y=c"},
      {{"--config", path}, "a,b"},
      {{"--config", path, "--names=c"}, "c"},
      {{}, ""},
  };
  for (const auto& [args, expected] : cases) {
    FlagSet flags("serve", "Test.");
    std::string names;
    flags.AddJoined("--names", names, "names");
    ASSERT_FALSE(flags.Parse(args));
    EXPECT_EQ(names, expected);
  }
}

// A variable of a script that is not set gives "", and the default would start unnoticed.
TEST(FlagSetTest, AnEmptyValueOfATextOrOfAListIsAUsageError) {
  const std::string path = WriteFile("names: \"\"\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--names", ""}, "--names: its value is empty; without one leave the flag out"},
      {{"--names="}, "--names: its value is empty"},
      {{"--names=a", "--names="}, "--names: its value is empty"},
      {{"--size="}, "--size: its value is empty"},
      {{"--whole", ""}, "--whole: its value is empty"},
      {{"--whole=a", "--whole="}, "--whole: its value is empty"},
      {{"--config", path}, "line 1: --names: its value is empty"},
  };
  for (const auto& [args, expected] : cases) {
    FlagSet flags("serve", "Test.");
    std::string names;
    std::string size = "1GiB";
    std::vector<std::string> whole;
    flags.AddWhole("--whole", whole, "whole");
    flags.AddJoined("--names", names, "names");
    flags.AddText("--size", size, "size");
    testing::internal::CaptureStderr();
    EXPECT_EQ(flags.Parse(args), kExitUsage) << args[0];
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_NE(error.find(expected), std::string::npos) << error;
  }
}

TEST(FlagSetTest, ConfigFileMayNameSeveralModels) {
  const std::string path = WriteFile("model: [a.gguf, b:1]\n");
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"--config", path}, {"a.gguf", "b:1"}},
      {{"c", "--config", path}, {"c"}},
  };
  for (const auto& [args, expected] : cases) {
    FlagSet flags("serve", "Test.");
    std::vector<std::string> models;
    flags.AddWhole("MODEL", models, "models");
    ASSERT_FALSE(flags.Parse(args));
    EXPECT_EQ(models, expected);
  }
  FlagSet flags("serve", "Test.");
  std::vector<std::string> models;
  flags.AddWhole("MODEL", models, "models");
  testing::internal::CaptureStderr();
  EXPECT_EQ(flags.Parse({"--config", WriteFile("model: [\"a,b\"]\n")}), kExitUsage);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("'a,b' has a comma"), std::string::npos);
}

TEST(FlagSetTest, BadConfigFilesAreUsageErrors) {
  const struct {
    std::string text;
    std::string expected;
  } cases[] = {
      {"isa: auto\nkv-memroy: 3GiB\n",
       "flags_test.yaml: line 2: unknown key 'kv-memroy'; did you mean --kv-memory?"},
      {"- a\n- b\n", "must be a map"},
      {"isa: auto\n: 1\n", "line 2: a key must be the name of a flag"},
      {"{a: b}: 1\n", "line 1: a key must be the name of a flag"},
      {"isa: auto\n# many\nthreads: 99\n", "flags_test.yaml: line 3: --threads: '99' is not a"},
      {"isa: {a: 1}\n", "line 1: key 'isa' is a map"},
      {"model: {a: 1}\n", "line 1: key 'model' is a map"},
      {"model: [a, b]\n", "line 1: key 'model' takes one value"},
      {"threads: [", "flags_test.yaml"},
      {"threads: 1\nisa: auto\nthreads: 2\n", "line 3: key 'threads' is already given in line 1"},
      {"kv-memory: 1GiB\nkv_memory: 2GiB\n", "line 2: key 'kv_memory' is already given in line 1"},
      {"isa:\n", "line 1: key 'isa' has no value"},
      {"model: ~\n", "line 1: key 'model' has no value"},
      {"isa: [null]\n", "line 1: key 'isa' has no value"},
      {"deterministic: perhaps\n", "line 1: key 'deterministic' is true or false"},
      {"threads: [1, 2]\n", "line 1: key 'threads' takes one value"},
      {"threads: 1\n---\nfoo: bar\n", "several documents"},
      {"help: true\n", "key 'help' belongs on the command line"},
  };
  for (const auto& c : cases) {
    Bound b;
    const Outcome outcome = Parse(b, {"m", "--config=" + WriteFile(c.text)});
    EXPECT_EQ(outcome.code, kExitUsage) << c.text;
    EXPECT_NE(outcome.error.find(c.expected), std::string::npos) << outcome.error;
  }
  Bound given;
  const Outcome own = Parse(given, {"m", "--config=" + WriteFile("isa: auto\n"), "--threads=99"});
  EXPECT_EQ(own.error.find("baton serve: --threads: '99'"), 0u) << own.error;
  Bound unnamed;
  EXPECT_EQ(Parse(unnamed, {"m", "--config="}).error, "baton serve: --config names no file\n");
  Bound b;
  const Outcome missing = Parse(b, {"m", "--config", "/nowhere.yaml"});
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_EQ(missing.error, "baton serve: --config /nowhere.yaml: there is no such file\n");
  const Outcome two = Parse(b, {"m", "--config", "/a.yaml", "--config=/b.yaml"});
  EXPECT_EQ(two.code, kExitUsage);
  EXPECT_EQ(two.error,
            "baton serve: --config is given more than once; give one file with all keys\n");
}

TEST(FlagSetTest, ConfigFileMayNameTheModelAndTheCommandLineWins) {
  for (const char* key : {"model", "MODEL"}) {
    const std::string path = WriteFile(std::string(key) + ": file.gguf\nthreads: 3\n");
    Bound from_file;
    EXPECT_FALSE(Parse(from_file, {"--config", path}).code);
    EXPECT_EQ(from_file.model, "file.gguf");
    EXPECT_EQ(from_file.threads, 3);
    Bound given;
    EXPECT_FALSE(Parse(given, {"given.gguf", "--config", path}).code);
    EXPECT_EQ(given.model, "given.gguf");
  }
}

// A configuration may come from a command; a FIFO that nobody writes must not hang the start.
TEST(FlagSetTest, ConfigMayBeAPipeAndIsNoFifo) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = "model: piped.gguf\n";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  Bound piped;
  EXPECT_FALSE(Parse(piped, {"--config=/dev/fd/" + std::to_string(ends[0])}).code);
  EXPECT_EQ(piped.model, "piped.gguf");
  ::close(ends[0]);
  const std::string fifo = testing::TempDir() + "/flags_test_fifo";
  ::unlink(fifo.c_str());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Bound b;
  const Outcome outcome = Parse(b, {"m", "--config", fifo});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_NE(outcome.error.find("is a FIFO"), std::string::npos) << outcome.error;
  ::unlink(fifo.c_str());
}

TEST(FlagSetTest, ReservedWordsAreTakenAndNotOffered) {
  FlagSet flags("serve", "Test.");
  std::string device = "auto";
  flags.AddChoice("--device", device, {"auto", "cpu"}, "device", {"cuda"});
  testing::internal::CaptureStdout();
  EXPECT_EQ(flags.Parse({"--help"}), kExitOk);
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_NE(help.find("auto|cpu"), std::string::npos) << help;
  EXPECT_EQ(help.find("cuda"), std::string::npos) << help;
  FlagSet again("serve", "Test.");
  again.AddChoice("--device", device, {"auto", "cpu"}, "device", {"cuda"});
  EXPECT_FALSE(again.Parse({"--device=cuda"}));
  EXPECT_EQ(device, "cuda") << "the caller says why not";
}

}  // namespace
}  // namespace baton::cli
