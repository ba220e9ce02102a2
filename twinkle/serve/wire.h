// The protobuf wire format, read and written by hand: what the few messages of Tinker need. Free of state.
//
// A reader never trusts a length: what is cut off, too long or of the wrong type is invalid_argument. Fields
// that nobody asks for are skipped.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::serve {

/// Walks over the fields of one message.
///   for (WireReader in(bytes, "Datum"); in.next();) switch (in.field()) { case 1: use(in.text()); }
class WireReader {
 public:
  /// `what` names the message in errors.
  WireReader(std::string_view bytes, const char* what) : rest_(bytes), what_(what) {}
  /// To the next field; false at the end.
  bool next();
  uint32_t field() const { return field_; }
  /// The value of the field, of the type that its number has in the schema.
  std::string_view bytes() const;
  std::string text() const { return std::string(bytes()); }
  int64_t integer() const;
  bool boolean() const { return integer() != 0; }
  double real64() const;
  /// A repeated integer, packed or not: appended.
  void integers(std::vector<int64_t>& out) const;

 private:
  [[noreturn]] void fail(const char* why) const;
  uint64_t varint(std::string_view& from) const;

  std::string_view rest_, bytes_;
  const char* what_;
  uint32_t field_ = 0, type_ = 0;
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

/// Numbers as Tinker packs them: little-endian, one behind the other, no header. invalid_argument when the
/// size is no multiple of theirs.
template <class T>
std::vector<T> unpack_array(std::string_view bytes, const char* what);
template <class T>
std::string_view pack_array(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace twinkle::serve
