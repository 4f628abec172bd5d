// StateBytes: writes what AbslHashValue of a value covers as bytes, so that an exploration can
// compare states without keeping them.
//
// Times (int64_t) are written as "armed" or not: an exploration lets any armed timer fire at any
// moment, so their values decide nothing.
#ifndef BATON_TESTS_KVCACHE_STATE_BYTES_H_
#define BATON_TESTS_KVCACHE_STATE_BYTES_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace baton::kv {

// The H of an AbslHashValue; see the file comment.
class StateBytes {
 public:
  explicit StateBytes(std::string* out) : out_(out) {}

  template <typename... Values>
  static StateBytes combine(StateBytes state, const Values&... values) {
    (state.Put(values), ...);
    return state;
  }
  template <typename Value>
  static void Append(std::string* out, const Value& value) {
    StateBytes(out).Put(value);
  }

 private:
  template <typename Value>
  void Put(const Value& value) {
    if constexpr (std::is_same_v<Value, int64_t>) {
      out_->push_back(value == INT64_MAX ? 0 : 1);
    } else if constexpr (std::is_enum_v<Value> || std::is_integral_v<Value>) {
      PutNumber(static_cast<uint64_t>(value));
    } else {
      PutOther(value);
    }
  }
  template <typename Item>
  void PutOther(const std::vector<Item>& items) {
    PutNumber(items.size());
    for (size_t i = 0; i < items.size(); ++i) Put(static_cast<const Item&>(items[i]));
  }
  template <typename Value>
  void PutOther(const Value& value) {
    AbslHashValue(StateBytes(out_), value);
  }
  void PutNumber(uint64_t number) {
    while (number >= 0x80) {
      out_->push_back(static_cast<char>(number | 0x80));
      number >>= 7;
    }
    out_->push_back(static_cast<char>(number));
  }

  std::string* out_;
};

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_STATE_BYTES_H_
