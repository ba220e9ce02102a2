// Tensors from one process to another: a safetensors file, cut into buckets, between messages in JSON. Every
// frame carries its kind, number, length and checksums; lengths are checked before anything is allocated, and
// a damaged, torn or foreign stream is an error that names the place.
//
//   frame:  magic u32 | kind u32 | number u64 | bytes u64 | crc of the body u32 | crc of these 28 bytes u32
//           | body
//
// Little-endian. Each direction counts its own frames. Bucket i holds bytes i*bucket .. of the file; only the
// last may be shorter. One thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/core/safetensors.h"

namespace twinkle {

/// Takes all of it or throws.
using WriteBytes = std::function<void(std::span<const std::byte>)>;
/// Fills the span; returns less only at the end of the stream.
using ReadBytes = std::function<size_t(std::span<std::byte>)>;

enum class FrameKind : uint32_t { kAbout = 1, kReply = 2, kBucket = 3, kEnd = 4 };

inline constexpr size_t kMostMessageBytes = 1 << 20;

class FrameWriter {
 public:
  explicit FrameWriter(WriteBytes write) : write_(std::move(write)) {}
  void write(FrameKind kind, std::span<const std::byte> body);
  void write_message(FrameKind kind, const Json& message);

 private:
  WriteBytes write_;
  uint64_t number_ = 0;
};

class FrameReader {
 public:
  explicit FrameReader(ReadBytes read) : read_(std::move(read)) {}
  /// The next frame's body, which must be of this kind and have at most so many bytes. invalid_argument for
  /// what is not such a frame, unavailable when the stream ends.
  void read(FrameKind kind, size_t most_bytes, std::vector<std::byte>& body);
  Json read_message(FrameKind kind);
  /// A message, or nothing where the stream ends between frames.
  std::optional<Json> read_message_or_end(FrameKind kind);

 private:
  bool read_frame(FrameKind kind, size_t most_bytes, std::vector<std::byte>& body);

  ReadBytes read_;
  uint64_t number_ = 0;
};

/// Sends the file of these tensors; one thread fills a bucket while another sends the one before.
/// `bucket_bytes` is a multiple of 8. `progress` hears how many bytes of how many are filled.
void send_tensors(FrameWriter& writer, const SafetensorsPlan& plan, int64_t bucket_bytes,
                  const std::function<void(int64_t done, int64_t total)>& progress = nullptr);
/// Receives `file_bytes` bytes of a file; one thread reads a bucket while `take` has the one before.
void receive_buckets(FrameReader& reader, int64_t file_bytes, int64_t bucket_bytes,
                     const std::function<void(std::span<const std::byte>)>& take);

/// A safetensors file that comes in pieces of any size.
class SafetensorsFeed {
 public:
  /// Hears the tensors before any data and refuses them by an exception.
  using Layout = std::function<void(const std::vector<SafeTensor>& tensors)>;
  /// A piece of tensor number `tensor`, in order; never empty.
  using Data = std::function<void(size_t tensor, int64_t offset, std::span<const std::byte> bytes)>;

  SafetensorsFeed(uint64_t file_bytes, std::string where, Layout layout, Data data);
  /// invalid_argument for what is no such file, or more of it than there is.
  void feed(std::span<const std::byte> bytes);
  /// invalid_argument when bytes are missing.
  void finish() const;

 private:
  uint64_t file_bytes_;
  std::string where_;
  Layout layout_;
  Data data_;
  std::string head_;  // the header with its length before it, as far as it has come
  bool parsed_ = false;
  std::vector<SafeTensor> tensors_;
  size_t tensor_ = 0;
  int64_t offset_ = 0;  // in it
};

}  // namespace twinkle
