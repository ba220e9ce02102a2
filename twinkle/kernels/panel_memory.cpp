#include "twinkle/kernels/panel_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "twinkle/core/huge_pages.h"

namespace twinkle::ops {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLeast = size_t{64} << 10;  // smaller matrices come from the system one by one
constexpr size_t kShared = size_t{16} << 20;
constexpr size_t kOwn = size_t{4} << 20;  // from here on a matrix has memory of its own

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

class Memory {
 public:
  explicit Memory(size_t bytes) : size_(rounded(bytes, kHugePageBytes)) {
    data_ = static_cast<char*>(std::aligned_alloc(kHugePageBytes, size_));
    if (data_ == nullptr) throw std::bad_alloc();
    // The rest of the last page stays in small pages: it is never touched.
    prefer_huge_pages(data_, bytes);
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Null when there is no room for it.
  void* take(size_t bytes) {
    if (size_ - used_ < bytes) return nullptr;
    void* out = data_ + used_;
    used_ += rounded(bytes, kAlignment);
    return out;
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

}  // namespace

at::Tensor panel_memory(int64_t elements, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const size_t bytes = static_cast<size_t>(elements) * c10::elementSize(dtype);
  if (bytes < kLeast) return at::empty({elements}, options);
  static std::mutex mutex;
  static std::weak_ptr<Memory> shared;  // kept alive by the matrices in it
  std::shared_ptr<Memory> memory;
  void* place = nullptr;
  if (bytes >= kOwn) {
    memory = std::make_shared<Memory>(bytes);
    place = memory->take(bytes);
  } else {
    std::lock_guard lock(mutex);
    memory = shared.lock();
    if (memory != nullptr) place = memory->take(bytes);
    if (place == nullptr) {
      shared = memory = std::make_shared<Memory>(kShared);
      place = memory->take(bytes);
    }
  }
  return at::from_blob(place, {elements}, [memory](void*) {}, options);
}

}  // namespace twinkle::ops
