#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <span>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/log.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/foreign_flags.h"
#include "src/cli/worker_flags.h"
#include "src/model/compute_device.h"
#include "tests/model/gguf_builder.h"

namespace baton::cli {

using device::ParseDeviceKind;
using kv::KvDtypeName;
using model::CheckDeviceInBuild;
using model::GgufBuilder;
using model::TinyLlama;

namespace {

using Run = int (*)(const std::vector<std::string>&);

// A command line that is wrong whatever is on this machine, and what its one line must name.
struct WrongUse {
  Run run;
  std::vector<std::string> args;
  std::string expected;
};

void ExpectUsageErrors(std::span<const WrongUse> cases) {
  for (const WrongUse& c : cases) {
    testing::internal::CaptureStderr();
    const int code = c.run(c.args);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, kExitUsage) << error;
    EXPECT_NE(error.find(c.expected), std::string::npos) << error;
  }
}

// A command line of `plan` that is right, and what comes after it.
std::vector<std::string> PlanOf(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"m.gguf"};
  const std::pair<std::string, std::string> usual[] = {
      {"--input=", "8"}, {"--output=", "8"}, {"--rate=", "1"}, {"--ttft=", "1s"}, {"--itl=", "1s"}};
  for (const auto& [flag, value] : usual) {
    const bool is_given = std::any_of(more.begin(), more.end(), [&flag](const std::string& other) {
      return other.starts_with(flag);
    });
    if (!is_given) args.push_back(flag + value);
  }
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(UsageExitTest, WhatTwoWorkersOfAProcessCannotHaveIsNamed) {
  const std::vector<std::string> prefill = {"--router=127.0.0.1:1", "--model=m.gguf"};
  const auto with = [&prefill](std::vector<std::string> more) {
    more.insert(more.end(), prefill.begin(), prefill.end());
    return more;
  };
  const std::string decode = "--colocate-decode=decode-0";
  const WrongUse cases[] = {
      {&RunServe, {"m.gguf", "--colocate", "--prefill=2"}, "--prefill 2: --colocate"},
      {&RunServe, {"m.gguf", "--colocate", "--prefill=0"}, "--prefill 0: --colocate"},
      {&RunServe, {"m.gguf", "--colocate", "--decode=2"}, "--decode 2: --colocate"},
      {&RunServe, {"m.gguf", "--colocate", "--mode=aggregated"}, "--mode aggregated"},
      {&RunServe, {"m.gguf", "--colocate", "--transport=shm"}, "--transport shm: --colocate"},
      {&RunServe, {"m.gguf", "--colocate", "--transport=nccl"}, "--transport nccl: --colocate"},
      {&RunDecode, with({decode}), "--colocate-decode"},
      {&RunPrefill, with({"--colocate-threads=2"}), "goes with --colocate-decode"},
      {&RunPrefill, with({"--colocate-decode=Not ok"}), "--colocate-decode"},
      {&RunPrefill, with({"--colocate-decode=prefill-0"}), "the name of the prefill worker too"},
      {&RunPrefill, with({"--colocate-decode=a", "--worker-id=a"}), "of the prefill worker too"},
      {&RunPrefill, with({decode, "--transport=tcp"}), "--transport tcp: --colocate-decode"},
      {&RunPrefill, with({decode, "--kv-listen=127.0.0.1:0"}), "--kv-listen 127.0.0.1:0"},
      {&RunPrefill, with({decode, "--advertise=10.0.0.1:70"}), "--advertise 10.0.0.1:70"},
  };
  ExpectUsageErrors(cases);
}

TEST(UsageExitTest, TwoPortsOfOneProcessHaveTwoAddresses) {
  const WrongUse cases[] = {
      {&RunServe, {"m.gguf", "--http=h:1", "--admin=h:1"}, "--http and --admin are both h:1"},
      {&RunRouter, {"--http=h:1", "--grpc=h:1"}, "--grpc and --http are both h:1"},
  };
  ExpectUsageErrors(cases);
}

TEST(UsageExitTest, ABatchIsOneTo256Sequences) {
  const WrongUse cases[] = {
      {&RunServe,
       {"m.gguf", "--max-batch=0"},
       "--max-batch: '0' is not a whole number in [1, 256]"},
      {&RunDecode, {"--router=127.0.0.1:1", "--model=m.gguf", "--max-batch=257"}, "in [1, 256]"},
      {&RunPrefill, {"--router=127.0.0.1:1", "--model=m.gguf", "--max-batch=x"}, "--max-batch"},
  };
  ExpectUsageErrors(cases);
}

TEST(UsageExitTest, GuessesAreOfTheProcessor) {
  const WrongUse cases[] = {
      {&RunServe, {"m.gguf", "--speculate=eagle"}, "off|ngram|auto"},
      {&RunPrefill, {"--router=a:1", "--model=m.gguf", "--speculate"}, "--speculate"},
  };
  ExpectUsageErrors(cases);
  WorkerTuning tuning;
  for (const std::string mode : {"off", "ngram", "auto"}) {
    tuning.speculate = mode;
    EXPECT_EQ(engine::SpeculateModeName(SpeculateModeOf(tuning)), mode);
    for (const std::string device : {"cuda", "simt"}) {
      tuning.device = device;
      const Status status = CheckTuning(tuning);
      if (!CheckDeviceInBuild(*ParseDeviceKind(device)).ok() || mode == "off") continue;
      EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
      EXPECT_NE(status.message().find("--speculate " + mode), std::string::npos) << status;
    }
    tuning.device = "cpu";
    EXPECT_TRUE(CheckTuning(tuning).ok());
  }
}

TEST(UsageExitTest, TypesOfTheProcessorAreRefusedByDevices) {
  for (const std::string dtype : {"f32", "q8"}) {
    WorkerTuning tuning;
    tuning.kv_dtype = dtype;
    for (const std::string device : {"auto", "cpu"}) {
      tuning.device = device;
      EXPECT_TRUE(CheckTuning(tuning).ok()) << device;
      EXPECT_EQ(KvDtypeName(KvDtypeOf(tuning)), dtype);
    }
    for (const std::string device : {"cuda", "simt"}) {
      if (!CheckDeviceInBuild(*ParseDeviceKind(device)).ok()) continue;
      tuning.device = device;
      for (const std::string ranks : {"1", "2"}) {
        tuning.tensor_parallel = ranks;
        const Status status = CheckTuning(tuning);
        EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
        EXPECT_NE(status.message().find("--kv-dtype " + dtype), std::string::npos) << status;
      }
    }
  }
}

TEST(UsageExitTest, EveryRoleSaysTwoForAWrongCommandLine) {
  const std::string router = "--router=127.0.0.1:1";
  const WrongUse cases[] = {
      {&RunPrefill, {"--model=m.gguf"}, "--router"},
      {&RunDecode, {router}, "--model"},
      {&RunPrefill, {router, "--model=m.gguf", "--device=cuda"}, "--device cuda"},
      {&RunDecode, {router, "--model=m.gguf", "--kv-memory=lots"}, "--kv-memory"},
      {&RunPrefill, {router, "--model=m.gguf", "--kv-dtype=q4"}, "bf16|f32|fp8|q8"},
      {&RunDecode, {router, "--model=m.gguf", "--device=cpu", "--kv-dtype=fp8"}, "bf16 or f32"},
      {&RunServe, {"m.gguf", "--device=cpu", "--kv-dtype=fp8"}, "--kv-dtype fp8"},
      {&RunServe, {"m.gguf", "--kv-dtype=fp4"}, "bf16|f32|fp8|q8"},
      {&RunServe, {"m.gguf", "--kv-memory=lots"}, "--kv-memory"},
      {&RunServe, {"m.gguf", "--metrics-aliases=vlm"}, "mean 'vllm'"},
      {&RunRouter, {"--metrics-aliases=vllm,sglang"}, "--metrics-aliases: 'sglang'"},
      {&RunDecode, {router, "--model=m.gguf", "--metrics-aliases=x"}, "--metrics-aliases"},
      {&RunServe, {"m.gguf", "--mode=aggregated", "--prefill=2"}, "--prefill is 2"},
      {&RunServe, {}, "MODEL"},
      {&RunServe, {"m.gguf", "--http", "1.2.3"}, "--http: '1.2.3'"},
      {&RunServe, {"m.gguf", "--grpc=127.0.0.1:70000"}, "--grpc: '127.0.0.1:70000'"},
      {&RunServe, {"m.gguf", "--admin=:9090"}, "--admin"},
      {&RunServe, {"m.gguf", "--admin="}, "--admin"},
      {&RunServe, {"m.gguf", "--shadow=1.01"}, "--shadow: '1.01'"},
      {&RunRouter, {"--shadow=-0.1"}, "--shadow: '-0.1'"},
      {&RunRouter, {"--shadow=nan"}, "--shadow: 'nan'"},
      {&RunServe, {"m.gguf", "--max-context=1"}, "the smallest is 2"},
      {&RunServe, {"m.gguf", "--max-context=-1"}, "[0, 1048576]"},
      {&RunRouter, {"--http=::1:8080"}, "brackets"},
      {&RunRouter, {"--grpc=x"}, "--grpc"},
      {&RunRouter, {"--admin=127.0.0.1:http"}, "--admin"},
      {&RunDecode, {router, "--model=m.gguf", "--worker-id=Decode 0"}, "'Decode 0'"},
      {&RunDecode,
       {router, "--model=m.gguf", "--worker-id", ""},
       "--worker-id: its value is empty"},
      {&RunDecode, {router, "--model=m.gguf", "--listen=1.2.3"}, "--listen"},
      {&RunPrefill, {router, "--model=m.gguf", "--kv-listen=h:x"}, "--kv-listen"},
      {&RunPrefill, {router, "--model=m.gguf", "--admin=h"}, "--admin"},
      {&RunPrefill, {router, "--model=m.gguf", "--advertise=::1"}, "--advertise"},
      {&RunPrefill, {"--router=a:1,b", "--model=m.gguf"}, "'b'"},
      {&RunDecode, {router, "--model=m.gguf", "--max-context=1"}, "--max-context 1"},
      {&RunDecode, {router, "--model=m.gguf", "--threads=257"}, "[0, 256]"},
      {&RunBench, {"model", "m.gguf", "--threads=257"}, "[0, 256]"},
      {&RunConvert, {"a.gguf", "b.gguf", "--threads=257"}, "[0, 256]"},
      {&RunBench, {"model"}, "MODEL"},
      {&RunBench, {"--natural-end", "model"}, "--natural-end"},
      {&RunBench, {"--find-max", "--json", "model", "localhost"}, "'localhost' is no server"},
      {&RunBench, {"https://h:1", "--rate=1"}, "has no TLS; name the server's plain port (http://"},
      {&RunBench, {"grpcs://h:1", "--rate=1"}, "has no TLS; name the server's plain port (grpc://"},
      {&RunBench, {"--rate=1"}, "URL is missing"},
      {&RunBench, {"ftp://h:1", "--rate=1"}, "'ftp://h:1' must begin with http:// or grpc://"},
      {&RunBench, {"grpc://:1", "--rate=1"}, "'grpc://:1' is no server: HOST:PORT"},
      {&RunBench, {"http://h:0", "--rate=1"}, "'http://h:0' is no server: HOST:PORT"},
      {&RunBench, {"grpc://h:1/v1", "--rate=1"}, "gRPC has no paths"},
      {&RunBench, {"http://h:1", "--users=70000"}, "[1, 20000]"},
      {&RunBench, {"speed"}, "speed"},
      {&RunBench, {"http://127.0.0.1:1", "m.gguf"}, "'m.gguf'"},
      {&RunBench, {"model", "m.gguf", "--cases=pp"}, "--cases"},
      {&RunBench, {"model", "m.gguf", "--cases=pp8x2"}, "--cases: 'pp8x2'"},
      {&RunBench, {"model", "m.gguf", "--cases=tg8x0"}, "--cases: 'tg8x0'"},
      {&RunPull, {}, "MODEL"},
      {&RunPull, {"hf:org"}, "hf:ORG/REPO"},
      {&RunInspectCommand, {}, "MODEL"},
      {&RunVersion, {"now"}, "'now'"},
  };
  ExpectUsageErrors(cases);
}

TEST(UsageExitTest, PromptsAndChatsSayTwoForAWrongCommandLine) {
  const WrongUse cases[] = {
      {&RunRun, {"m.gguf", "--prompt", ""}, "--prompt is empty"},
      {&RunRun, {"--prompt=", "m.gguf"}, "--prompt is empty"},
      {&RunRun, {"m.gguf", ""}, "one of them and not empty"},
      {&RunRun, {"m.gguf", "hi", "--prompt=ho"}, "one of them and not empty"},
      {&RunChat, {"--prompt", ""}, "--prompt is empty"},
      {&RunChat, {"--url=ftp://x"}, "ftp://x"},
      {&RunChat, {"--temperature=300"}, "[0, 100]"},
  };
  ExpectUsageErrors(cases);
}

// A wrong hint is worse than none: what a name means elsewhere goes before how it is spelt.
TEST(UsageExitTest, FlagsOfOtherServersSayWhatIsHere) {
  const WrongUse cases[] = {
      {&RunServe, {"--model", "m.gguf"}, "unknown flag --model: the model is the first argument"},
      {&RunServe, {"-m", "m.gguf"}, "unknown flag -m: the model is the first argument"},
      {&RunServe, {"-hf", "o/r"}, "unknown flag -hf: the model is the first argument"},
      {&RunServe, {"m.gguf", "--port=80"}, "unknown flag --port: the address and port"},
      {&RunServe, {"m.gguf", "--portt", "80"}, "unknown flag --portt: the address and port"},
      {&RunServe, {"m.gguf", "--mdoel=m"}, "unknown flag --mdoel: the model is the first"},
      {&RunServe, {"m.gguf", "--modee=disagg"}, "did you mean --mode?"},
      {&RunServe, {"m.gguf", "--drain=3"}, "did you mean --drain-timeout?"},
      {&RunServe, {"m.gguf", "-c", "4096"}, "unknown flag -c: the longest sequence"},
      {&RunServe, {"m.gguf", "-n", "12"}, "unknown flag -n: not a server's setting"},
      {&RunServe, {"m.gguf", "-ngl", "99"}, "unknown flag -ngl: not supported: all layers"},
      {&RunServe, {"m.gguf", "--dtype=half"}, "unknown flag --dtype: not supported"},
      {&RunServe, {"m.gguf", "--jinja"}, "unknown flag --jinja: not needed"},
      {&RunServe, {"m.gguf", "--tensor-parallel-size=2"}, "--tensor-parallel 2, 4 or 8"},
      {&RunServe, {"m.gguf", "--enable-prefix-caching"}, "--prefix-cache off"},
      {&RunServe, {"m.gguf", "--speculative-config={}"}, "--speculate ngram"},
      {&RunServe, {"m.gguf", "--model-draft=d.gguf"}, "without a draft model"},
      {&RunServe, {"m.gguf", "--max-num-seqs=8"}, "is --max-batch N, 256 at most"},
      {&RunServe, {"m.gguf", "--alias=a"}, "--served-model-name A,B"},
      {&RunRun, {"--port=80"}, "is private; for `baton serve`: the address and port"},
      {&RunRun, {"-c", "4096"}, "unknown flag -c: the longest sequence"},
      {&RunRouter, {"--model=m"}, "learns its models from its workers"},
      {&RunRouter, {"--host=h"}, "--http HOST:PORT"},
      {&RunDecode, {"--ctx-size=8"}, "--max-context N"},
      {&RunChat, {"--port=80"}, "--url HOST:PORT"},
  };
  ExpectUsageErrors(cases);
}

// A newcomer's slips: a flag of another command, and names that no command has.
TEST(UsageExitTest, AFlagOfAnotherCommandSaysWhose) {
  const WrongUse cases[] = {
      {&RunRun, {"--prompt=hi", "--url=h:1"}, "unknown flag --url: `run` starts a server of its"},
      {&RunRun, {"--url=h:1"}, "`baton chat --url HOST:PORT`"},
      {&RunRun, {"m.gguf", "--prefill", "2"}, "--prefill: it is a flag of `baton serve`\n"},
      {&RunRun, {"m.gguf", "--decode=2"}, "--decode: it is a flag of `baton serve`\n"},
      {&RunRun, {"m.gguf", "--colocate"}, "--colocate: it is a flag of `baton serve`\n"},
      {&RunRun, {"m.gguf", "--served-model-name=a"}, "it is a flag of `baton serve`\n"},
      {&RunRun, {"m.gguf", "--http=h:1"}, "--http: it is a flag of `baton serve`\n"},
      {&RunRun, {"m.gguf", "--prefil=2"}, "--prefil; --prefill is a flag of `baton serve`\n"},
      {&RunRun, {"--mdoel", "x"}, "unknown flag --mdoel: the model is the first argument"},
      {&RunRun, {"-p", "hi"}, "unknown flag -p: one question is --prompt TEXT\n"},
      {&RunRun, {"--temp=1"}, "unknown flag --temp: it is --temperature T\n"},
      {&RunRun, {"--predict=5"}, "unknown flag --predict: the longest answer is --max-tokens N\n"},
      {&RunChat, {"--kv-dtype=f32"}, "--kv-dtype: it is a flag of `baton serve`\n"},
      {&RunChat, {"-m", "x"}, "unknown flag -m: one of several models is asked by --model NAME\n"},
      {&RunChat, {"--mdoel=x"}, "unknown flag --mdoel; did you mean --model?\n"},
      {&RunServe, {"m.gguf", "--draft-model=x"}, "--draft-model: not supported: --speculate"},
      {&RunServe, {"m.gguf", "--zzz=1"}, "unknown flag --zzz; --help lists them\n"},
      {&RunDecode, {"--model=m", "--http=h:1"}, "--http: it is a flag of `baton serve`\n"},
  };
  ExpectUsageErrors(cases);
}

// A hint that names a flag names one that the command has.
TEST(UsageExitTest, TheFlagsThatHintsNameAreThere) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunServe({"--help"}), kExitOk);
  const std::string help = testing::internal::GetCapturedStdout();
  for (const ForeignFlag& row : ForeignFlags()) {
    EXPECT_NE(help.find(row.ours), std::string::npos) << row.names;
    const std::vector<std::string> names = absl::StrSplit(std::string(row.names), ' ');
    for (const std::string& name : names) {
      EXPECT_EQ(help.find("  " + name + " "), std::string::npos) << name << " is a flag of serve";
    }
  }
}

