// Names, keys and seeds that nobody can guess.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace twinkle::serve {

/// `prefix` and `bytes` random bytes of the operating system in hexadecimal.
std::string random_hex(std::string prefix, size_t bytes);
/// For a model or a sample that names none: not negative as an int64_t.
uint64_t random_seed();

}  // namespace twinkle::serve
