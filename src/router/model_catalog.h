// ModelCatalog: builds the tokenizer and chat template of a worker's hello once per tokenizer and
// shares them between all workers that have the same. Any thread.
//
// A tokenizer of 200,000 tokens takes a second of a whole processor to build. The catalog builds it
// on a thread of its own ("model-text"). Tokenizers that are expected are built before any worker
// says hello, while workers read their weights. The router's start waits for them, or else for the
// first one that a worker brings. After that the thread has a lower priority than those that keep
// the leases of the workers alive.
//
// Invariants
//  1. Each `done` is called once: on the caller's thread when the tokenizer is there or the claim
//     finds no place, else on the catalog's thread, or by the destructor.
//  2. At most kMaxWaiting tokenizers wait, with kMaxWaitingBytes in all; the one that is being
//  built
//     counts. One is built once for all claims that have it, and its bytes are held once. At most
//     kMaxClaims claims wait.
//  3. The last kMaxKept tokenizers stay for kKeepUs after they were last asked for, also when no
//     worker has them: a model whose only worker restarts needs no second build.
#ifndef BATON_ROUTER_MODEL_CATALOG_H_
#define BATON_ROUTER_MODEL_CATALOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/status.h"
#include "src/base/thread.h"
#include "src/router/submit.h"

namespace baton::router {

// The words of a hello about the model.
struct ModelClaim {
  std::string id;
  int64_t loaded_unix_s = 0;
  uint32_t max_context = 0;
  uint32_t vocab_size = 0;
  uint32_t embedding_size = 0;
  std::string embedding_refusal;
  uint64_t tokenizer_id = 0;
  std::string tokenizer;  // serialized TokenizerSpec
};

// Reads a serialized TokenizerSpec.
using TokenizerSource = std::function<StatusOr<std::string>()>;

// See the file comment.
class ModelCatalog {
 public:
  using Resolved = StatusOr<std::shared_ptr<const ModelInfo>>;
  using Done = std::function<void(Resolved)>;

  static constexpr size_t kMaxClaims = 4096;
  static constexpr size_t kMaxWaiting = 64;                      // tokenizers
  static constexpr size_t kMaxWaitingBytes = size_t{128} << 20;  // eight of the largest, 16 MiB
  static constexpr size_t kMaxKept = 4;                          // tokenizers
  static constexpr int64_t kKeepUs = 600'000'000;

  // `expected`: of the first kMaxKept the bytes that workers will bring. Called on the catalog's
  // thread. What comes of them decides nothing: a worker's own bytes do.
  explicit ModelCatalog(std::vector<TokenizerSource> expected = {});
  // Ends what waits with Unavailable.
  ~ModelCatalog();

  // `done` gets InvalidArgument when the bytes are no tokenizer, are not the one that tokenizer_id
  // names, or do not fit vocab_size; Unavailable when there is no place now or the catalog stops:
  // the same claim may be taken later.
  void Resolve(ModelClaim claim, Done done);

 private:
  // The parts of a model that are costly to build.
  struct TextParts {
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::shared_ptr<const text::ChatTemplate> chat_template;
    std::shared_ptr<const text::ChatTemplate> tool_template;
    bool has_broken_template = false;
    std::shared_ptr<text::GrammarCache> grammars;
  };
  using SharedParts = std::shared_ptr<const TextParts>;
  struct Waiting {
    ModelClaim claim;  // without the bytes
    Done done;
  };
  // A tokenizer to build, and the claims that have it: equal in id and bytes.
  struct Pending {
    uint64_t tokenizer_id = 0;
    std::string tokenizer;
    std::vector<Waiting> claims;
  };
  struct Kept {
    uint64_t tokenizer_id = 0;
    SharedParts parts;
    int64_t until_us = 0;  // steady clock
  };

  // `model_id`: for the log.
  static StatusOr<TextParts> Build(const Pending& pending, const std::string& model_id);
  static Resolved InfoOf(const ModelClaim& claim, const SharedParts& parts);
  void Loop(const std::vector<TokenizerSource>& expected);
  // Builds the tokenizer of `source`, unless it is there. The error is that of reading or building.
  Status KeepExpected(const TokenizerSource& source);
  bool IsStopping();
  // Takes `claim` and `done` into pending_. False: there is no place.
  bool AddLocked(ModelClaim& claim, Done& done) BATON_REQUIRES(mutex_);
  // Builds the first tokenizer that waits, and releases the mutex meanwhile.
  void BuildFirstLocked() BATON_REQUIRES(mutex_);
  SharedParts FindLocked(uint64_t tokenizer_id) BATON_REQUIRES(mutex_);
  void KeepLocked(uint64_t tokenizer_id, SharedParts parts) BATON_REQUIRES(mutex_);
  // Moves what is kept for too long, or beyond kMaxKept, to `dropped`: to free it takes long.
  void TrimLocked(int64_t now_us, std::vector<SharedParts>* dropped) BATON_REQUIRES(mutex_);
  // Takes the front of pending_ out, and its claims.
  std::vector<Waiting> TakeFirstLocked() BATON_REQUIRES(mutex_);

  Mutex mutex_;  // not held while building or calling `done`
  CondVar wake_;
  // In order of arrival; the front one may be being built. A deque: growing moves none of them.
  std::deque<Pending> pending_ BATON_GUARDED_BY(mutex_);
  size_t num_claims_ BATON_GUARDED_BY(mutex_) = 0;     // of pending_
  size_t pending_bytes_ BATON_GUARDED_BY(mutex_) = 0;  // of the tokenizers in pending_
  // By tokenizer_id: those that a model or kept_ holds.
  std::map<uint64_t, std::weak_ptr<const TextParts>> parts_ BATON_GUARDED_BY(mutex_);
  std::deque<Kept> kept_ BATON_GUARDED_BY(mutex_);  // the one asked for last is at the back
  bool stopping_ BATON_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_MODEL_CATALOG_H_
