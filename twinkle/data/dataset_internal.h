// Helpers of the data set's own files.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "twinkle/data/dataset.h"

namespace twinkle::dataset_internal {

std::string dump(const Json& value);

/// Gives columns other names, see Dataset::rename_columns.
std::function<void(Row*)> renaming(const Json& names);

/// "[dataset] PLACE: what is wrong", whether or not the message already carries a place of its own.
std::string at_place(const std::string& place, std::string_view message);

/// Runs fn(i) for every row on all cores. Returns what each bad row said, by row; with kRaise rows after the
/// first bad one may be left out, and only the first counts, so the outcome does not depend on threads.
std::map<int64_t, std::string> each_row(int64_t count, BadRows bad_rows,
                                        const std::function<void(int64_t)>& fn);

}  // namespace twinkle::dataset_internal