TEST(UsageExitTest, ADeviceAndWhatItCannotDoAreAWrongCommandLine) {
  const std::string router = "--router=127.0.0.1:1";
  const WrongUse cases[] = {
      {&RunDecode, {router, "--model=m", "--transport=cuda_ipc", "--device=cpu"}, "cuda_ipc"},
      {&RunDecode, {router, "--model=m", "--transport=nccl", "--device=cpu"}, "cpu has none"},
      {&RunServe, {"m.gguf", "--transport=nccl"}, "a GPU for each worker"},
      {&RunServe, {"m.gguf", "--nccl-library=x.so"}, "goes with --transport nccl"},
      {&RunServe, {"m.gguf", "--device=cpu", "--cublaslt-library=x.so"}, "not for the processor"},
      {&RunDecode, {router, "--model=m", "--device=cpu", "--device-weights=bf16"}, "keeps weights"},
      {&RunServe, {"m.gguf", "--device-weights=int8"}, "--device-weights"},
      {&RunShow, {}, "baton show: MODEL is missing"},
      {&RunServe, {"m.gguf", "--isa=sse"}, "'sse' is not one of auto|avx512|avx2|portable\n"},
  };
  ExpectUsageErrors(cases);
}

TEST(UsageExitTest, APlanSaysTwoForAWrongCommandLine) {
  const WrongUse cases[] = {
      {&RunPlan, {}, "MODEL"},
      {&RunPlan, PlanOf({"--device=NVIDIA H20"}), "did you mean \"NVIDIA H200\"?; known are cpu"},
      {&RunPlan, PlanOf({"--device=tpu"}), "\"NVIDIA L40S\""},
      {&RunPlan, PlanOf({"--device=cpu"}), "baton bench model m.gguf --threads N --cases pp16"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--measured=m.json"}), "--measured"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--rate=0"}), "--rate: '0'"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--rate=-1"}), "--rate: '-1'"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--ttft=5"}), "--ttft"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--itl=0ms"}), "--itl: '0ms'"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--input=0"}), "--input"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--memory=lots"}), "--memory"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--watts=none"}), "--watts"},
      {&RunPlan, PlanOf({"--device=NVIDIA H200", "--values", "--json"}), "--values and --json"},
  };
  ExpectUsageErrors(cases);
}

