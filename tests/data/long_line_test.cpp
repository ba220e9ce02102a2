// labels: slow
// A row of 100 MB on one line.
#include "tests/data/data_testing.h"

namespace twinkle {
namespace {

using LongLineTest = DataFolderTest;

TEST_F(LongLineTest, ALineOfAHundredMegabytesIsARow) {
  const std::string long_text(100'000'000, 'x');
  const std::string path =
      write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"" + long_text + "\"}\r\n{\"text\":\"b\"}\n");
  const Dataset data({path});
  ASSERT_EQ(data.size(), 3);
  EXPECT_EQ(data.row(1).at("text").get_ref<const std::string&>().size(), long_text.size());
  EXPECT_EQ(data.row(2).at("text"), "b");
  EXPECT_EQ(data.place(2), path + " row 3");
}

}  // namespace
}  // namespace twinkle
