#include "twinkle/core/tensor_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/error.h"
#include "twinkle/core/two_buffers.h"

namespace twinkle {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

namespace {

constexpr uint32_t kMagic = 0x464B5754;  // "TWKF"
constexpr size_t kHeadBytes = 32;

struct FrameHead {
  uint32_t magic = kMagic, kind = 0;
  uint64_t number = 0, bytes = 0;
  uint32_t body_crc = 0, head_crc = 0;
};
static_assert(sizeof(FrameHead) == kHeadBytes);

uint32_t crc_of(const FrameHead& head) {
  return crc32c(std::as_bytes(std::span(&head, 1)).first(kHeadBytes - sizeof(head.head_crc)));
}

std::string name_of(uint32_t kind) {
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kAbout:
      return "an announcement";
    case FrameKind::kReply:
      return "a reply";
    case FrameKind::kBucket:
      return "a bucket";
    case FrameKind::kEnd:
      return "an end";
  }
  return "kind " + std::to_string(kind);
}

Error error(uint64_t number, const std::string& what) {
  return invalid_argument("[stream] frame " + std::to_string(number) + ": " + what);
}

}  // namespace

// Frames.

void FrameWriter::write(FrameKind kind, std::span<const std::byte> body) {
  FrameHead head;
  head.kind = static_cast<uint32_t>(kind);
  head.number = number_++;
  head.bytes = body.size();
  head.body_crc = crc32c(body);
  head.head_crc = crc_of(head);
  write_(std::as_bytes(std::span(&head, 1)));
  if (!body.empty()) write_(body);
}

void FrameWriter::write_message(FrameKind kind, const Json& message) {
  // What came from outside may hold bytes that are not UTF-8.
  const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  write(kind, std::as_bytes(std::span(text)));
}

bool FrameReader::read_frame(FrameKind kind, size_t most_bytes, std::vector<std::byte>& body) {
  const auto torn = [&](const std::string& where) {
    return unavailable("[stream] frame " + std::to_string(number_) + ": the stream ended " + where +
                       "; the other side is gone");
  };
  FrameHead head;
  const size_t got = read_(std::as_writable_bytes(std::span(&head, 1)));
  if (got == 0) return false;
  if (got < kHeadBytes) throw torn("within its head");
  if (head.magic != kMagic) throw error(number_, "these bytes are no frame");
  if (head.head_crc != crc_of(head))
    throw error(number_, "the checksum of its head differs; the stream is damaged");
  if (head.number != number_)
    throw error(number_, "it has the number " + std::to_string(head.number) + "; frames were lost");
  if (head.kind != static_cast<uint32_t>(kind)) {
    throw error(number_, "expected " + name_of(static_cast<uint32_t>(kind)) + ", got " + name_of(head.kind));
  }
  if (head.bytes > most_bytes) {
    throw error(number_, "it claims " + std::to_string(head.bytes) + " bytes, at most " +
                             std::to_string(most_bytes) + " may come here");
  }
  body.resize(static_cast<size_t>(head.bytes));
  if (read_(body) < body.size()) throw torn("within its " + std::to_string(body.size()) + " bytes");
  if (head.body_crc != crc32c(body))
    throw error(number_, "the checksum of its bytes differs; the stream is damaged");
  ++number_;
  return true;
}

void FrameReader::read(FrameKind kind, size_t most_bytes, std::vector<std::byte>& body) {
  if (read_frame(kind, most_bytes, body)) return;
  throw unavailable("[stream] the stream ended before frame " + std::to_string(number_) + ", " +
                    name_of(static_cast<uint32_t>(kind)) + "; the other side is gone");
}

std::optional<Json> FrameReader::read_message_or_end(FrameKind kind) {
  std::vector<std::byte> body;
  if (!read_frame(kind, kMostMessageBytes, body)) return std::nullopt;
  Json out = parse_json({reinterpret_cast<const char*>(body.data()), body.size()}, "stream", 16);
  if (!out.is_object()) throw error(number_ - 1, "a message is an object");
  return out;
}

Json FrameReader::read_message(FrameKind kind) {
  if (auto out = read_message_or_end(kind)) return std::move(*out);
  throw unavailable("[stream] the stream ended before frame " + std::to_string(number_) + ", " +
                    name_of(static_cast<uint32_t>(kind)) + "; the other side is gone");
}

// Buckets.

