// labels: quick tenants
// Memory of gradients: zeroed every time, the same pages again, and never more kept than was used together.
#include "twinkle/lora/gradient_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/lora/lora_testing.h"
#include "twinkle/lora/adapter_pool.h"

namespace twinkle {
namespace {

using test::tiny_model;

TEST(GradientMemory, GivesTheSamePagesAgainZeroed) {
  GradientMemory memory;
  at::Tensor first = memory.take(5000);
  const void* pages = first.const_data_ptr();
  EXPECT_TRUE(first.equal(at::zeros({5000})));
  first.fill_(3);
  at::Tensor view = first.narrow(0, 10, 20);
  first.reset();
  EXPECT_EQ(memory.spare_bytes(), 0);  // a view still holds it
  view.reset();
  EXPECT_EQ(memory.spare_bytes(), 5000 * 4);
  const at::Tensor again = memory.take(4000);  // a little smaller fits
  EXPECT_EQ(again.const_data_ptr(), pages);
  EXPECT_TRUE(again.equal(at::zeros({4000})));
  EXPECT_EQ(memory.spare_bytes(), 0);
}

TEST(GradientMemory, KeepsNoMoreThanWasUsedTogether) {
  GradientMemory memory;
  for (const int64_t size : {100, 1000, 300, 50, 1000, 20}) {
    memory.take(size);
    EXPECT_LE(memory.spare_bytes(), 1000 * 4);
  }
  {
    const at::Tensor a = memory.take(1000), b = memory.take(1000);
    EXPECT_EQ(memory.spare_bytes(), 0);
  }
  EXPECT_EQ(memory.spare_bytes(), 2 * 1000 * 4);
  const at::Tensor used = memory.take(1000);
  memory.trim();
  EXPECT_EQ(memory.spare_bytes(), 0);
}

TEST(GradientMemory, MayGoBeforeWhatWasTaken) {
  auto memory = std::make_unique<GradientMemory>();
  at::Tensor taken = memory->take(64);
  memory.reset();
  taken.fill_(1);
  EXPECT_EQ(taken.sum().item<float>(), 64);
}

TEST(GradientMemory, OfAPoolIsKeptBetweenPassesAndGoesWithAnAdapter) {
  const auto model = tiny_model();
  AdapterPool pool(*model, {.max_loras = 2, .max_r = 8});
  LoraConfig config;
  config.r = 8;
  config.target_modules = {"q_proj", "v_proj"};
  const auto adapter = pool.create("one", config);
  const int64_t weights = pool.resident_bytes();
  adapter->make_trainable();
  const void* pages = adapter->gradients().const_data_ptr();
  EXPECT_EQ(pool.resident_bytes(), 2 * weights);
  adapter->set_gradients({});
  EXPECT_EQ(pool.resident_bytes(), weights);
  EXPECT_EQ(pool.spare_bytes(), weights);
  adapter->make_trainable();
  EXPECT_EQ(adapter->gradients().const_data_ptr(), pages);
  pool.remove("one");
  EXPECT_EQ(pool.resident_bytes() + pool.spare_bytes(), 0);
}

}  // namespace
}  // namespace twinkle
