// One pool of threads for the whole process. Work is split over rows or columns, never over a reduction, so
// results never depend on how many threads run. Callers from several threads take turns; nested calls run
// inline.
#pragma once

#include <cstdint>
#include <functional>

namespace twinkle {

/// Threads used by parallel_for, the calling one included. Default: TWINKLE_NUM_THREADS, else the cores of
/// the process's affinity mask.
int num_threads();
void set_num_threads(int count);

/// Calls fn(begin, end) over disjoint ranges that cover [0, count). Ranges are handed out dynamically in
/// blocks of `grain` (>= 1), so uneven work balances. The first exception is rethrown here.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& fn);

}  // namespace twinkle
