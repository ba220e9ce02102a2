// The wire format of protobuf messages, read and written field by field without a schema. Free of state; one
// thread a reader or writer.
//
// A reader never trusts a length: what is cut off, too long or of the wrong type is invalid_argument that
// begins with the place. Fields that nobody asks for are passed over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle {

/// Walks over the fields of one message, whose bytes outlive it.
///   for (WireReader in(bytes, "[log] call"); in.next();) switch (in.field()) { case 1: use(in.text()); }
class WireReader {
 public:
  WireReader(std::string_view bytes, std::string place) : bytes_(bytes), place_(std::move(place)) {}
  /// To the next field; false at the end of the message.
  bool next();
  uint32_t field() const { return field_; }

  /// The value of the field, of the type that its number has in the schema.
  std::string_view bytes() const;
  std::string text() const { return std::string(bytes()); }
  int64_t integer() const;
  bool boolean() const { return integer() != 0; }
  float real32() const;
  double real64() const;
  /// A repeated integer, packed or not: appended.
  void integers(std::vector<int64_t>& out) const;

  /// invalid_argument "<place>: <what> (byte N)".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void need(int type) const;
  uint64_t varint(std::string_view bytes, size_t& at) const;

  std::string_view bytes_, value_;  // value_: of a field that is no integer
  std::string place_;
  size_t at_ = 0;
  uint32_t field_ = 0;
  int type_ = -1;
  uint64_t number_ = 0;
};

class WireWriter {
 public:
  void integer(uint32_t field, int64_t value);
  void bytes(uint32_t field, std::string_view value);
  void real64(uint32_t field, double value);
  std::string take() { return std::move(out_); }
  const std::string& str() const { return out_; }

 private:
  void varint(uint64_t value);
  std::string out_;
};

}  // namespace twinkle
