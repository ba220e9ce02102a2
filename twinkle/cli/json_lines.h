// Rows of JSON, one a line: what `sample --input` and `score` read.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "twinkle/core/json.h"

namespace twinkle::cli {

/// Calls fn(value, "`name` row N") for each line of `text` that is not blank; N counts every line, from 1.
/// invalid_argument for a line that is no JSON, or when there is no line at all.
void each_json_line(std::string_view text, const std::string& name,
                    const std::function<void(const Json& value, const std::string& place)>& fn);

}  // namespace twinkle::cli
