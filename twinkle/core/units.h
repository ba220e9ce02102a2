// Quantities as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace twinkle {

/// "512 B", "1.5 MiB", "3.00 GiB".
std::string bytes_text(int64_t bytes);

}  // namespace twinkle
