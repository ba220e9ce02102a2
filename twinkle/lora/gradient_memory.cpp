#include "twinkle/lora/gradient_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "twinkle/core/huge_pages.h"
#include "twinkle/core/parallel.h"

namespace twinkle {

struct GradientMemory::State {
  mutable std::mutex mutex;
  std::vector<at::Tensor> spare;  // the longest unused first
  int64_t in_use = 0, most = 0;   // elements

  int64_t spare_elements() const {
    int64_t total = 0;
    for (const at::Tensor& one : spare) total += one.numel();
    return total;
  }

  // With the lock held.
  void let_go() {
    int64_t held = in_use + spare_elements();
    while (held > most && !spare.empty()) {
      held -= spare.front().numel();
      spare.erase(spare.begin());
    }
  }

  // The smallest that is large enough and not half empty; undefined: none.
  at::Tensor find(int64_t elements) {
    auto best = spare.end();
    for (auto it = spare.begin(); it != spare.end(); ++it) {
      if (it->numel() < elements || it->numel() > 2 * elements) continue;
      if (best == spare.end() || it->numel() < best->numel()) best = it;
    }
    if (best == spare.end()) return {};
    at::Tensor found = std::move(*best);
    spare.erase(best);
    return found;
  }

  void give_back(at::Tensor memory) {
    const std::lock_guard lock(mutex);
    in_use -= memory.numel();
    spare.push_back(std::move(memory));
    let_go();
  }
};

GradientMemory::GradientMemory() : state_(std::make_shared<State>()) {}

at::Tensor GradientMemory::take(int64_t elements) {
  at::Tensor memory;
  {
    const std::lock_guard lock(state_->mutex);
    memory = state_->find(elements);
    state_->in_use += memory.defined() ? memory.numel() : elements;
    state_->most = std::max(state_->most, state_->in_use);
    state_->let_go();
  }
  if (!memory.defined()) {
    try {
      memory = at::empty({elements}, at::kFloat);
    } catch (...) {
      const std::lock_guard lock(state_->mutex);
      state_->in_use -= elements;
      throw;
    }
    prefer_huge_pages(memory.data_ptr(), static_cast<size_t>(memory.nbytes()));
  }
  float* data = memory.mutable_data_ptr<float>();
  parallel_for(elements, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    std::memset(data + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
  return at::from_blob(
      data, {elements}, [state = state_, memory](void*) { state->give_back(memory); },
      at::TensorOptions().dtype(at::kFloat));
}

void GradientMemory::trim() {
  const std::lock_guard lock(state_->mutex);
  state_->spare.clear();
  state_->most = state_->in_use;
}

int64_t GradientMemory::spare_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->spare_elements() * static_cast<int64_t>(sizeof(float));
}

}  // namespace twinkle
