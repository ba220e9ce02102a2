#include "twinkle/core/protobuf.h"

#include <bit>
#include <cstring>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

static_assert(std::endian::native == std::endian::little);

enum Type { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
constexpr uint64_t kLastField = (1ULL << 29) - 1;

template <class T>
T number_of(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace

void WireReader::fail(const std::string& what) const {
  throw invalid_argument(place_ + ": " + what + " (byte " + std::to_string(at_) + ")");
}

uint64_t WireReader::varint(std::string_view bytes, size_t& at) const {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at == bytes.size()) fail("the end within a number");
    const auto byte = static_cast<uint8_t>(bytes[at++]);
    if (shift == 63 && byte > 1) break;
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number of more than 64 bits");
}

bool WireReader::next() {
  if (at_ == bytes_.size()) return false;
  const uint64_t key = varint(bytes_, at_);
  if (key >> 3 == 0 || key >> 3 > kLastField) fail("a field number that is none");
  field_ = static_cast<uint32_t>(key >> 3);
  type_ = static_cast<int>(key & 7);
  size_t size = 0;
  switch (type_) {
    case kVarint:
      number_ = varint(bytes_, at_);
      return true;
    case kBytes: {
      const uint64_t length = varint(bytes_, at_);
      if (length > bytes_.size() - at_)
        fail("a length of " + std::to_string(length) + " bytes, more than there are");
      size = static_cast<size_t>(length);
      break;
    }
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    default:
      fail("wire type " + std::to_string(type_) + " of field " + std::to_string(field_) +
           ", which is not read");
  }
  if (size > bytes_.size() - at_) fail("the end within a number");
  value_ = bytes_.substr(at_, size);
  at_ += size;
  return true;
}

void WireReader::need(int type) const {
  if (type_ != type) fail("field " + std::to_string(field_) + " has wire type " + std::to_string(type_));
}

std::string_view WireReader::bytes() const {
  need(kBytes);
  return value_;
}

int64_t WireReader::integer() const {
  need(kVarint);
  return static_cast<int64_t>(number_);
}

float WireReader::real32() const {
  need(kFixed32);
  return number_of<float>(value_);
}

double WireReader::real64() const {
  need(kFixed64);
  return number_of<double>(value_);
}

void WireReader::integers(std::vector<int64_t>& out) const {
  if (type_ == kVarint) return out.push_back(integer());
  const std::string_view packed = bytes();
  for (size_t at = 0; at < packed.size();) out.push_back(static_cast<int64_t>(varint(packed, at)));
}

void WireWriter::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out_.push_back(static_cast<char>(value));
}

void WireWriter::integer(uint32_t field, int64_t value) {
  varint(uint64_t{field} << 3 | kVarint);
  varint(static_cast<uint64_t>(value));
}

void WireWriter::bytes(uint32_t field, std::string_view value) {
  varint(uint64_t{field} << 3 | kBytes);
  varint(value.size());
  out_.append(value);
}

void WireWriter::real64(uint32_t field, double value) {
  varint(uint64_t{field} << 3 | kFixed64);
  out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace twinkle
