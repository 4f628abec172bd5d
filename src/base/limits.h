// Limits that more than one part of Baton keeps: ranges of a request, sizes of messages, queues and
// waiting times. Each limit stands here once, with its unit and its reason.
//
// A limit that one source file alone keeps stays in that file. Shapes of models stay in
// src/model/model_config.h, limits of file formats in src/model and src/text, and limits of kernels
// in kernels.
//
// Sentences that show a limit to people take the number from here (numbered_text.h). README files
// and .proto comments repeat some numbers: tests/tidy_test/limit_rules.py compares them.
#ifndef BATON_BASE_LIMITS_H_
#define BATON_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace baton::limits {

// ---- Ranges of a request. The API refuses a value outside; a worker checks every value again,
// because it trusts no router.

// n and best_of, choices of one request.
inline constexpr uint32_t kMaxChoices = 128;
// Blocks of the fixed state of one sequence, as a worker tells a router.
inline constexpr uint32_t kMaxStateBlocks = 1 << 20;
// Prompts of one completions request, and choices of all of them together: all that the router's
// queue holds. Requests of evaluators have up to some hundreds.
inline constexpr uint32_t kMaxPrompts = 1024;
// OpenAI's own range ends at 2. Other servers take more, and clients send it.
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr float kMaxRepetitionPenalty = 100.0f;
// presence_penalty and frequency_penalty, in both directions. Beyond 2 is outside OpenAI's range.
inline constexpr float kMaxAddedPenalty = 100.0f;
// logit_bias: the number added to one logit in both directions, and entries.
inline constexpr float kMaxLogitBias = 100.0f;
inline constexpr uint32_t kMaxLogitBiases = 1024;
// Alternatives of one token, OpenAI's number.
inline constexpr uint32_t kMaxTopLogprobs = 20;
// Log-probabilities of one prompt: its tokens times one and their alternatives. At 8 bytes each
// they take 8 MiB in the router's memory: a prompt of 49,932 tokens with 20 alternatives.
inline constexpr uint64_t kMaxPromptLogprobs = uint64_t{1} << 20;
// Texts that end an answer, and bytes of one. A token's text is compared with all of them.
inline constexpr uint32_t kMaxStopStrings = 16;
inline constexpr uint32_t kMaxStopBytes = 512;
// Token ids that end an answer; each token is compared with all of them.
inline constexpr uint32_t kMaxStopTokens = 64;
// Time of a request from its arrival: a day. Longer work belongs into several requests.
inline constexpr int64_t kMaxDeadlineMs = int64_t{24} * 3600 * 1000;
inline constexpr int64_t kMaxDeadlineUs = kMaxDeadlineMs * 1000;

// Tokens of prompt and answer together, whatever the model file says. Up to here
// kernels/rope_table.cc reduces every angle exactly.
inline constexpr uint32_t kMaxContextTokens = 1u << 20;
inline constexpr uint32_t kMaxPromptTokens = kMaxContextTokens;
// Tokens of a vocabulary: four times the largest in use (262,144).
inline constexpr uint32_t kMaxVocabTokens = 1u << 20;

// ---- Sizes of a client's request.

// A body over HTTP, or a message over gRPC, bytes.
inline constexpr size_t kMaxBodyBytes = size_t{8} << 20;
// A client's own gRPC metadata, bytes: tokens, cookies, baggage.
inline constexpr size_t kMaxClientMetadataBytes = size_t{64} << 10;
// JSON of one body: levels, because the reader recurses; and values.
inline constexpr size_t kMaxJsonDepth = 32;
inline constexpr size_t kMaxJsonValues = size_t{1} << 20;
// Text that is tokenised, bytes: far above any context, and far below the 10 million steps after
// which the engine of the split rules gives up.
inline constexpr size_t kMaxEncodeBytes = size_t{4} << 20;
inline constexpr size_t kMaxMessages = 4096;  // messages of a conversation
inline constexpr size_t kMaxTools = 1024;
inline constexpr size_t kMaxToolNameBytes = 128;
inline constexpr size_t kMaxDocuments = 1024;
// chat_template_kwargs: variables, and bytes of all of them as JSON.
inline constexpr size_t kMaxTemplateKwargs = 64;
inline constexpr size_t kMaxTemplateKwargsBytes = size_t{64} << 10;
// The text of a schema, a regular expression, a choice or a grammar, bytes.
inline constexpr size_t kMaxGrammarBytes = size_t{1} << 20;
// Names that a client gives, bytes.
inline constexpr size_t kMaxUserBytes = size_t{64} << 10;
inline constexpr size_t kMaxSaltBytes = 1024;
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxIdempotencyKeyBytes = 255;

