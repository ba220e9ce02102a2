// Reads the wire form of protobuf messages field by field. Lengths are checked before anything is taken;
// errors are invalid_argument that name the place. A value type over bytes that outlive it; one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "twinkle/core/error.h"

namespace twinkle::tokenizer {

class ProtobufReader {
 public:
  ProtobufReader(std::string_view bytes, std::string place) : bytes_(bytes), place_(std::move(place)) {}

  /// Goes to the next field; false at the end of the message. A field that is not taken is passed over.
  bool next() {
    pass();
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    wire_ = static_cast<int>(key & 7);
    if (field_ == 0 || field_ > kLastField) fail("a field number that is none");
    if (wire_ != kVarint && wire_ != kFixed64 && wire_ != kBytes && wire_ != kFixed32)
      fail("wire type " + std::to_string(wire_) + " of field " + std::to_string(field_) +
           ", which is not read");
    pending_ = true;
    return true;
  }

  uint64_t field() const { return field_; }
  std::string_view bytes() {
    need(kBytes);
    const uint64_t size = varint();
    if (size > bytes_.size() - at_)
      fail("a length of " + std::to_string(size) + " bytes, more than there are");
    const std::string_view out = bytes_.substr(at_, static_cast<size_t>(size));
    at_ += static_cast<size_t>(size);
    return out;
  }
  int64_t integer() {
    need(kVarint);
    return static_cast<int64_t>(varint());
  }
  bool boolean() { return integer() != 0; }
  float number() {
    need(kFixed32);
    if (bytes_.size() - at_ < 4) fail("the end within a number");
    uint32_t value = 0;
    for (size_t k = 0; k < 4; ++k)
      value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes_[at_ + k])) << (8 * k);
    at_ += 4;
    return std::bit_cast<float>(value);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw invalid_argument(place_ + ": " + what + " (byte " + std::to_string(at_) + ")");
  }

 private:
  enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  static constexpr uint64_t kLastField = (1ULL << 29) - 1;

  void need(int wire) {
    if (!pending_ || wire_ != wire)
      fail("field " + std::to_string(field_) + " has wire type " + std::to_string(wire_));
    pending_ = false;
  }
  void pass() {
    if (!pending_) return;
    if (wire_ == kVarint) {
      integer();
    } else if (wire_ == kBytes) {
      bytes();
    } else {
      const size_t size = wire_ == kFixed32 ? 4 : 8;
      if (bytes_.size() - at_ < size) fail("the end within a number");
      at_ += size;
      pending_ = false;
    }
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == bytes_.size()) fail("the end within a number");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number of more than 64 bits");
  }

  std::string_view bytes_;
  std::string place_;
  size_t at_ = 0;
  uint64_t field_ = 0;
  int wire_ = 0;
  bool pending_ = false;
};

}  // namespace twinkle::tokenizer
