#include "src/router/request_traces.h"

#include <utility>

namespace baton::router {

std::vector<RequestTraces::Trace> RequestTraces::All() const {
  std::vector<Trace> all(refused_.begin(), refused_.end());
  all.insert(all.end(), served_.begin(), served_.end());
  return all;
}

void RequestTraces::Add(Trace trace, size_t limit, std::deque<Trace>* traces) {
  if (traces->size() == limit) traces->pop_front();
  traces->push_back(std::move(trace));
}

}  // namespace baton::router
