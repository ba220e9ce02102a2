#include "twinkle/nn/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/core/huge_pages.h"

namespace twinkle::nn {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFirstChunk = int64_t{8} << 20;
// Large pages pay in long passes; on a virtual machine their first touch may cost more than small ones.
constexpr int64_t kLargeChunk = int64_t{128} << 20;

int64_t rounded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

at::Tensor Arena::take(at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  const int64_t bytes = rounded(elements * static_cast<int64_t>(c10::elementSize(dtype)));
  // Chunks past the current one are empty: the first that is large enough is used next.
  while (current_ < chunks_.size() && chunks_[current_].size - chunks_[current_].used < bytes) ++current_;
  if (current_ == chunks_.size()) {
    // Chunks grow with what is held, so that a pass ends up with a handful of them.
    add_chunk(std::max({rounded(bytes), kFirstChunk, rounded(reserved_bytes() / 8)}));
  }
  Chunk& chunk = chunks_[current_];
  auto address = reinterpret_cast<uintptr_t>(chunk.storage.data_ptr());
  address = (address + kAlignment - 1) / kAlignment * kAlignment + static_cast<uintptr_t>(chunk.used);
  chunk.used += bytes;
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return at::from_blob(reinterpret_cast<void*>(address), sizes,
                       at::TensorOptions().dtype(dtype).device(device_));
}

void Arena::add_chunk(int64_t size) {
  Chunk chunk;
  chunk.storage = at::empty({size + kAlignment}, at::TensorOptions().dtype(at::kByte).device(device_));
  if (device_.is_cpu() && size >= kLargeChunk) {
    prefer_huge_pages(chunk.storage.data_ptr(), static_cast<size_t>(size));
  }
  chunk.size = size;
  chunks_.push_back(std::move(chunk));
}

Arena::Mark Arena::mark() const { return {current_, current_ < chunks_.size() ? chunks_[current_].used : 0}; }

void Arena::release(const Mark& mark) {
  for (size_t i = mark.chunk; i < chunks_.size(); ++i) {
    const int64_t keep = i == mark.chunk ? mark.used : 0;
    in_use_ -= chunks_[i].used - keep;
    chunks_[i].used = keep;
  }
  current_ = mark.chunk;
}

void Arena::reserve(int64_t bytes) {
  TW_CHECK(in_use_ == 0, "memory of the arena is in use");
  if (!chunks_.empty() && chunks_[0].size >= bytes) return;
  chunks_.clear();  // first, so that old and new are never there together
  current_ = 0;
  add_chunk(rounded(bytes));
}

void Arena::trim() {
  TW_CHECK(in_use_ == 0, "memory of the arena is in use");
  chunks_.clear();
  current_ = 0;
  peak_ = 0;
}

int64_t Arena::reserved_bytes() const {
  int64_t total = 0;
  for (const auto& chunk : chunks_) total += chunk.size;
  return total;
}

}  // namespace twinkle::nn
