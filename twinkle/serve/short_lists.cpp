// The first byte says how the rest is written. Whole numbers: bytes of each, little-endian, those of fewer
// than four bytes without a sign. Fractions: kPlain, four bytes each, or kRuns, pieces of a byte that says
// how often more the number comes, and the number.
#include "twinkle/serve/short_lists.h"

#include <algorithm>
#include <bit>

#include "twinkle/serve/wire.h"

namespace twinkle::serve {
namespace {

constexpr char kPlain = 0, kRuns = 1;
constexpr size_t kLongestRun = 256, kPieceBytes = 5;

template <size_t kBytes>
std::string with_width(const std::vector<int32_t>& values) {
  std::string out(1 + values.size() * kBytes, static_cast<char>(kBytes));
  char* to = out.data() + 1;
  for (const int32_t value : values) {
    for (size_t i = 0; i < kBytes; ++i) *to++ = static_cast<char>(static_cast<uint32_t>(value) >> (8 * i));
  }
  return out;
}

template <size_t kBytes>
std::vector<int32_t> of_width(std::string_view bytes, const std::string& place) {
  if (bytes.size() % kBytes != 0) {
    throw invalid_argument(place + ": " + std::to_string(bytes.size()) +
                           " bytes are not a whole number of values of " + std::to_string(kBytes) + " bytes");
  }
  std::vector<int32_t> out(bytes.size() / kBytes);
  const char* from = bytes.data();
  for (int32_t& value : out) {
    uint32_t bits = 0;
    for (size_t i = 0; i < kBytes; ++i) bits |= uint32_t{static_cast<unsigned char>(*from++)} << (8 * i);
    value = static_cast<int32_t>(bits);
  }
  return out;
}

}  // namespace

std::string shorten(const std::vector<int32_t>& values) {
  uint32_t all = 0;
  for (const int32_t value : values) all |= static_cast<uint32_t>(value);
  if (all < 1u << 8) return with_width<1>(values);
  if (all < 1u << 16) return with_width<2>(values);
  if (all < 1u << 24) return with_width<3>(values);
  return with_width<4>(values);
}

std::vector<int32_t> ints_from_short(std::string_view bytes, const std::string& place) {
  const char width = bytes.empty() ? '\0' : bytes[0];
  switch (width) {
    case 1:
      return of_width<1>(bytes.substr(1), place);
    case 2:
      return of_width<2>(bytes.substr(1), place);
    case 3:
      return of_width<3>(bytes.substr(1), place);
    case 4:
      return of_width<4>(bytes.substr(1), place);
    default:
      throw invalid_argument(place + ": a list of whole numbers of another kind");
  }
}

std::string shorten(const std::vector<float>& values) {
  const size_t plain_bytes = values.size() * sizeof(float);
  std::string out(1, kRuns);
  for (size_t i = 0; i < values.size();) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    size_t end = i + 1;
    const size_t last = std::min(values.size(), i + kLongestRun);
    while (end < last && std::bit_cast<uint32_t>(values[end]) == bits) ++end;
    out.push_back(static_cast<char>(end - i - 1));
    out.append(reinterpret_cast<const char*>(&values[i]), sizeof(float));
    i = end;
    if (out.size() > plain_bytes) return std::string(1, kPlain).append(pack_array(values));
  }
  return out;
}

std::vector<float> floats_from_short(std::string_view bytes, const std::string& place) {
  const char kind = bytes.empty() ? '\2' : bytes[0];
  if (kind == kPlain) return unpack_array<float>(bytes.substr(1), place);
  if (kind != kRuns || bytes.size() % kPieceBytes != 1)
    throw invalid_argument(place + ": a list of fractions of another kind");
  std::vector<float> out;
  for (size_t at = 1; at < bytes.size(); at += kPieceBytes) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at + 1, sizeof(value));
    out.insert(out.end(), size_t{static_cast<unsigned char>(bytes[at])} + 1, value);
  }
  return out;
}

}  // namespace twinkle::serve
