// labels: parity
// Runs tests/parity/jinja_parity.py: thousands of renderings by Jinja2 and by us, with no difference.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/needs.h"

#include "twinkle/core/files.h"

namespace twinkle {
namespace {

TEST(JinjaParity, RendersAsJinja2Does) {
  const std::string data = std::filesystem::path(test::test_data("chat-templates")).parent_path();
  const char* given = std::getenv("TWINKLE_PARITY_PYTHON");
  const std::string python = given != nullptr ? given : TWINKLE_SOURCE_DIR "/.venvs/parity/bin/python";
  ASSERT_TRUE(file_exists(python)) << python << " is not there: run scripts/setup --parity";
  const std::string command = "'" + python +
                              "' '" TWINKLE_SOURCE_DIR "/tests/parity/jinja_parity.py' '" TWINKLE_BINARY_DIR
                              "/tests/text_render_tool' '" +
                              data + "' --model '" + test::smollm2() + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << output;
  std::printf("%s", output.c_str());
}

}  // namespace
}  // namespace twinkle
