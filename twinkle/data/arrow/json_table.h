// Rows of JSON as Arrow's columns. Pure; errors are invalid_argument without a place.
//
// Values come back as they were. Objects become structs where all at a place have the same fields in the same
// order; messages (objects with a text `role`, or `from`) also where they differ, and a field that one lacks
// is null there. Other lists and objects make the whole column JSON text, which preprocessors read where they
// expect a list. `tools` and the arguments of tool_calls are JSON text in any case. Numbers become doubles
// where one has a point.
#pragma once

#include <arrow/api.h>

#include <memory>
#include <span>

#include "twinkle/data/types.h"

namespace twinkle {

/// A column of the values `key` of all rows; null where a row has none.
std::shared_ptr<arrow::Array> array_of(std::span<const Row> rows, const std::string& key);

}  // namespace twinkle
