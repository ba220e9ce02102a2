// Between Arrow's columns and rows of JSON. Pure functions; errors are invalid_argument without a place.
#pragma once

#include <arrow/api.h>

#include <memory>
#include <span>

#include "twinkle/data/types.h"

namespace twinkle {

/// The value at `index`.
Json json_of(const arrow::Array& array, int64_t index);

/// A column of the values `key` of all rows; null where a row has none.
std::shared_ptr<arrow::Array> array_of(std::span<const Row> rows, const std::string& key);

}  // namespace twinkle
