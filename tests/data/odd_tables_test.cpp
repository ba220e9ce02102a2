// Columns of rare types: the values that pyarrow reads, or an error that names the column; never text that
// describes the array.
#include "tests/data/data_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_bytes.h"

namespace twinkle {
namespace {

class OddTablesTest : public DataFolderTest {
 protected:
  std::string file(const std::string& name) {
    const Json& entry = cases_.at(name);
    return write(name + "." + entry.at("ext").get<std::string>(),
                 tokenizer::decode_base64(entry.at("bytes").get<std::string>(), name));
  }
  std::string error(const std::string& name, int64_t row = 0) {
    return error_of([&] { Dataset({file(name)}).row(row); });
  }
  const Json cases_ = read_json_file(TWINKLE_SOURCE_DIR "/tests/data/odd_tables.json");
};

TEST_F(OddTablesTest, HoldWhatPyarrowReads) {
#ifndef TWINKLE_HAS_ARROW
  test::cannot_run("the Arrow library in this build (scripts/setup fetches it)");
#endif
  int64_t seen = 0;
  for (const auto& [name, entry] : cases_.items()) {
    if (!entry.contains("values")) continue;
    ++seen;
    const Dataset data({file(name)});
    Json values = Json::array();
    for (int64_t i = 0; i < data.size(); ++i) values.push_back(data.row(i).at("c"));
    EXPECT_EQ(values, entry.at("values")) << name;
  }
  EXPECT_EQ(seen, 8);
}

TEST_F(OddTablesTest, WhatRowsCannotHoldIsNamed) {
#ifndef TWINKLE_HAS_ARROW
  test::cannot_run("the Arrow library in this build (scripts/setup fetches it)");
#endif
  EXPECT_EQ(Dataset({file("bad_text")}).row(0).at("c"), "ok");
  EXPECT_EQ(error("bad_text", 1), "[dataset] bad_text.parquet row 2: column 'c' is not valid UTF-8");
  for (const char* name : {"two_of_a_name.parquet", "two_of_a_name_arrow.arrow"}) {
    const std::string stem(name, std::string_view(name).find('.'));
    EXPECT_EQ(error(stem), "[dataset] '" + std::string(name) + "': column 2 has the name of another, 'c'");
  }
  const std::string advice = ", which rows cannot hold; cast it, or leave the column out";
  EXPECT_EQ(error("duration"), "[dataset] duration.arrow row 1: column 'c' is of type duration[s]" + advice);
  EXPECT_EQ(error("duration_in_list"),
            "[dataset] duration_in_list.arrow row 1: column 'c' is of type duration[s]" + advice);
  EXPECT_EQ(error("interval"),
            "[dataset] interval.arrow row 1: column 'c' is of type month_day_nano_interval" + advice);
}

}  // namespace
}  // namespace twinkle
