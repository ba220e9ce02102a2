// Helpers of this folder's tests: temporary directories, messages of errors, the real test model and its
// data.
#pragma once

#include <functional>
#include <string>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "twinkle/core/error.h"

namespace twinkle::testing {

using test::TempDir;

inline std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "(no error)";
}
}  // namespace twinkle::testing
