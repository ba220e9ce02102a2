// Memory of a pass: activations are taken in stack order and released back to a mark, so a step reuses the
// same pages and its peak is known beforehand. Not thread-safe: one arena a pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace twinkle::nn {

class Arena {
 public:
  struct Mark {
    size_t chunk = 0;
    int64_t used = 0;
  };

  explicit Arena(at::Device device = at::kCPU) : device_(device) {}

  /// An uninitialised contiguous tensor, 64-byte aligned; valid until released.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);
  Mark mark() const;
  /// Frees everything taken since the mark; memory stays with the arena.
  void release(const Mark& mark);
  /// Makes room for a pass that takes `bytes` at its peak, in one piece, so that nothing is lost between
  /// pieces. Nothing may be in use. Memory that is not taken is not touched.
  void reserve(int64_t bytes);
  /// Gives all memory back to the system (nothing may be in use).
  void trim();

  int64_t peak_bytes() const { return peak_; }
  int64_t reserved_bytes() const;
  at::Device device() const { return device_; }

 private:
  struct Chunk {
    at::Tensor storage;
    int64_t size = 0, used = 0;
  };
  void add_chunk(int64_t size);

  at::Device device_;
  std::vector<Chunk> chunks_;
  size_t current_ = 0;
  int64_t in_use_ = 0, peak_ = 0;
};

}  // namespace twinkle::nn
