// Values of Arrow's columns as JSON. Pure; errors are invalid_argument without a place.
#pragma once

#include <arrow/api.h>

#include "twinkle/core/json.h"

namespace twinkle {

/// The value at `index`.
Json json_of(const arrow::Array& array, int64_t index);

}  // namespace twinkle
