// ModelCatalog: builds the tokenizer and chat template of a worker's hello once per tokenizer and
// shares them between all workers that have the same. Any thread.
//
// A tokenizer of 200,000 tokens takes a second of a whole processor to build. The catalog builds it
// on a thread of its own ("model-text"), at a lower priority than the threads that keep the leases
// of the workers alive.
//
// Invariants
//  1. Each `done` of a Resolve that took a claim is called once: on the caller's thread when the
//     tokenizer is there, else on the catalog's, or by the destructor.
//  2. At most kMaxWaiting claims wait. One tokenizer is built once for all claims that wait for it.
//  3. The last kMaxKept tokenizers stay for kKeepUs after they were last asked for, also when no
//     worker has them: a model whose only worker restarts needs no second build.
#ifndef BATON_ROUTER_MODEL_CATALOG_H_
#define BATON_ROUTER_MODEL_CATALOG_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/base/thread.h"
#include "src/router/submit.h"

namespace baton {

// What a hello says of the model.
struct ModelClaim {
  std::string id;
  int64_t loaded_unix_s = 0;
  uint32_t max_context = 0;
  uint32_t vocab_size = 0;
  uint64_t tokenizer_id = 0;
  std::string tokenizer;  // serialized TokenizerSpec
};

// See the file comment.
class ModelCatalog {
 public:
  using Resolved = StatusOr<std::shared_ptr<const ModelInfo>>;
  using Done = std::function<void(Resolved)>;

  static constexpr size_t kMaxWaiting = 64;  // claims, each with a tokenizer of at most 16 MiB
  static constexpr size_t kMaxKept = 4;      // tokenizers
  static constexpr int64_t kKeepUs = 600'000'000;

  ModelCatalog();
  // Ends what waits with Unavailable.
  ~ModelCatalog();

  // `done` gets InvalidArgument when the bytes are no tokenizer, are not the one that tokenizer_id
  // names, or do not fit vocab_size; Unavailable when too many claims wait already.
  void Resolve(ModelClaim claim, Done done);

 private:
  // The parts of a model that are costly to build.
  struct TextParts {
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ChatTemplate> chat_template;
    bool has_broken_template = false;
  };
  using SharedParts = std::shared_ptr<const TextParts>;
  struct Waiting {
    ModelClaim claim;
    Done done;
  };
  struct Kept {
    uint64_t tokenizer_id = 0;
    SharedParts parts;
    int64_t until_us = 0;  // steady clock
  };

  static StatusOr<TextParts> Build(const ModelClaim& claim);
  static Resolved InfoOf(const ModelClaim& claim, const SharedParts& parts);
  void Loop();
  // Builds for the first claim that waits. `lock` holds mutex_; it is let go meanwhile.
  void BuildFirst(std::unique_lock<std::mutex>& lock);
  SharedParts FindLocked(uint64_t tokenizer_id);
  void KeepLocked(uint64_t tokenizer_id, SharedParts parts);
  // Moves what is kept for too long, or beyond kMaxKept, to `dropped`: to free it takes long.
  void TrimLocked(int64_t now_us, std::vector<SharedParts>* dropped);
  std::vector<Waiting> TakeEqualLocked(uint64_t tokenizer_id);

  std::mutex mutex_;  // guards what follows; not held while building or calling `done`
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;
  // By tokenizer_id: those that a model or kept_ holds.
  std::map<uint64_t, std::weak_ptr<const TextParts>> parts_;
  std::deque<Kept> kept_;  // the one asked for last is at the back
  bool stopping_ = false;
  Thread thread_;
};

}  // namespace baton

#endif  // BATON_ROUTER_MODEL_CATALOG_H_