TEST(DeviceWeightsTest, OnlyPrefillWorkersOfTheirOwnDeviceTakeBf16ByThemselves) {
  const auto keeps = [](const char* choice, bool is_for_prompts_only) {
    WorkerTuning tuning;
    tuning.device_weights = choice;
    return KeepsPacked(tuning, is_for_prompts_only);
  };
  EXPECT_TRUE(keeps("auto", false));
  EXPECT_FALSE(keeps("auto", true));
  for (const bool is_for_prompts_only : {false, true}) {
    EXPECT_TRUE(keeps("packed", is_for_prompts_only));
    EXPECT_FALSE(keeps("bf16", is_for_prompts_only));
  }
  WorkerTuning tuning;
  tuning.device_weights = "bf16";
  std::vector<std::string> args;
  AppendTuning(tuning, args);
  EXPECT_THAT(args, testing::Contains("--device-weights=bf16"));
}

// A pool has at most 256 threads; a machine may have more processors.
TEST(ComputeThreadsTest, NoMoreThanAPoolCanHave) {
  EXPECT_EQ(NumComputeThreads(0, 2), 2u);
  EXPECT_EQ(NumComputeThreads(0, 256), 256u);
  EXPECT_EQ(NumComputeThreads(0, 384), 256u);
  EXPECT_EQ(NumComputeThreads(7, 384), 7u);
  EXPECT_EQ(NumComputeThreads(512, 384), 256u)
      << "the share of one worker of `serve --threads 1024`";
}