// ---- Messages between the processes of a cluster.

// Workers of one router, and links that one worker reports.
inline constexpr size_t kMaxWorkers = 1024;
// A gRPC message, bytes (gRPC takes an int). A prompt of kMaxPromptTokens takes 5 MiB.
inline constexpr int kMaxClusterMessageBytes = 32 << 20;
// All calls of a gRPC port hold at most so many bytes of unfinished messages. gRPC then closes idle
// connections and resets calls of the port, whichever they are. It may go over for a moment.
inline constexpr size_t kMaxGrpcMemoryBytes = size_t{1} << 30;
static_assert(kMaxGrpcMemoryBytes >= 16 * size_t{kMaxClusterMessageBytes}, "messages come at once");
// A tokenizer in a worker's hello, bytes; the largest in use take about 8 MiB.
inline constexpr size_t kMaxSpecBytes = size_t{16} << 20;
// Changes of a prefix cache in one message, 16 bytes each: 64 KiB, still a small message.
inline constexpr size_t kMaxPrefixChanges = 4096;
inline constexpr size_t kMaxWorkerIdBytes = 64;
inline constexpr size_t kMaxModelIdBytes = 256;
// Blocks of one worker's pool: block indices have 31 bits.
inline constexpr uint64_t kMaxPoolBlocks = uint64_t{1} << 31;
// A control message between workers, bytes.
inline constexpr size_t kMaxControlBytes = size_t{4} << 20;
// Blocks of one transfer: a Seal has 16 bytes of each. The longest context has 1 Mi tokens, 64 Ki
// blocks of 16.
inline constexpr uint32_t kMaxBlocksPerTransfer = (1u << 18) - 1024;
// Slices of one transfer, blocks x layers: 1 Mi tokens in blocks of 16, of 1024 layers. No model's
// prompt is longer, so none is refused for it. A receive keeps a bit a slice (8 MiB), the prefill
// worker a checksum, and the decode worker a byte once one of them arrived damaged.
inline constexpr uint32_t kMaxSlicesPerTransfer = 1u << 26;
// One (block, layer) slice, bytes; 64 tokens x 128 heads x 256 dims x f32 x 2 are 16 MiB.
inline constexpr uint32_t kMaxSliceBytes = uint32_t{64} << 20;
// Slices that one Nack names; a longer list is cut by asking for all.
inline constexpr uint32_t kMaxNackSlices = 4096;
// Bytes of a peer's sentence that one line of the log repeats.
inline constexpr size_t kMaxPeerTextBytes = 256;

// ---- Steps of a worker, and the plans of `baton plan` for them.

// Rows that decode in one step, prompts that hold blocks and are not done, and sequences that wait
// without blocks.
inline constexpr uint32_t kMaxRunning = 256;
inline constexpr uint32_t kMaxPrefilling = 16;
inline constexpr uint32_t kMaxWaiting = 1024;
// Tokens of one step, and tokens of one prompt in it.
inline constexpr uint32_t kMaxBatchTokens = 1024;
inline constexpr uint32_t kMaxChunkTokens = 512;
// Rows of prompts whose log-probabilities are wanted, in one step: each is a row of logits, 1 MiB
// for a vocabulary of 262,144. Blocks of 16 tokens and the products' tiles of 12 rows divide it.
inline constexpr uint32_t kMaxPromptLogRows = 144;
// A step is planned to take no longer, so that a reservation is answered within 500 ms.
inline constexpr int64_t kTargetStepUs = 100'000;
// Without decode rows the target is for all layers but the output layer's rows of prompts. With
// those rows a step takes at most so many times the target. A prompt with log-probabilities then
// has chunks as long as a plain one, up to as much work in its output layer as in all others.
inline constexpr int64_t kMaxLoggedStepTimes = 2;
// Checkpoints of fixed states in the prefix cache have one of so many parts of the pool at most.
inline constexpr uint32_t kCheckpointShare = 2;

