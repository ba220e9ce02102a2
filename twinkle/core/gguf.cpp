// The reader of GGUF's header. Every length is checked against the bytes that are left before anything is
// allocated for it. Immutable once parsed; any thread may read.
#include "twinkle/core/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "twinkle/core/error.h"

namespace twinkle {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little-endian");

namespace {

struct TypeInfo {
  GgmlType type;
  std::string_view name;
  int64_t elements, bytes;
};

constexpr std::array kTypes = {
    TypeInfo{GgmlType::kF32, "F32", 1, 4},       TypeInfo{GgmlType::kF16, "F16", 1, 2},
    TypeInfo{GgmlType::kBF16, "BF16", 1, 2},     TypeInfo{GgmlType::kQ4_0, "Q4_0", 32, 18},
    TypeInfo{GgmlType::kQ4_1, "Q4_1", 32, 20},   TypeInfo{GgmlType::kQ5_0, "Q5_0", 32, 22},
    TypeInfo{GgmlType::kQ5_1, "Q5_1", 32, 24},   TypeInfo{GgmlType::kQ8_0, "Q8_0", 32, 34},
    TypeInfo{GgmlType::kQ2_K, "Q2_K", 256, 84},  TypeInfo{GgmlType::kQ3_K, "Q3_K", 256, 110},
    TypeInfo{GgmlType::kQ4_K, "Q4_K", 256, 144}, TypeInfo{GgmlType::kQ5_K, "Q5_K", 256, 176},
    TypeInfo{GgmlType::kQ6_K, "Q6_K", 256, 210},
};

const TypeInfo* find_type(uint32_t id) {
  for (const auto& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == id) return &info;
  }
  return nullptr;
}

const TypeInfo& type_info(GgmlType type) {
  const TypeInfo* info = find_type(static_cast<uint32_t>(type));
  TW_CHECK(info != nullptr, "unknown ggml type");
  return *info;
}

// Names of formats that ggml has and we lack, for the message.
std::string foreign_type_name(uint32_t id) {
  switch (id) {
    case 9:
      return "Q8_1";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 20:
      return "IQ4_NL";
    case 21:
      return "IQ3_S";
    case 22:
      return "IQ2_S";
    case 23:
      return "IQ4_XS";
    case 24:
      return "I8";
    case 25:
      return "I16";
    case 26:
      return "I32";
    case 27:
      return "I64";
    case 28:
      return "F64";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 39:
      return "MXFP4";
    default:
      return "type " + std::to_string(id);
  }
}

constexpr uint64_t kMaxNameBytes = 65535;
constexpr int kMaxArrayDepth = 4;

enum ValueType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32Value,
  kBoolValue,
  kStringValue,
  kArrayValue,
  kU64,
  kI64,
  kF64Value,
};

