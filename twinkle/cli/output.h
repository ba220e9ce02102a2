// What commands print: text to stdout, everything said to a person beside the result to stderr, colour only
// where it is wanted. Not thread-safe: commands print from one thread.
#pragma once

#include <string>
#include <string_view>

#include "twinkle/core/json.h"

namespace twinkle::cli {

void write_out(std::string_view text);
void write_error(std::string_view text);
/// unavailable when what was written cannot be stored (a full disk, a closed pipe).
void flush_out();
/// One JSON value and a line end. Text that is not UTF-8 comes out with replacement characters.
void write_json(const Json& value, int indent = -1);

/// `choice` is auto (a terminal, and NO_COLOR unset), always or never.
bool use_color(std::string_view choice);
inline constexpr std::string_view kGreen = "\x1b[32m", kDim = "\x1b[2m", kBold = "\x1b[1m",
                                  kReset = "\x1b[0m";

/// "12,345".
std::string with_commas(int64_t number);
/// Rows of "name  value", aligned.
std::string table_text(const std::vector<std::pair<std::string, std::string>>& rows, int indent = 0);
/// Texts side by side under their titles, each wrapped in its share of `width` characters.
std::string columns_text(const std::vector<std::pair<std::string, std::string>>& columns, int width = 100);

}  // namespace twinkle::cli