// ---- Queues and tables. A full one refuses, and never grows.

// Worker: requests that live, hand-offs that hold blocks, and events that the engine may refuse. An
// event may be a new request, so the inbox takes all that may live several times over.
inline constexpr uint32_t kMaxLiveRequests = 1024;
inline constexpr uint32_t kMaxOpenTransfers = 1024;
inline constexpr uint32_t kMaxInboxEvents = 8192;
// Worker: tokens and states that wait for one router that does not read. Then it is cut off.
inline constexpr uint32_t kMaxQueuedEvents = 65'536;
// Worker: changes of the prefix cache that wait in its journal, for each block of the pool.
inline constexpr size_t kMaxChangesPerBlock = 4;
// Router: requests that live, those of them that wait for a worker, and tokens of one request that
// its client has not taken yet. Then the request ends.
inline constexpr uint32_t kMaxRouterRequests = 8192;
inline constexpr uint32_t kMaxQueuedRequests = 1024;
inline constexpr uint32_t kMaxPendingTokens = 65'536;
// Bytes of an answer that wait for one HTTP client.
inline constexpr size_t kMaxUnsentBytes = size_t{4} << 20;

// ---- Waiting times.

// The time after which a router may come back to a worker that refused a request for load. A full
// table or inbox has room again after a step or two of 100 ms.
inline constexpr uint32_t kRetryHintMs = 200;
// While requests live a router looks at its timers this often: a wait in its queue is no shorter.
inline constexpr int64_t kRouterTickUs = 20'000;
// The time for which a worker that refused for load is full for the router, unless the worker names
// a longer one. 20 ms is about a decode step; 500 ms still gives 20 tries within the queue wait.
inline constexpr int64_t kFirstFullUs = 20'000;
inline constexpr int64_t kMaxFullUs = 500'000;
// Retry-After of clients, seconds. The least is for refusals whose length nobody knows. An estimate
// above the most is worth little, and room may come sooner.
inline constexpr uint32_t kMinRetryAfterS = 1;
inline constexpr uint32_t kMaxRetryAfterS = 60;
// The longest hint of a worker that a router believes: what it would tell a client.
inline constexpr uint32_t kMaxRetryHintMs = kMaxRetryAfterS * 1000;

// The period in which a worker says that it lives, and the range that it takes from a router. After
// kSuspectUs of silence a worker gets nothing new; after kDeadUs, eight lost heartbeats, its
// requests move.
inline constexpr uint32_t kHeartbeatMs = 250;
inline constexpr uint32_t kMinHeartbeatMs = 20;
inline constexpr uint32_t kMaxHeartbeatMs = 1000;
inline constexpr int64_t kSuspectUs = 1'000'000;
inline constexpr int64_t kDeadUs = 2'000'000;
// A router repeats that its requests are still wanted; without a word for a lease a worker
// cancels them.
inline constexpr int64_t kRequestLeaseUs = 10'000'000;
inline constexpr int64_t kRenewEveryUs = kRequestLeaseUs / 4;
// A drain, by flag, by a router's order or in the chart: a day.
inline constexpr uint32_t kMaxDrainTimeoutS = 24 * 3600;

// ---- How they depend on each other.

static_assert(kMaxSpecBytes < kMaxClusterMessageBytes, "a hello has the tokenizer");
static_assert(kMaxPromptTokens * size_t{5} < kMaxClusterMessageBytes,
              "an order has the prompt, at most 5 bytes a token");