void send_tensors(FrameWriter& writer, const SafetensorsPlan& plan, int64_t bucket_bytes,
                  const std::function<void(int64_t, int64_t)>& progress) {
  TW_CHECK(bucket_bytes > 0 && bucket_bytes % 8 == 0, "buckets are cut between elements");
  TwoBuffers buffers;
  std::exception_ptr failed;
  std::thread sender([&] {
    try {
      while (const auto* bucket = buffers.to_empty()) {
        writer.write(FrameKind::kBucket, *bucket);
        buffers.emptied();
      }
    } catch (...) {
      failed = std::current_exception();
      buffers.give_up();
    }
  });
  try {
    size_t part = 0;  // 0: the head; i: tensor i - 1
    int64_t offset = 0, done = 0;
    while (done < plan.total_bytes) {
      auto* bucket = buffers.to_fill();
      if (bucket == nullptr) break;
      const int64_t size = std::min(bucket_bytes, plan.total_bytes - done);
      bucket->resize(static_cast<size_t>(size));
      for (int64_t at = 0; at < size;) {
        const int64_t whole = part == 0 ? static_cast<int64_t>(plan.head.size()) : plan.sizes[part - 1];
        const int64_t n = std::min(size - at, whole - offset);
        const auto room = std::span(*bucket).subspan(static_cast<size_t>(at), static_cast<size_t>(n));
        if (part == 0) {
          std::memcpy(room.data(), plan.head.data() + offset, room.size());
        } else if (n > 0) {
          plan.order[part - 1]->fill(offset, room);
        }
        at += n;
        offset += n;
        if (offset == whole) {
          ++part;
          offset = 0;
        }
      }
      done += size;
      buffers.filled();
      if (progress) progress(done, plan.total_bytes);
    }
    buffers.end();
  } catch (...) {
    buffers.end(std::current_exception());
  }
  sender.join();
  if (failed) std::rethrow_exception(failed);
}

void receive_buckets(FrameReader& reader, int64_t file_bytes, int64_t bucket_bytes,
                     const std::function<void(std::span<const std::byte>)>& take) {
  TwoBuffers buffers;
  std::thread receiver([&] {
    try {
      for (int64_t done = 0; done < file_bytes;) {
        auto* bucket = buffers.to_fill();
        if (bucket == nullptr) break;
        const auto size = static_cast<size_t>(std::min(bucket_bytes, file_bytes - done));
        reader.read(FrameKind::kBucket, size, *bucket);
        if (bucket->size() != size) {
          throw invalid_argument("[stream] a bucket of " + std::to_string(bucket->size()) +
                                 " bytes at byte " + std::to_string(done) + ", expected " +
                                 std::to_string(size));
        }
        done += static_cast<int64_t>(size);
        buffers.filled();
      }
      buffers.end();
    } catch (...) {
      buffers.end(std::current_exception());
    }
  });
  std::exception_ptr failed;
  try {
    while (const auto* bucket = buffers.to_empty()) {
      take(*bucket);
      buffers.emptied();
    }
  } catch (...) {
    failed = std::current_exception();
    buffers.give_up();
  }
  receiver.join();
  if (failed) std::rethrow_exception(failed);
}

// The file.

SafetensorsFeed::SafetensorsFeed(uint64_t file_bytes, std::string where, Layout layout, Data data)
    : file_bytes_(file_bytes), where_(std::move(where)), layout_(std::move(layout)), data_(std::move(data)) {
  if (file_bytes < 8)
    throw invalid_argument("[safetensors] '" + where_ + "': the file has " + std::to_string(file_bytes) +
                           " bytes, too few for a header");
}

void SafetensorsFeed::feed(std::span<const std::byte> bytes) {
  const auto take_head = [&](size_t wanted) {
    const size_t n = std::min(wanted - std::min(wanted, head_.size()), bytes.size());
    head_.append(reinterpret_cast<const char*>(bytes.data()), n);
    bytes = bytes.subspan(n);
    return head_.size() >= wanted;
  };
  if (!parsed_) {
    if (!take_head(8)) return;
    uint64_t header_bytes;
    std::memcpy(&header_bytes, head_.data(), 8);
    check_safetensors_header_bytes(header_bytes, file_bytes_, where_);
    if (!take_head(8 + static_cast<size_t>(header_bytes))) return;
    tensors_ = parse_safetensors_header(std::string_view(head_).substr(8), file_bytes_ - head_.size(), where_)
                   .tensors;
    head_ = {};
    layout_(tensors_);
    parsed_ = true;
  }
  while (!bytes.empty()) {
    while (tensor_ < tensors_.size() && tensors_[tensor_].num_bytes() == 0) ++tensor_;
    if (tensor_ == tensors_.size())
      throw invalid_argument("[safetensors] '" + where_ + "': more bytes came than the file has");
    const int64_t left = tensors_[tensor_].num_bytes() - offset_;
    const auto piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(left)));
    data_(tensor_, offset_, piece);
    bytes = bytes.subspan(piece.size());
    offset_ += static_cast<int64_t>(piece.size());
    if (piece.size() < static_cast<size_t>(left)) continue;
    ++tensor_;
    offset_ = 0;
  }
}

void SafetensorsFeed::finish() const {
  const bool whole = parsed_ && offset_ == 0 &&
                     std::all_of(tensors_.begin() + static_cast<ptrdiff_t>(tensor_), tensors_.end(),
                                 [](const SafeTensor& t) { return t.num_bytes() == 0; });
  if (!whole) throw invalid_argument("[safetensors] '" + where_ + "': the file ends before its last tensor");
}

}  // namespace twinkle
