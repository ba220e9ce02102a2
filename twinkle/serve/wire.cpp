#include "twinkle/serve/wire.h"

#include "twinkle/core/error.h"

namespace twinkle::serve {

void WireReader::fail(const char* why) const {
  throw invalid_argument(std::string("[protobuf] ") + what_ + ": " + why);
}

uint64_t WireReader::varint(std::string_view& from) const {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (from.empty()) fail("it is cut off");
    const auto byte = static_cast<uint8_t>(from.front());
    from.remove_prefix(1);
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number has too many bytes");
}

bool WireReader::next() {
  if (rest_.empty()) return false;
  const uint64_t tag = varint(rest_);
  if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) fail("a field number is out of range");
  field_ = static_cast<uint32_t>(tag >> 3);
  type_ = static_cast<uint32_t>(tag & 7);
  size_t size = 0;
  switch (type_) {
    case 0:
      number_ = varint(rest_);
      return true;
    case 1:
      size = 8;
      break;
    case 2: {
      const uint64_t length = varint(rest_);
      if (length > rest_.size()) fail("it is cut off");
      size = static_cast<size_t>(length);
      break;
    }
    case 5:
      size = 4;
      break;
    default:
      fail("a field has a type that is not in use");
  }
  if (size > rest_.size()) fail("it is cut off");
  bytes_ = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return true;
}

std::string_view WireReader::bytes() const {
  if (type_ != 2) fail("a field has the wrong type");
  return bytes_;
}

int64_t WireReader::integer() const {
  if (type_ != 0) fail("a field has the wrong type");
  return static_cast<int64_t>(number_);
}

double WireReader::real64() const {
  if (type_ != 1) fail("a field has the wrong type");
  double value = 0;
  std::memcpy(&value, bytes_.data(), sizeof(value));
  return value;
}

void WireReader::integers(std::vector<int64_t>& out) const {
  if (type_ == 0) return out.push_back(integer());
  for (std::string_view packed = bytes(); !packed.empty();)
    out.push_back(static_cast<int64_t>(varint(packed)));
}

void WireWriter::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out_.push_back(static_cast<char>(value));
}

void WireWriter::integer(uint32_t field, int64_t value) {
  varint(uint64_t{field} << 3);
  varint(static_cast<uint64_t>(value));
}

void WireWriter::bytes(uint32_t field, std::string_view value) {
  varint((uint64_t{field} << 3) | 2);
  varint(value.size());
  out_.append(value);
}

void WireWriter::real64(uint32_t field, double value) {
  varint((uint64_t{field} << 3) | 1);
  out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
std::vector<T> unpack_array(std::string_view bytes, const char* what) {
  if (bytes.size() % sizeof(T) != 0) {
    throw invalid_argument(std::string("[protobuf] ") + what + ": " + std::to_string(bytes.size()) +
                           " bytes are not a whole number of values of " + std::to_string(sizeof(T)) +
                           " bytes");
  }
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}
template std::vector<int32_t> unpack_array(std::string_view, const char*);
template std::vector<int64_t> unpack_array(std::string_view, const char*);
template std::vector<float> unpack_array(std::string_view, const char*);

}  // namespace twinkle::serve
