// What the system says about files, as errors of ours: not_found, exhausted for a full disk, unavailable for
// the rest, each with the path and the system's reason.
#pragma once

#include <filesystem>
#include <string>

#include "twinkle/core/error.h"

namespace twinkle {

/// "`what`: reason of errno `code`".
Error file_error(const std::string& what, int code);
/// For the exceptions of std::filesystem.
Error file_error(const std::filesystem::filesystem_error& error);

/// Copies over what is there.
void copy_file(const std::string& from, const std::string& to);

}  // namespace twinkle
