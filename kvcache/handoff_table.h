// The form of the hand-off tables: rows "in these states, this event leads there and does
// that". Private to kvcache/handoff_*.cc.
#ifndef BATON_KVCACHE_HANDOFF_TABLE_H_
#define BATON_KVCACHE_HANDOFF_TABLE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace baton::kv::handoff_internal {

inline constexpr size_t kMaxOps = 5;

// One line of a table.
template <typename State, typename Event, typename Op>
struct Row {
  uint32_t in = 0;  // set of states
  Event on{};
  bool moves = false;  // false: the state stays
  State next{};
  std::array<Op, kMaxOps> ops{};  // in order; unused ones are Op::kNone
};

// The words in which a table is written, which derives from this.
template <typename State, typename Event, typename Op>
struct TableWords {
  using S = State;
  using E = Event;
  using O = Op;
  using Row = handoff_internal::Row<S, E, O>;

  // A set of states, bit by enumerator.
  template <typename... States>
  static constexpr uint32_t In(States... states) {
    return ((1u << static_cast<uint32_t>(states)) | ...);
  }
  template <typename... Ops>
  static constexpr Row Go(uint32_t in, E on, S next, Ops... ops) {
    return {in, on, true, next, {ops...}};
  }
  template <typename... Ops>
  static constexpr Row Stay(uint32_t in, E on, Ops... ops) {
    return {in, on, false, S{}, {ops...}};
  }
};

// The row for an event in a state, nullptr when it changes nothing.
template <typename RowType, size_t kNumRows, typename State, typename Event>
constexpr const RowType* FindRow(const RowType (&rows)[kNumRows], State state, Event event) {
  for (const RowType& row : rows) {
    if (row.on == event && (row.in >> static_cast<uint32_t>(state) & 1) != 0) return &row;
  }
  return nullptr;
}

// True when no (state, event) has two rows.
template <typename RowType, size_t kNumRows>
constexpr bool IsUnambiguous(const RowType (&rows)[kNumRows]) {
  for (size_t a = 0; a < kNumRows; ++a) {
    for (size_t b = a + 1; b < kNumRows; ++b) {
      if (rows[a].on == rows[b].on && (rows[a].in & rows[b].in) != 0) return false;
    }
  }
  return true;
}

// Names for printing a table.
struct TableNames {
  std::span<const std::string_view> states;
  std::span<const std::string_view> events;
  std::span<const std::string_view> ops;
};

// "| state | event | next | operations |" lines in Markdown.
template <typename RowType, size_t kNumRows>
std::string TableText(const RowType (&rows)[kNumRows], const TableNames& names) {
  const auto join = [](std::string* text, std::string_view word) {
    if (!text->empty()) text->append(", ");
    text->append(word);
  };
  std::string text = "| in state | event | next state | operations |\n|---|---|---|---|\n";
  for (const RowType& row : rows) {
    std::string states;
    for (size_t i = 0; i < names.states.size(); ++i) {
      if ((row.in >> i & 1) != 0) join(&states, names.states[i]);
    }
    std::string ops;
    for (const auto op : row.ops) {
      if (static_cast<size_t>(op) != 0) join(&ops, names.ops[static_cast<size_t>(op)]);
    }
    text += "| " + states + " | " + std::string(names.events[static_cast<size_t>(row.on)]) + " | ";
    text += row.moves ? names.states[static_cast<size_t>(row.next)] : std::string_view("(same)");
    text += " | " + (ops.empty() ? "-" : ops) + " |\n";
  }
  return text;
}

// The moves as a Mermaid state diagram: one arrow for each pair of states, with its events. The
// first state is where it begins; a state that no row leaves is where it ends.
template <typename RowType, size_t kNumRows>
std::string DiagramText(const RowType (&rows)[kNumRows], const TableNames& names) {
  const auto events = [&](size_t from, size_t to) {
    std::string text;
    for (const RowType& row : rows) {
      const bool is_arrow = row.moves && (row.in >> from & 1) != 0 && from != to &&
                            static_cast<size_t>(row.next) == to;
      if (!is_arrow) continue;
      text += (text.empty() ? "" : ", ") + std::string(names.events[static_cast<size_t>(row.on)]);
    }
    return text;
  };
  std::string text = "stateDiagram-v2\n    [*] --> " + std::string(names.states[0]) + "\n";
  for (size_t from = 0; from < names.states.size(); ++from) {
    const std::string arrow = "    " + std::string(names.states[from]) + " --> ";
    bool leaves = false;
    for (size_t to = 0; to < names.states.size(); ++to) {
      const std::string label = events(from, to);
      if (label.empty()) continue;
      leaves = true;
      text.append(arrow).append(names.states[to]).append(": ").append(label).append("\n");
    }
    if (!leaves) text += arrow + "[*]\n";
  }
  return text;
}

}  // namespace baton::kv::handoff_internal

#endif  // BATON_KVCACHE_HANDOFF_TABLE_H_
