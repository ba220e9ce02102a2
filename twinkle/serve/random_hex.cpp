#include "twinkle/serve/random_hex.h"

#include <openssl/rand.h>

#include "twinkle/core/error.h"

namespace twinkle::serve {

std::string random_hex(std::string prefix, size_t bytes) {
  std::string random(bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), static_cast<int>(bytes)) != 1)
    throw internal_error("[serve] no random numbers");
  for (const char c : random) {
    prefix.push_back("0123456789abcdef"[static_cast<unsigned char>(c) >> 4]);
    prefix.push_back("0123456789abcdef"[c & 15]);
  }
  return prefix;
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof(seed)) != 1)
    throw internal_error("[serve] no random numbers");
  return seed >> 1;
}

}  // namespace twinkle::serve
