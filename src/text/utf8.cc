#include "src/text/utf8.h"

#include "fmt/format.h"

namespace baton::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The promise of a first byte: how many bytes follow and the range of the second (RFC 3629, sec.
// 4).
struct Lead {
  uint8_t num_missing;  // 0 = not a first byte of a longer sequence
  uint8_t next_min;
  uint8_t next_max;
};

constexpr Lead LeadOf(uint8_t byte) {
  if (byte >= 0xc2 && byte <= 0xdf) return {1, 0x80, 0xbf};
  if (byte == 0xe0) return {2, 0xa0, 0xbf};
  if (byte == 0xed) return {2, 0x80, 0x9f};
  if (byte >= 0xe1 && byte <= 0xef) return {2, 0x80, 0xbf};
  if (byte == 0xf0) return {3, 0x90, 0xbf};
  if (byte >= 0xf1 && byte <= 0xf3) return {3, 0x80, 0xbf};
  if (byte == 0xf4) return {3, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const uint8_t byte = static_cast<uint8_t>(text[pos]);
    if (byte < 0x80) {
      ++pos;
      continue;
    }
    const Lead lead = LeadOf(byte);
    if (lead.num_missing == 0 || text.size() - pos <= lead.num_missing) return pos;
    const uint8_t second = static_cast<uint8_t>(text[pos + 1]);
    if (second < lead.next_min || second > lead.next_max) return pos;
    for (size_t i = 2; i <= lead.num_missing; ++i) {
      if ((static_cast<uint8_t>(text[pos + i]) & 0xc0) != 0x80) return pos;
    }
    pos += lead.num_missing + size_t{1};
  }
  return pos;
}

std::string_view LastCharacter(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  return text.substr(begin);
}

uint32_t CodePointOf(std::string_view character) {
  const uint8_t lead = static_cast<uint8_t>(character.front());
  if (lead < 0x80) return lead;
  // A lead of n bytes has 7 - n bits of the number.
  uint32_t number = lead & (0x7fu >> character.size());
  for (const char c : character.substr(1)) number = number << 6 | (static_cast<uint8_t>(c) & 0x3fu);
  return number;
}

void Utf8Stream::Push(std::string_view bytes, std::string* out) {
  for (const char c : bytes) PushByte(static_cast<uint8_t>(c), out);
}

void Utf8Stream::Finish(std::string* out) {
  if (num_held_ > 0) out->append(kReplacement);
  num_held_ = 0;
  num_missing_ = 0;
}

void Utf8Stream::PushByte(uint8_t byte, std::string* out) {
  if (num_missing_ == 0) {
    Start(byte, out);
    return;
  }
  if (byte < next_min_ || byte > next_max_) {
    Finish(out);
    Start(byte, out);
    return;
  }
  held_[num_held_++] = byte;
  next_min_ = 0x80;
  next_max_ = 0xbf;
  if (--num_missing_ == 0) {
    out->append(reinterpret_cast<const char*>(held_), num_held_);
    num_held_ = 0;
  }
}

void Utf8Stream::Start(uint8_t byte, std::string* out) {
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  const Lead lead = LeadOf(byte);
  if (lead.num_missing == 0) {
    out->append(kReplacement);
    return;
  }
  held_[0] = byte;
  num_held_ = 1;
  num_missing_ = lead.num_missing;
  next_min_ = lead.next_min;
  next_max_ = lead.next_max;
}

std::string LossyUtf8(std::string_view bytes) {
  std::string text;
  Utf8Stream stream;
  stream.Push(bytes, &text);
  stream.Finish(&text);
  return text;
}

std::string TextOrBytes(std::string_view bytes) {
  if (ValidUtf8Prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

}  // namespace baton::text
