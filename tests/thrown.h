// What a test asks of the errors that calls throw.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "twinkle/core/error.h"

namespace twinkle::test {

/// Any kind but `internal`, which no input may reach.
inline constexpr std::optional<ErrorKind> kAnyKind;

/// The message of the Error that `work` throws, which has to be of `kind`; "" when it throws none.
template <class Work>
std::string thrown(const Work& work, std::optional<ErrorKind> kind = ErrorKind::kInvalidArgument) {
  try {
    work();
  } catch (const Error& e) {
    if (kind) {
      EXPECT_EQ(e.kind(), *kind) << e.what();
    } else {
      EXPECT_NE(e.kind(), ErrorKind::kInternal) << e.what();
    }
    return e.what();
  }
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace twinkle::test
