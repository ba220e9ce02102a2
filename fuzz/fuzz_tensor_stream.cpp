// deps: core
// Any bytes as a stream of weights: it throws Error or gives the pieces of a file, none outside its tensor. A
// second reading takes the input for what lies within valid frames, so that the file behind them is reached.
#include <algorithm>
#include <cstring>

#include "twinkle/core/error.h"
#include "twinkle/core/tensor_stream.h"

namespace {

using namespace twinkle;

constexpr int64_t kBucket = 64;

void take_stream(std::span<const std::byte> bytes, int64_t file_bytes) {
  std::span<const std::byte> left = bytes;
  FrameReader reader([&](std::span<std::byte> out) {
    const size_t n = std::min(out.size(), left.size());
    std::copy_n(left.begin(), n, out.begin());
    left = left.subspan(n);
    return n;
  });
  (void)reader.read_message_or_end(FrameKind::kAbout);
  std::vector<int64_t> sizes;
  SafetensorsFeed feed(
      static_cast<uint64_t>(file_bytes), "fuzz",
      [&](const std::vector<SafeTensor>& tensors) {
        int64_t total = 0;
        for (const auto& tensor : tensors) {
          sizes.push_back(tensor.num_bytes());
          total += tensor.num_bytes();
        }
        if (total > file_bytes) __builtin_trap();
      },
      [&](size_t tensor, int64_t offset, std::span<const std::byte> piece) {
        if (tensor >= sizes.size() || piece.empty() ||
            offset + static_cast<int64_t>(piece.size()) > sizes[tensor])
          __builtin_trap();
      });
  receive_buckets(reader, file_bytes, kBucket, [&](std::span<const std::byte> bucket) { feed.feed(bucket); });
  feed.finish();
  (void)reader.read_message(FrameKind::kEnd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto attempt = [](const auto& fn) {
    try {
      fn();
    } catch (const twinkle::Error& e) {
      if (e.kind() != twinkle::ErrorKind::kInvalidArgument && e.kind() != twinkle::ErrorKind::kUnavailable)
        __builtin_trap();
    }
  };
  attempt([&] { take_stream(bytes, std::max<int64_t>(8, static_cast<int64_t>(size) - 64)); });
  attempt([&] {
    std::vector<std::byte> framed;
    twinkle::FrameWriter writer(
        [&](std::span<const std::byte> out) { framed.insert(framed.end(), out.begin(), out.end()); });
    writer.write_message(twinkle::FrameKind::kAbout, twinkle::Json::object());
    for (size_t at = 0; at < size; at += kBucket)
      writer.write(twinkle::FrameKind::kBucket, bytes.subspan(at, std::min<size_t>(kBucket, size - at)));
    writer.write_message(twinkle::FrameKind::kEnd, twinkle::Json::object());
    take_stream(framed, static_cast<int64_t>(size));
  });
  return 0;
}