// Bytes that a value of the type takes at least.
uint64_t min_value_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBoolValue:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32Value:
      return 4;
    case kStringValue:
    case kU64:
    case kI64:
    case kF64Value:
      return 8;
    case kArrayValue:
      return 12;
    default:
      return 0;
  }
}

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  Error error(const std::string& message) const {
    return invalid_argument("[gguf] '" + where_ + "': " + message);
  }

  template <class T>
  T number(std::string_view what) {
    if (left() < sizeof(T)) {
      throw error("the file ends at byte " + std::to_string(bytes_.size()) + ", within " + std::string(what));
    }
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string_view text(std::string_view what) {
    const uint64_t length = number<uint64_t>(what);
    if (length > left()) {
      throw error("the length of " + std::string(what) + " is " + std::to_string(length) + ", but only " +
                  std::to_string(left()) + " bytes are left");
    }
    const std::string_view view(reinterpret_cast<const char*>(bytes_.data() + position_), length);
    position_ += length;
    return view;
  }

  Json value(uint32_t type, const std::string& key, int depth) {
    const std::string what = "the value of '" + key + "'";
    switch (type) {
      case kU8:
        return number<uint8_t>(what);
      case kI8:
        return number<int8_t>(what);
      case kU16:
        return number<uint16_t>(what);
      case kI16:
        return number<int16_t>(what);
      case kU32:
        return number<uint32_t>(what);
      case kI32:
        return number<int32_t>(what);
      case kF32Value:
        return number<float>(what);
      case kU64:
        return number<uint64_t>(what);
      case kI64:
        return number<int64_t>(what);
      case kF64Value:
        return number<double>(what);
      case kBoolValue: {
        const uint8_t flag = number<uint8_t>(what);
        if (flag > 1) throw error(what + " is a boolean of " + std::to_string(flag) + ", expected 0 or 1");
        return flag == 1;
      }
      case kStringValue:
        return std::string(text(what));
      case kArrayValue:
        return array(key, depth);
      default:
        throw error(what + " has the unknown type " + std::to_string(type));
    }
  }

 private:
  Json array(const std::string& key, int depth) {
    if (depth >= kMaxArrayDepth) throw error("'" + key + "' nests lists too deeply");
    const uint32_t type = number<uint32_t>("the list '" + key + "'");
    const uint64_t count = number<uint64_t>("the list '" + key + "'");
    const uint64_t least = min_value_bytes(type);
    if (least == 0) throw error("the list '" + key + "' has the unknown type " + std::to_string(type));
    if (count > left() / least) {
      throw error("the list '" + key + "' claims " + std::to_string(count) + " values, but only " +
                  std::to_string(left()) + " bytes are left");
    }
    Json list = Json::array();
    auto& values = list.get_ref<Json::array_t&>();
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) values.push_back(value(type, key, depth + 1));
    return list;
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  uint64_t position_ = 0;
};

struct TensorPlace {
  uint64_t offset = 0, bytes = 0;
};

TensorPlace read_tensor(GgufReader& in, uint64_t index, GgufTensor& tensor) {
  const std::string_view name = in.text("the name of tensor " + std::to_string(index));
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw in.error("the name of tensor " + std::to_string(index) + " has " + std::to_string(name.size()) +
                   " bytes");
  }
  tensor.name = name;
  const std::string what = "tensor '" + tensor.name + "'";
  const uint32_t dims = in.number<uint32_t>(what);
  if (dims < 1 || dims > 4)
    throw in.error(what + " has " + std::to_string(dims) + " dimensions, expected 1 to 4");
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  uint64_t elements = 1, row = 0;
  for (uint32_t d = 0; d < dims; ++d) {
    const uint64_t size = in.number<uint64_t>(what);
    if (d == 0) row = size;
    if (size > kMax || (size != 0 && elements > kMax / size)) throw in.error(what + ": its shape overflows");
    elements *= size;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const uint32_t id = in.number<uint32_t>(what);
  const TypeInfo* type = find_type(id);
  if (type == nullptr) {
    std::string known;
    for (const auto& info : kTypes) known += (known.empty() ? "" : ", ") + std::string(info.name);
    throw in.error(what + " is stored as " + foreign_type_name(id) +
                   ", which is not supported (supported: " + known + ")");
  }
  tensor.type = type->type;
  const uint64_t block = static_cast<uint64_t>(type->elements);
  if (row % block != 0) {
    throw in.error(what + ": rows of " + std::to_string(row) + " are not whole blocks of " +
                   std::to_string(block) + " as " + std::string(type->name) + " needs");
  }
  const uint64_t blocks = elements / block, block_bytes = static_cast<uint64_t>(type->bytes);
  if (blocks > kMax / block_bytes) throw in.error(what + ": its size overflows");
  return {in.number<uint64_t>(what), blocks * block_bytes};
}

}  // namespace

std::string_view ggml_type_name(GgmlType type) { return type_info(type).name; }
int64_t ggml_block_size(GgmlType type) { return type_info(type).elements; }
int64_t ggml_block_bytes(GgmlType type) { return type_info(type).bytes; }

