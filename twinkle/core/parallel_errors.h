// Work on many items of which some may be bad: what is reported does not depend on the number of threads.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "twinkle/core/error.h"

namespace twinkle {

enum class BadItems { kFirst, kAll };

/// Calls fn(i) for every i in [0, count) on the threads of parallel_for, and gives the errors by index.
/// kFirst: only that of the lowest index, and items above it may be left out. Errors of kind `internal`, and
/// what is no Error, are thrown on.
std::map<int64_t, Error> errors_of_items(int64_t count, int64_t grain, BadItems which,
                                         const std::function<void(int64_t)>& fn);

}  // namespace twinkle
