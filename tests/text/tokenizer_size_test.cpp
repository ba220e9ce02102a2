// labels: slow
// A megabyte of one thing: every kind of tokenizer comes to an end with it, gives the text back, and takes
// memory in proportion to the input. Work that grew with the square of the input would take hours here.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/text/tokenizer_testing.h"

namespace {
std::atomic<int64_t> live{0}, peak{0};
}

// Not to be inlined: the compiler would take malloc and free for a mismatch.
__attribute__((noinline)) void* operator new(size_t size) {
  void* block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(block));
  int64_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
  return block;
}
__attribute__((noinline)) void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  live -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
__attribute__((noinline)) void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace twinkle {
namespace {

using test::test_data;

std::string repeated(const std::string& part, size_t bytes) {
  std::string out;
  while (out.size() + part.size() <= bytes) out += part;
  return out;
}

TEST(TokenizerSize, AMegabyteOfOneThing) {
  constexpr size_t kSize = 1 << 20;
  const std::pair<const char*, std::string> texts[] = {
      {"letter", repeated("a", kSize)},
      {"capital", repeated("A", kSize)},
      {"spaces", repeated(" ", kSize)},
      {"spaces, then a letter", repeated(" ", kSize) + "x"},
      {"line breaks", repeated("\n", kSize)},
      {"digits", repeated("7", kSize)},
      {"emoji", repeated("\xF0\x9F\x98\x8A", kSize)},
      {"joined emoji", repeated("\xF0\x9F\x91\xA9\xE2\x80\x8D", kSize)},
      {"marks", "e" + repeated("\xCC\x81", kSize)},
      {"han", repeated("\xE4\xBD\xA0", kSize)},
      {"apostrophes", repeated("'", kSize)},
      {"angle brackets", repeated("<|", kSize)},
      {"zero bytes", std::string(kSize, '\0')}};
  for (const char* name : {"qwen3", "gpt2", "llama3", "minimind",
                           "deepseek-coder/ggml-vocab-deepseek-coder.gguf", "llama2/tokenizer.model",
                           "mistral/tokenizer.model.v3", "phi-3-mini", "t5-small", "all-minilm-l6-v2"}) {
    const auto tokenizer = Tokenizer::load(test_data(std::string("tokenizers/") + name));
    const bool keeps = std::string(name) != "t5-small" && std::string(name) != "all-minilm-l6-v2";
    for (const auto& [kind, text] : texts) {
      const int64_t before = live;
      peak = before;
      const auto ids = tokenizer->encode(text);
      // At worst some forty bytes for each byte of the text, of which there may be three after normalisation.
      EXPECT_LT(peak - before, static_cast<int64_t>(160 * kSize)) << name << ", " << kind;
      EXPECT_LE(ids.size(), text.size() + 2) << name << ", " << kind;
      // NFC moves no mark of these, so the text comes back.
      if (keeps && std::string(kind) != "marks") {
        EXPECT_EQ(tokenizer->decode(ids), text) << name << ", " << kind;
      }
    }
  }
}

}  // namespace
}  // namespace twinkle
