// What write_file_atomic leaves behind when its process is killed.
#pragma once

#include <string>

namespace twinkle {

/// Removes the temporary files in `folder` of processes that no longer run, and of this one, which writes
/// nothing there now. Only for folders that no other machine writes to, such as a locked one.
void remove_left_over_files(const std::string& folder);

}  // namespace twinkle