static_assert(kMaxBodyBytes <= kMaxClusterMessageBytes,
              "clients and workers send to one gRPC port, which takes the larger");
static_assert(kMaxEncodeBytes < kMaxBodyBytes, "the largest text fits a body");
static_assert(kMaxTemplateKwargsBytes + kMaxUserBytes + kMaxSaltBytes < kMaxBodyBytes);
static_assert(kMaxMessages + kMaxTools + kMaxDocuments < kMaxJsonValues, "a body has all of them");
static_assert(kMaxPromptTokens <= kMaxJsonValues, "a prompt of token ids is read as JSON values");
static_assert(kMaxGrammarBytes < kMaxBodyBytes, "the largest grammar fits a body");
static_assert(kMaxPromptTokens * size_t{5} + kMaxGrammarBytes < kMaxClusterMessageBytes,
              "an order has the prompt and the grammar");
static_assert(kMaxStopStrings * kMaxStopBytes < kMaxBodyBytes);
static_assert(kMaxPrefixChanges * 16 < kMaxClusterMessageBytes);
static_assert(kMaxBlocksPerTransfer < kMaxControlBytes / 16, "a Seal has 16 bytes of each block");
static_assert(kMaxBlocksPerTransfer <= kMaxSlicesPerTransfer, "a block has a slice or more");
static_assert(kMaxBlocksPerTransfer >= kMaxContextTokens / 16, "the longest prompt is handed over");
static_assert(kMaxBlocksPerTransfer < kMaxPoolBlocks);
static_assert(kMaxSliceBytes > kMaxControlBytes);
static_assert(uint64_t{kMaxChoices} * (kMaxStateBlocks + 1) <= UINT32_MAX,
              "routers count the blocks of all choices in 32 bits");
static_assert(kMaxChoices <= kMaxRunning, "all choices of a request decode at once");
static_assert(kMaxRunning <= kMaxBatchTokens, "every row that decodes has a token in each step");
static_assert(kMaxChunkTokens <= kMaxBatchTokens);
static_assert(kMaxPromptLogRows <= kMaxBatchTokens);
static_assert(kMaxRunning <= kMaxLiveRequests && kMaxWaiting <= kMaxLiveRequests);
static_assert(kMaxLiveRequests <= kMaxInboxEvents && kMaxOpenTransfers <= kMaxInboxEvents);
static_assert(kMaxQueuedRequests <= kMaxRouterRequests);
static_assert(kMaxPrompts <= kMaxQueuedRequests, "a request finds room for each of its prompts");
static_assert(kMaxChoices <= kMaxPrompts, "one prompt may have all of its choices");
static_assert(kMaxQueuedEvents >= kMaxLiveRequests * 2,
              "a token and a state of every live request wait, and no reader is cut off");
static_assert(kMaxQueuedEvents >= kMaxPendingTokens,
              "a client that is slow ends its own request before its router is cut off");
static_assert(kRetryHintMs * int64_t{1000} >= kMaxLoggedStepTimes * kTargetStepUs,
              "a step ends before the hint does");
static_assert(kRetryHintMs * int64_t{1000} <= kMaxFullUs,
              "a hint is no longer than what the router assumes by itself");
static_assert(kFirstFullUs <= kMaxFullUs && kMinRetryAfterS <= kMaxRetryAfterS);
static_assert(kRetryHintMs <= kMaxRetryHintMs);
static_assert(kMinHeartbeatMs <= kHeartbeatMs && kHeartbeatMs <= kMaxHeartbeatMs);
static_assert(kMaxHeartbeatMs * int64_t{1000} < kDeadUs, "one heartbeat may come late");
static_assert(kHeartbeatMs * int64_t{4000} <= kSuspectUs && kSuspectUs < kDeadUs);
static_assert(kDeadUs < kRequestLeaseUs, "a router learns of a silent worker within a lease");
static_assert(kMaxDeadlineMs <= UINT32_MAX, "an order has the deadline as 32 bits of milliseconds");

}  // namespace baton::limits

#endif  // BATON_BASE_LIMITS_H_