GgufFile GgufFile::open(const std::string& path) {
  MappedFile file(path);
  GgufFile parsed = parse(file.bytes(), path);
  parsed.file_ = std::move(file);  // the spans point into the map, which does not move
  return parsed;
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, std::string_view where) {
  GgufReader in(bytes, where);
  GgufFile out;
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) {
    throw in.error("this is not a GGUF file (it does not begin with 'GGUF')");
  }
  in.number<uint32_t>("the header");
  const uint32_t version = in.number<uint32_t>("the header");
  if (version != 2 && version != 3) {
    if ((version & 0xFFFF) == 0) throw in.error("the file is big-endian; only little-endian files are read");
    throw in.error("GGUF version " + std::to_string(version) + " is not supported (2 and 3 are)");
  }
  const uint64_t num_tensors = in.number<uint64_t>("the header");
  const uint64_t num_values = in.number<uint64_t>("the header");
  // A tensor takes at least 8 + 1 + 4 + 8 + 4 + 8 bytes, a metadata entry 8 + 1 + 4 + 1.
  if (num_tensors > in.left() / 33 || num_values > in.left() / 14) {
    throw in.error("the header claims " + std::to_string(num_tensors) + " tensors and " +
                   std::to_string(num_values) + " metadata entries, more than the " +
                   std::to_string(in.left()) + " bytes that follow can hold");
  }
  std::map<std::string, Json> values;  // ordered_json would look for every key in a list
  std::vector<std::string> order;
  for (uint64_t i = 0; i < num_values; ++i) {
    const std::string key(in.text("metadata key " + std::to_string(i)));
    if (key.empty() || key.size() > kMaxNameBytes) {
      throw in.error("metadata key " + std::to_string(i) + " has " + std::to_string(key.size()) + " bytes");
    }
    const uint32_t type = in.number<uint32_t>("the value of '" + key + "'");
    if (!values.emplace(key, in.value(type, key, 0)).second)
      throw in.error("metadata key '" + key + "' appears twice");
    order.push_back(key);
  }
  auto& object = out.metadata_.get_ref<Json::object_t&>();
  object.reserve(order.size());
  for (const auto& key : order) object.Container::emplace_back(key, std::move(values[key]));

  uint64_t alignment = 32;
  if (const auto it = out.metadata_.find("general.alignment"); it != out.metadata_.end()) {
    if (!it->is_number_unsigned()) throw in.error("'general.alignment' must be an unsigned number");
    alignment = it->get<uint64_t>();
    if (!std::has_single_bit(alignment) || alignment > (uint64_t{1} << 30)) {
      throw in.error("'general.alignment' must be a power of two, got " + std::to_string(alignment));
    }
  }

  std::vector<TensorPlace> places;
  places.reserve(num_tensors);
  out.tensors_.resize(num_tensors);
  for (uint64_t i = 0; i < num_tensors; ++i) {
    places.push_back(read_tensor(in, i, out.tensors_[i]));
    if (!out.index_.emplace(out.tensors_[i].name, i).second) {
      throw in.error("tensor '" + out.tensors_[i].name + "' appears twice");
    }
  }

  const uint64_t begin =
      std::min<uint64_t>((in.position() + alignment - 1) / alignment * alignment, bytes.size());
  const auto data = bytes.subspan(begin);
  std::vector<size_t> by_offset(num_tensors);
  for (size_t i = 0; i < num_tensors; ++i) {
    by_offset[i] = i;
    auto& tensor = out.tensors_[i];
    const auto [offset, size] = places[i];
    if (offset % alignment != 0) {
      throw in.error("tensor '" + tensor.name + "' begins at " + std::to_string(offset) +
                     ", which is not a multiple of the alignment " + std::to_string(alignment));
    }
    if (offset > data.size() || size > data.size() - offset) {
      throw in.error("tensor '" + tensor.name + "' needs " + std::to_string(size) + " bytes at " +
                     std::to_string(offset) + " of the data, which are " + std::to_string(data.size()) +
                     " bytes; the file is truncated or damaged");
    }
    tensor.data = data.subspan(offset, size);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [&](size_t a, size_t b) { return places[a].offset < places[b].offset; });
  uint64_t end = 0;
  const GgufTensor* previous = nullptr;
  for (const size_t i : by_offset) {
    if (places[i].bytes == 0) continue;
    if (places[i].offset < end) {
      throw in.error("tensors '" + previous->name + "' and '" + out.tensors_[i].name + "' overlap");
    }
    end = places[i].offset + places[i].bytes;
    previous = &out.tensors_[i];
  }
  return out;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace twinkle