TEST(UsageExitTest, AModelThatIsNotThereOrBrokenIsAFailureNotAWrongCommandLine) {
  const std::string cut = testing::TempDir() + "/usage_exit_test_cut.gguf";
  std::ofstream(cut, std::ios::binary) << "GGUF" << std::string(3, '\0');
  for (const WrongUse& c : {
           WrongUse{&RunDecode, {"--router=127.0.0.1:1", "--model=/nowhere.gguf"}, "/nowhere.gguf"},
           WrongUse{&RunServe, {"/nowhere.gguf", "--mode=aggregated", "--prefill=0"}, "/nowhere"},
           WrongUse{&RunBench, {"model", "/nowhere.gguf"}, "/nowhere.gguf"},
           WrongUse{&RunBench, {"model", cut}, "usage_exit_test_cut.gguf: GGUF"},
           WrongUse{&RunPlan, PlanOf({"--device=cpu", "--measured=/nowhere.json"}), "m.gguf"},
           WrongUse{&RunPlan, PlanOf({"--device=NVIDIA H200"}), "m.gguf"},
           WrongUse{&RunInspectCommand, {cut}, "GGUF"},
           WrongUse{&RunPull, {"nobody:7b"}, "nobody:7b"},
       }) {
    testing::internal::CaptureStderr();
    const int code = c.run(c.args);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, kExitFailure) << error;
    EXPECT_NE(error.find(c.expected), std::string::npos) << error;
  }
}

