// ServedNames: the names under which clients know the models (--served-model-name). Values; any
// thread.
//
// A model with names goes by them alone: all are accepted and listed, and its answers have the
// first, as vLLM does it. A model without goes by its id.
#ifndef BATON_ROUTER_SERVED_NAMES_H_
#define BATON_ROUTER_SERVED_NAMES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::router {

inline constexpr size_t kMaxServedNames = 64;  // of one model

// See the file comment.
class ServedNames {
 public:
  // [MODEL=]A,B[,MODEL=C,D ..]: names before the first MODEL are for the only model; "" = none.
  // InvalidArgument names what is wrong: an empty name, "default", one given twice, blanks and
  // control characters, or a limit.
  static StatusOr<ServedNames> Parse(std::string_view text);

  bool empty() const { return rows_.empty(); }
  // The names of the model `id`, in their order; `is_only`: no other one is served. "" as MODEL is
  // for the only one.
  std::vector<std::string> NamesOf(std::string_view id, bool is_only) const;
  // The models that the text names; "" is not among them.
  std::vector<std::string> Models() const;

 private:
  // The names of one model.
  struct Row {
    std::string model;  // "" = the only one
    std::vector<std::string> names;
  };

  Row& RowOf(std::string_view model);
  Status Add(std::string_view model, std::string_view name);

  std::vector<Row> rows_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVED_NAMES_H_
