// ATen runs on the calling thread alone. Our own pool splits the work that matters; a second pool spinning
// beside it costs more than its few element-wise operations gain, and how many threads run must not reach a
// result.
#include <ATen/Parallel.h>

namespace twinkle::ops {
namespace {

[[maybe_unused]] const bool one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

}  // namespace
}  // namespace twinkle::ops
