// What a test needs of the machine. Where it is missing the test ends, skipped, and says what is missing;
// with TWINKLE_TEST_REQUIRE set (.ci/run sets it) it fails instead, so that nothing is left out unseen. To be
// called on the test's own thread, in its body, its SetUp or a function they call.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace twinkle::test {

/// Ends the test: `missing` says what is not there and how to get it.
[[noreturn]] inline void cannot_run(const std::string& missing) {
  const char* required = std::getenv("TWINKLE_TEST_REQUIRE");
  const bool fails = required != nullptr && *required != '\0';
  if (fails) {
    ADD_FAILURE() << "missing: " << missing;
  } else {
    [&] { GTEST_SKIP() << "missing: " << missing; }();
  }
  // GoogleTest takes this as a result that it has already reported.
  throw ::testing::AssertionException(::testing::TestPartResult(
      fails ? ::testing::TestPartResult::kFatalFailure : ::testing::TestPartResult::kSkip, __FILE__, __LINE__,
      missing.c_str()));
}

/// `path`, which is there.
inline std::string needed(const std::string& path, const std::string& how) {
  if (!std::filesystem::exists(path)) cannot_run(path + " (" + how + ")");
  return path;
}

/// A file or folder of the real data sets, tokenizers and models that tests read.
inline std::string test_data(const std::string& name) {
  const char* given = std::getenv("TWINKLE_TEST_DATA");
  const std::string root = given != nullptr ? given : TWINKLE_SOURCE_DIR "/../shared/data";
  return needed(root + "/" + name, "test data; TWINKLE_TEST_DATA says where it is");
}

/// A tiny trained model in Hugging Face's layout.
inline std::string stories() { return test_data("models/stories260k/hf"); }

/// SmolLM2-135M-Instruct, a GGUF file.
inline std::string smollm2() {
  return needed(TWINKLE_DEPS_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf", "scripts/setup fetches it");
}

}  // namespace twinkle::test
