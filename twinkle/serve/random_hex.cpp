#include "twinkle/serve/random_hex.h"

#include <openssl/rand.h>

#include "twinkle/core/error.h"

namespace twinkle::serve {
namespace {

void fill_random(void* to, size_t bytes) {
  if (RAND_bytes(static_cast<unsigned char*>(to), static_cast<int>(bytes)) != 1)
    throw internal_error("[serve] no random numbers");
}

}  // namespace

std::string random_hex(std::string prefix, size_t bytes) {
  std::string random(bytes, '\0');
  fill_random(random.data(), bytes);
  for (const char c : random) {
    prefix.push_back("0123456789abcdef"[static_cast<unsigned char>(c) >> 4]);
    prefix.push_back("0123456789abcdef"[c & 15]);
  }
  return prefix;
}

uint64_t random_seed() {
  uint64_t seed = 0;
  fill_random(&seed, sizeof(seed));
  return seed >> 1;
}

}  // namespace twinkle::serve
