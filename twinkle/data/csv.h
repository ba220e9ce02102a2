// Comma- and tab-separated records (RFC 4180): quoted fields may hold separators, doubled quotes and line
// ends; quotes inside of an unquoted field are text. A line ends with LF, CRLF or, as old spreadsheets write
// it, CR. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinkle::csv {

/// End of the record that begins at `at`, its line end included. `closed` is false when a quoted field is
/// not.
size_t record_end(std::string_view text, size_t at, char separator, bool* closed);

/// The fields of a record (line end excluded or included). A quoted field followed by more text is
/// invalid_argument "field 2: ...".
std::vector<std::string> fields(std::string_view record, char separator);

/// The record as text; fields that need it are quoted. Ends with "\n".
std::string write(const std::vector<std::string>& fields, char separator);

}  // namespace twinkle::csv
