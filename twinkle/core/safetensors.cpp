// The reader of safetensors files. The header is read as a stream of JSON events, so that memory stays in
// proportion to the header and a name that appears twice is seen. Immutable once parsed; any thread may read.
#include "twinkle/core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/json.h"
#include "twinkle/core/list_text.h"

namespace twinkle {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

// Accepts exactly {"__metadata__": {text: text}, name: {"dtype": .., "shape": [..], "data_offsets": [a, b]},
// ..}.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(const std::string& place) : place_(place) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  Error error(const std::string& message) const { return invalid_argument(place_ + message); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(double, const std::string& text) override { return unexpected("the number " + text); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_integer(int64_t value) override { return unexpected("the number " + std::to_string(value)); }

  bool number_unsigned(uint64_t value) override {
    if (state_ != State::kList) return unexpected("the number " + std::to_string(value));
    list().push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (state_ == State::kTensor && key_ == "dtype") {
      entries.back().dtype = value;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (key_ == "__metadata__") {
          state_ = State::kMetadata;
        } else {
          entries.push_back({.name = key_});
          state_ = State::kTensor;
        }
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& value) override {
    key_ = value;
    switch (state_) {
      case State::kTop:
        if (value == "__metadata__") {
          if (seen_metadata_) throw error("'__metadata__' appears twice");
          seen_metadata_ = true;
        }
        return true;
      case State::kMetadata:
        if (metadata.contains(value)) throw error("metadata key '" + value + "' appears twice");
        return true;
      default:
        break;
    }
    const Entry& entry = entries.back();
    const bool known = value == "dtype" || value == "shape" || value == "data_offsets";
    if (!known) throw error("tensor '" + entry.name + "' has the unknown key '" + value + "'");
    if ((value == "dtype" && entry.dtype) || (value == "shape" && entry.shape) ||
        (value == "data_offsets" && entry.offsets)) {
      throw error("tensor '" + entry.name + "' has '" + value + "' twice");
    }
    return true;
  }

  bool end_object() override {
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return unexpected("a list");
    state_ = State::kList;
    list().clear();
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw error("the header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kList, kEnd };

  std::vector<uint64_t>& list() {
    auto& which = key_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (!which) which.emplace();
    return *which;
  }

  bool unexpected(const std::string& got) const {
    switch (state_) {
      case State::kStart:
        throw error("the header must be an object, got " + got);
      case State::kMetadata:
        throw error("metadata '" + key_ + "' must be a string, got " + got);
      case State::kTop:
        throw error("'" + key_ + "' must be an object, got " + got);
      default:
        break;
    }
    const char* needed = key_ == "dtype" ? "a string" : "a list of whole numbers >= 0";
    throw error("tensor '" + entries.back().name + "': '" + key_ + "' must be " + needed + ", got " + got);
  }

  std::string place_, key_;
  State state_ = State::kStart;
  bool seen_metadata_ = false;
};

std::string place_of(std::string_view where) { return "[safetensors] '" + std::string(where) + "': "; }

SafeTensor check_entry(const HeaderEvents& events, const Entry& entry, uint64_t data_bytes) {
  const std::string what = "tensor '" + entry.name + "'";
  if (!entry.dtype) throw events.error(what + " has no 'dtype'");
  if (!entry.shape) throw events.error(what + " has no 'shape'");
  if (!entry.offsets) throw events.error(what + " has no 'data_offsets'");
  if (entry.offsets->size() != 2) throw events.error(what + ": 'data_offsets' must hold two numbers");
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (end < begin) {
    throw events.error(what + " ends before it begins: data_offsets " + shape_text(*entry.offsets));
  }
  if (end > data_bytes) {
    throw events.error(what + " ends at byte " + std::to_string(end) + " of the data, which are " +
                       std::to_string(data_bytes) + " bytes; the file is truncated or damaged");
  }
  const int64_t element = safetensors_dtype_bytes(*entry.dtype);
  if (element == 0) throw events.error(what + " has the unknown dtype '" + *entry.dtype + "'");
  uint64_t bytes = static_cast<uint64_t>(element);
  bool overflow = false, empty = false;
  for (const uint64_t size : *entry.shape) {
    empty |= size == 0;
    overflow |= size > kMaxBytes || (size != 0 && bytes > kMaxBytes / size);
    if (!overflow && size != 0) bytes *= size;
  }
  if (overflow) throw events.error(what + ": the shape " + shape_text(*entry.shape) + " overflows");
  if (empty) bytes = 0;
  if (bytes != end - begin) {
    throw events.error(what + " of " + *entry.dtype + " and shape " + shape_text(*entry.shape) + " needs " +
                       std::to_string(bytes) + " bytes, its data_offsets hold " +
                       std::to_string(end - begin));
  }
  SafeTensor tensor{.name = entry.name, .dtype = *entry.dtype};
  tensor.shape.assign(entry.shape->begin(), entry.shape->end());
  return tensor;
}

}  // namespace

int64_t SafeTensor::num_elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

int64_t SafeTensor::num_bytes() const { return num_elements() * safetensors_dtype_bytes(dtype); }

int64_t safetensors_dtype_bytes(std::string_view dtype) {
  static const std::map<std::string, int64_t, std::less<>> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  const auto it = kBytes.find(dtype);
  return it == kBytes.end() ? 0 : it->second;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  MappedFile file(path);
  SafetensorsFile parsed = parse(file.bytes(), path);
  parsed.file_ = std::move(file);  // the spans point into the map, which does not move
  return parsed;
}

// By the first eight bytes: a pickle of protocol 2 to 5, or the zip archive that torch puts one into.
static bool is_pickle(uint64_t first) {
  const bool zip = (first & 0xffffffff) == 0x04034b50;
  return zip || ((first & 0xff) == 0x80 && (first >> 8 & 0xff) >= 2 && (first >> 8 & 0xff) <= 5);
}

void check_safetensors_header_bytes(uint64_t header_bytes, uint64_t file_bytes, std::string_view where) {
  const HeaderEvents events(place_of(where));
  const uint64_t most = std::min(kMaxHeaderBytes, file_bytes - 8);
  if (header_bytes > most && is_pickle(header_bytes)) {
    throw events.error(
        "this is a pickle, as torch.save writes it, under another name: it could run code when read, and is "
        "refused");
  }
  if (header_bytes > kMaxHeaderBytes) {
    throw events.error("the header claims " + std::to_string(header_bytes) + " bytes; the limit is " +
                       std::to_string(kMaxHeaderBytes));
  }
  if (header_bytes > file_bytes - 8) {
    throw events.error("the header claims " + std::to_string(header_bytes) + " bytes, the file has " +
                       std::to_string(file_bytes - 8) +
                       " after its length; it is truncated or not a safetensors file");
  }
}

SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                           std::string_view where) {
  HeaderEvents events(place_of(where));
  if (header.empty() || header[0] != '{') throw events.error("the header does not begin with '{'");
  nlohmann::json::sax_parse(header, &events);

  SafetensorsHeader out;
  out.metadata = std::move(events.metadata);
  struct Placed {
    const Entry* entry;
    SafeTensor tensor;
  };
  std::vector<Placed> placed;
  placed.reserve(events.entries.size());
  for (const auto& entry : events.entries) placed.push_back({&entry, check_entry(events, entry, data_bytes)});
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    if (*a.entry->offsets != *b.entry->offsets) return *a.entry->offsets < *b.entry->offsets;
    return a.entry->name < b.entry->name;
  });
  uint64_t at = 0;
  std::set<std::string_view> names;
  for (size_t i = 0; i < placed.size(); ++i) {
    const auto& entry = *placed[i].entry;
    const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
    if (begin < at) {
      throw events.error("tensors '" + placed[i - 1].entry->name + "' and '" + entry.name + "' overlap");
    }
    if (begin > at) {
      throw events.error("bytes " + std::to_string(at) + " to " + std::to_string(begin) +
                         " of the data belong to no tensor (before '" + entry.name + "')");
    }
    at = end;
    if (!names.insert(entry.name).second) throw events.error("tensor '" + entry.name + "' appears twice");
    out.tensors.push_back(std::move(placed[i].tensor));
  }
  if (at != data_bytes) throw events.error(std::to_string(data_bytes - at) + " bytes follow the last tensor");
  return out;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string_view where) {
  if (bytes.size() < 8) {
    throw invalid_argument(place_of(where) + "the file has " + std::to_string(bytes.size()) +
                           " bytes, too few for a header");
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), 8);
  check_safetensors_header_bytes(header_bytes, bytes.size(), where);
  auto data = bytes.subspan(8 + header_bytes);
  SafetensorsFile out;
  out.header_ = parse_safetensors_header({reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes},
                                         data.size(), where);
  for (size_t i = 0; i < out.header_.tensors.size(); ++i) {
    SafeTensor& tensor = out.header_.tensors[i];
    const auto size = static_cast<size_t>(tensor.num_bytes());
    tensor.data = data.first(size);
    data = data.subspan(size);
    out.index_.emplace(tensor.name, i);
  }
  return out;
}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &header_.tensors[it->second];
}

}  // namespace twinkle
