#include "kernels/simt/shadow.h"

#include <sys/mman.h>

#include "src/base/check.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

constexpr uint64_t kIsSet = 1;

// Any address of this program: what the upper halves of code addresses are taken from.
char anchor;

}  // namespace

Shadow::Shadow(const Arena& arena) : arena_(arena) {
  static_assert(sizeof(Cell) == 32);
  void* base = mmap(nullptr, Arena::kRangeBytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BATON_CHECK(base != MAP_FAILED, "{} bytes of addresses for the race detector are refused",
              Arena::kRangeBytes * sizeof(Cell));
  cells_ = static_cast<Cell*>(base);
}

Shadow::~Shadow() { munmap(cells_, Arena::kRangeBytes * sizeof(Cell)); }

void Shadow::BeginLaunch() {
  ++launch_;
  sets_.clear();
  free_sets_.clear();
}

CodeAddress Shadow::WholeCode(uint32_t low_half) const {
  const auto here = reinterpret_cast<uintptr_t>(&anchor);
  // The place within 2 GiB of the anchor that has this low half.
  const auto distance = static_cast<int32_t>(low_half - static_cast<uint32_t>(here));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code, never read through.
  return reinterpret_cast<CodeAddress>(here + static_cast<uintptr_t>(int64_t{distance}));
}

std::optional<Conflict> Shadow::CheckReads(const Cell& cell, Epoch self,
                                           const VectorClock& known) const {
  const uint64_t one[] = {cell.read};
  const bool is_set = (cell.read & kIsSet) != 0;
  const uint64_t* first = is_set ? sets_[cell.read >> 1].epochs.data() : one;
  const size_t count = is_set ? sets_[cell.read >> 1].epochs.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const Epoch earlier{first[i]};
    if (!known.Knows(earlier) && !(earlier.atomic() && self.atomic())) {
      return Conflict{nullptr, earlier, false, WholeCode(cell.read_code)};
    }
  }
  return std::nullopt;
}

void Shadow::DropReads(Cell& cell) {
  if ((cell.read & kIsSet) != 0) {
    sets_[cell.read >> 1].epochs.clear();
    free_sets_.push_back(static_cast<uint32_t>(cell.read >> 1));
  }
  cell.read = 0;
}

void Shadow::AddRead(Cell& cell, Epoch self, const VectorClock& known) {
  if ((cell.read & kIsSet) == 0) {
    if (cell.read == 0 || known.Knows(Epoch{cell.read})) {
      cell.read = self.bits;
      return;
    }
    if (free_sets_.empty()) {
      free_sets_.push_back(static_cast<uint32_t>(sets_.size()));
      sets_.emplace_back();
    }
    const uint32_t id = free_sets_.back();
    free_sets_.pop_back();
    sets_[id].epochs = {cell.read, self.bits};
    cell.read = uint64_t{id} << 1 | kIsSet;
    return;
  }
  // An earlier read of the same slot is covered by this one: threads know their own past.
  std::vector<uint64_t>& epochs = sets_[cell.read >> 1].epochs;
  for (uint64_t& epoch : epochs) {
    const Epoch earlier{epoch};
    if (earlier.cta() == self.cta() && earlier.slot() == self.slot()) {
      epoch = self.bits;
      return;
    }
  }
  epochs.push_back(self.bits);
}

std::optional<Conflict> Shadow::Record(const Access& access, Epoch self, const VectorClock& known) {
  Cell* cell = cells_ + arena_.OffsetOf(access.address);
  const auto* address = static_cast<const std::byte*>(access.address);
  for (size_t i = 0; i < access.size; ++i, ++cell, ++address) {
    if (cell->launch != launch_) *cell = Cell{0, 0, nullptr, 0, launch_};
    const Epoch write{cell->write};
    if (write.IsSet() && !known.Knows(write) && !(write.atomic() && self.atomic())) {
      return Conflict{address, write, true, cell->write_code};
    }
    if (!access.is_write) {
      AddRead(*cell, self, known);
      cell->read_code = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(access.code));
      continue;
    }
    if (cell->read != 0) {
      std::optional<Conflict> conflict = CheckReads(*cell, self, known);
      if (conflict.has_value()) {
        conflict->address = address;
        return conflict;
      }
      DropReads(*cell);
    }
    cell->write = self.bits;
    cell->write_code = access.code;
  }
  return std::nullopt;
}

Epoch Shadow::LastWrite(const void* address) const {
  const Cell& cell = cells_[arena_.OffsetOf(address)];
  return cell.launch == launch_ ? Epoch{cell.write} : Epoch{};
}

void Shadow::Forget(const void* begin, size_t size) {
  Cell* cell = cells_ + arena_.OffsetOf(begin);
  for (size_t i = 0; i < size; ++i) {
    if (cell[i].launch == launch_) DropReads(cell[i]);
    cell[i].launch = 0;
  }
}

}  // namespace runner
}  // namespace baton::kernels::simt
