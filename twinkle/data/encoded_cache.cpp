#include "twinkle/data/encoded_cache.h"

#include <cstring>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

// The head of a file: this, the key, the SHA-256 of the rest.
constexpr std::string_view kMagic = "twinkle encoded rows 3\n";
constexpr size_t kHash = 64;

class Writer {
 public:
  void number(int64_t value) { raw(&value, sizeof(value)); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    raw(value.data(), value.size());
  }
  template <class T>
  void list(const std::vector<T>& values) {
    number(static_cast<int64_t>(values.size()));
    raw(values.data(), values.size() * sizeof(T));
  }
  std::string take() { return std::move(bytes_); }

 private:
  void raw(const void* data, size_t size) {
    if (size > 0) bytes_.append(static_cast<const char*>(data), size);
  }
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  int64_t number() {
    int64_t value = 0;
    raw(&value, sizeof(value));
    return value;
  }
  std::string text() {
    std::string out(count(1), '\0');
    raw(out.data(), out.size());
    return out;
  }
  template <class T>
  std::vector<T> list() {
    std::vector<T> out(count(sizeof(T)));
    raw(out.data(), out.size() * sizeof(T));
    return out;
  }
  // A count of items of which each takes `size` bytes at least.
  size_t count(size_t size) {
    const int64_t n = number();
    if (n < 0 || static_cast<uint64_t>(n) > bytes_.size() / size) throw invalid_argument("cut short");
    return static_cast<size_t>(n);
  }
  bool ended() const { return bytes_.empty(); }

 private:
  void raw(void* out, size_t size) {
    if (size > bytes_.size()) throw invalid_argument("cut short");
    if (size > 0) std::memcpy(out, bytes_.data(), size);
    bytes_.remove_prefix(size);
  }
  std::string_view bytes_;
};

std::string path_of(const std::string& folder, const std::string& key) {
  return folder + "/" + key.substr(0, 32) + ".encoded";
}

}  // namespace

bool load_encoded(const std::string& folder, const std::string& key, EncodedData* out) {
  const std::string path = path_of(folder, key);
  if (!file_exists(path)) return false;
  const MappedFile file(path);
  std::string_view bytes = file.text();
  if (!bytes.starts_with(kMagic) || bytes.substr(kMagic.size(), key.size()) != key) return false;
  bytes.remove_prefix(kMagic.size() + key.size());
  if (bytes.size() < kHash || sha256_hex(bytes.substr(kHash)) != bytes.substr(0, kHash)) return false;
  try {
    Reader reader(bytes.substr(kHash));
    EncodedData data;
    const size_t features = reader.count(1);
    for (size_t i = 0; i < features; ++i) {
      InputFeature f;
      f.input_ids = reader.list<int32_t>();
      f.labels = reader.list<int32_t>();
      f.weights = reader.list<float>();
      data.features.push_back(std::move(f));
      data.parts.push_back(reader.text());
    }
    data.rows = reader.list<int64_t>();
    const size_t dropped = reader.count(1);
    for (size_t i = 0; i < dropped; ++i) {
      DroppedRow row;
      row.row = reader.number();
      row.partial = reader.number() != 0;
      row.reason = reader.text();
      data.dropped.push_back(std::move(row));
      const int64_t index = reader.number();
      data.dropped_at.emplace_back(index, reader.text());
    }
    if (!reader.ended() || data.rows.size() != data.features.size()) return false;
    *out = std::move(data);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void save_encoded(const std::string& folder, const std::string& key, const EncodedData& data) {
  Writer writer;
  writer.number(static_cast<int64_t>(data.features.size()));
  for (size_t i = 0; i < data.features.size(); ++i) {
    writer.list(data.features[i].input_ids);
    writer.list(data.features[i].labels);
    writer.list(data.features[i].weights);
    writer.text(data.parts[i]);
  }
  writer.list(data.rows);
  writer.number(static_cast<int64_t>(data.dropped.size()));
  for (size_t i = 0; i < data.dropped.size(); ++i) {
    const DroppedRow& row = data.dropped[i];
    writer.number(row.row);
    writer.number(row.partial ? 1 : 0);
    writer.text(row.reason);
    writer.number(data.dropped_at[i].first);
    writer.text(data.dropped_at[i].second);
  }
  const std::string body = writer.take();
  make_directories(folder);
  write_file_atomic(path_of(folder, key), std::string(kMagic) + key + sha256_hex(body) + body);
}

}  // namespace twinkle
