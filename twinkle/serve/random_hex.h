// Names and keys that nobody can guess.
#pragma once

#include <cstddef>
#include <string>

namespace twinkle::serve {

/// `prefix` and `bytes` random bytes of the operating system in hexadecimal.
std::string random_hex(std::string prefix, size_t bytes);

}  // namespace twinkle::serve
