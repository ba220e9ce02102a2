// Helpers of this folder's tests: temporary directories, messages of errors, the real test model and its
// data.
#pragma once

#include <string>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle::testing {

using test::TempDir;

/// The message of an error of whatever kind.
template <class Work>
std::string message_of(const Work& work) {
  return test::thrown(work, test::kAnyKind);
}

}  // namespace twinkle::testing
