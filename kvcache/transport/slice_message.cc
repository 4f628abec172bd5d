#include "kvcache/transport/slice_message.h"

#include <cstring>

namespace baton::kv {
namespace {

// The first fields of a message of every form, before link and batch.
struct Start {
  char magic[16];
  uint8_t kind;
  uint8_t flag;
  uint16_t zero;
  uint32_t number;
};
static_assert(sizeof(Start) == 24);

// A slice; forms without sources end after the generation.
struct Slice {
  uint64_t transfer;
  uint64_t checksum;
  uint32_t attempt;
  uint32_t ordinal;
  uint32_t layer;
  uint32_t generation;
  uint32_t source;
  uint32_t zero;
};
static_assert(sizeof(Slice) == 40 && offsetof(Slice, source) == 32);

size_t HeadBytes(const SliceMessageForm& form) {
  return sizeof(Start) + (form.has_links ? 2 : 1) * sizeof(uint64_t);
}

size_t SliceBytes(const SliceMessageForm& form) {
  return form.has_sources ? sizeof(Slice) : offsetof(Slice, source);
}

template <typename T>
void Append(const T& value, size_t size, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), size);
}

}  // namespace

bool IsSliceMessage(const SliceMessageForm& form, std::string_view bytes) {
  return bytes.starts_with(form.magic);
}

std::string EncodeSliceHead(const SliceMessageForm& form, const SliceMessageHead& head) {
  Start start{.kind = head.kind, .flag = head.flag, .number = head.number};
  std::memcpy(start.magic, form.magic.data(), sizeof(start.magic));
  std::string bytes;
  Append(start, sizeof(start), &bytes);
  if (form.has_links) Append(head.link, sizeof(head.link), &bytes);
  Append(head.batch, sizeof(head.batch), &bytes);
  return bytes;
}

void AppendSlices(const SliceMessageForm& form, std::span<const SliceRef> slices,
                  std::string* bytes) {
  bytes->reserve(bytes->size() + slices.size() * SliceBytes(form));
  for (const SliceRef& slice : slices) {
    const Slice sent = {.transfer = slice.transfer.value(),
                        .checksum = slice.checksum,
                        .attempt = slice.attempt,
                        .ordinal = slice.ordinal,
                        .layer = slice.layer,
                        .generation = slice.generation,
                        .source = slice.source.value()};
    Append(sent, SliceBytes(form), bytes);
  }
}

StatusOr<SliceMessageHead> DecodeSliceHead(const SliceMessageForm& form, std::string_view* bytes) {
  if (bytes->size() < HeadBytes(form) || !IsSliceMessage(form, *bytes)) {
    return DataLoss("{} bytes are no message between transports", bytes->size());
  }
  Start start;
  std::memcpy(&start, bytes->data(), sizeof(start));
  if (start.zero != 0) return DataLoss("a field that nothing uses is {}", start.zero);
  SliceMessageHead head{.kind = start.kind, .flag = start.flag, .number = start.number};
  const char* const numbers = bytes->data() + sizeof(start);
  if (form.has_links) std::memcpy(&head.link, numbers, sizeof(head.link));
  bytes->remove_prefix(HeadBytes(form));
  std::memcpy(&head.batch, bytes->data() - sizeof(head.batch), sizeof(head.batch));
  return head;
}

StatusOr<std::vector<SliceRef>> DecodeSlices(const SliceMessageForm& form,
                                             std::string_view payload) {
  const size_t count = payload.size() / SliceBytes(form);
  if (payload.size() % SliceBytes(form) != 0 || count == 0 || count > form.max_slices) {
    return DataLoss("slices of {} bytes", payload.size());
  }
  std::vector<SliceRef> slices;
  slices.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Slice sent{};
    std::memcpy(&sent, payload.data() + i * SliceBytes(form), SliceBytes(form));
    if (sent.zero != 0) return DataLoss("slice {} ends in {}", i, sent.zero);
    slices.push_back({.transfer = TransferId(sent.transfer),
                      .attempt = sent.attempt,
                      .ordinal = sent.ordinal,
                      .layer = sent.layer,
                      .generation = sent.generation,
                      .source = BlockIndex(sent.source),
                      .checksum = sent.checksum});
  }
  return slices;
}

std::string WrapMessage(const SliceMessageForm& form, std::string_view bytes) {
  return EncodeSliceHead(form, {}).append(bytes);
}

std::optional<std::string> UnwrapMessage(const SliceMessageForm& form, std::string_view bytes) {
  if (!bytes.starts_with(EncodeSliceHead(form, {}))) return std::nullopt;
  return std::string(bytes.substr(HeadBytes(form)));
}

}  // namespace baton::kv