// A FIFO that nobody writes is no file: each reader says so and does not wait.
TEST(UsageExitTest, AFifoInThePlaceOfAFileIsRefusedAtOnce) {
  const std::string fifo = testing::TempDir() + "/usage_exit_test_fifo.gguf";
  ::unlink(fifo.c_str());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const WrongUse cases[] = {
      {&RunBench, {"http://127.0.0.1:1", "--rate=1", "--golden=" + fifo}, "is a FIFO"},
      {&RunBench, {"http://127.0.0.1:1", "--trace=" + fifo}, "is a FIFO"},
      {&RunRouter, {"--cluster-secret-file=" + fifo}, "is a FIFO"},
      {&RunBench, {"model", fifo}, "regular file"},
      {&RunInspectCommand, {fifo}, "regular file"},
      {&RunEval, {"--perplexity=" + fifo, "--model=" + fifo}, "regular file"},
      {&RunConvert, {fifo, fifo + ".out", "--type=q8_0"}, "regular file"},
  };
  for (const WrongUse& c : cases) {
    testing::internal::CaptureStderr();
    EXPECT_NE(c.run(c.args), kExitOk);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_NE(error.find(c.expected), std::string::npos) << error;
  }
  ::unlink(fifo.c_str());
}

// Such as that the file names no rule to split text by.
TEST(UsageExitTest, InspectRefusesInOneLineWhateverReadersWarnOf) {
  const GgufBuilder model = TinyLlama({.merges = {"no such"}});
  const std::vector<std::byte> bytes = model.Build();
  const std::string path = testing::TempDir() + "/usage_exit_test.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunInspectCommand({path}), kExitFailure);
  testing::internal::GetCapturedStdout();
  const std::string error = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(InitLog({}).ok());
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  EXPECT_NE(error.find("merge"), std::string::npos) << error;
}

TEST(UsageExitTest, AFolderThatCannotBeMadeIsOneLineOnStderr) {
  ASSERT_EQ(::setenv("BATON_HOME", "/dev/null/home", 1), 0);
  testing::internal::CaptureStderr();
  const int code = RunPull({"smollm2:135m"});
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kExitFailure);
  EXPECT_NE(error.find("/dev/null/home/models"), std::string::npos) << error;
  ::unsetenv("BATON_HOME");
}

}  // namespace
}  // namespace baton::cli
