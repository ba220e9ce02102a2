// Rows that free-form objects are in, through tables and back: they are trained on as the same text.
#include <cstring>

#include "tests/data/data_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_bytes.h"

namespace twinkle {
namespace {

class JsonTableTest : public DataFolderTest {
 protected:
  void SetUp() override {
#ifndef TWINKLE_HAS_ARROW
    test::cannot_run("the Arrow library in this build (scripts/setup fetches it)");
#endif
  }
  std::string saved(const std::vector<Json>& rows, const std::string& name = "saved.parquet") {
    Dataset({.data = rows}).save_as(in_dir(name));
    return in_dir(name);
  }
  // The column c, saved and read.
  Json column(const Json& values) {
    std::vector<Json> rows;
    for (const Json& value : values) rows.push_back({{"c", value}});
    Json out = Json::array();
    for (const Json& row : rows_of({saved(rows)})) out.push_back(row.at("c"));
    return out;
  }
};

// What the rows of a file are trained on, by a template that wants arguments as objects and one that wants
// them as text.
std::vector<std::string> texts(const std::string& path) {
  std::vector<std::string> out;
  for (const std::string& chat :
       {read_file(test_data("chat-templates/Qwen-Qwen2.5-7B-Instruct.jinja")),
        std::string("{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                    "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% endfor %}")}) {
    const auto tmpl =
        make_template("", Tokenizer::load(test_data("tokenizers/minimind")), {.chat_template = chat});
    Dataset data({path});
    data.map("MessagesProcessor");
    for (const Trajectory& row : data.trajectories()) out.push_back(tmpl->render(row, false));
  }
  return out;
}

TEST_F(JsonTableTest, CallsAndToolsAreTrainedOnAsTheyWere) {
  const Json cases = read_json_file(TWINKLE_SOURCE_DIR "/tests/data/odd_tables.json");
  const Json& made = cases.at("calls_and_tools");
  const auto rows = made.at("rows").get<std::vector<Json>>();
  const std::string lines = saved(rows, "rows.jsonl");
  const auto want = texts(lines);
  ASSERT_EQ(want.size(), 6u);
  EXPECT_NE(want[0].find(
                R"({"name": "weather", "arguments": {"place": {"city": "Paris"}, "id": 9007199254740993}})"),
            std::string::npos)
      << want[0];
  EXPECT_NE(want[4].find(R"(time({})weather({"id": 0.5, "zones": ["CET", 1]}))"), std::string::npos)
      << want[4];
  EXPECT_EQ(texts(saved(rows)), want);
  EXPECT_EQ(texts(write("pyarrow.arrow", tokenizer::decode_base64(made.at("bytes").get<std::string>(), ""))),
            want);
  Dataset data({lines});
  data.map("MessagesProcessor");
  data.save_as(in_dir("mapped.parquet"));
  EXPECT_EQ(texts(in_dir("mapped.parquet")), want);
  // What --save-rows writes.
  data.save_as(in_dir("drawn.parquet"), {.mode = "training"});
  data.encode(ByteTemplate());
  DataLoader loader(data.take_samples(), {.batch_size = 3, .shuffle = false});
  loader.next();
  data.flush_save();
  EXPECT_EQ(texts(in_dir("drawn.parquet")), want);
  // Messages that no struct holds: the column is text.
  auto blocks = rows;
  blocks[2]["messages"][0]["content"] = Json::array({{{"type", "text"}, {"text", "q"}}});
  EXPECT_TRUE(rows_of({saved(blocks)})[0].at("messages").is_string());
  EXPECT_EQ(texts(in_dir("saved.parquet")), want);
}

TEST_F(JsonTableTest, ColumnsAreTypedOnlyWhereNothingIsLost) {
  struct Case {
    const char *values, *want;  // want "": as they were
  };
  const std::vector<Case> cases = {
      {R"([{"a": 1, "b": [{"x": "t"}]}, null, {"a": 0.5, "b": []}])", ""},
      {R"([[{"role": "user", "content": "q"}, {"role": "tool", "content": "r", "id": "1"}]])",
       R"([[{"role": "user", "content": "q", "id": null}, {"role": "tool", "content": "r", "id": "1"}]])"},
      {R"([[{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "loss": false}]])",
       R"([[{"from": "human", "value": "q", "loss": null}, {"from": "gpt", "value": "a", "loss": false}]])"},
      {R"([{"a": 1}, {"b": 2}])", R"(["{\"a\":1}", "{\"b\":2}"])"},
      {R"([{"a": 1, "b": 2}, {"b": 2, "a": 1}])", R"(["{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"])"},
      {R"([{}, null])", R"(["{}", null])"},
      {R"([{"a": [{}]}])", R"(["{\"a\":[{}]}"])"},
      {R"([{"a": 9007199254740993}, {"a": 0.5}])", R"(["{\"a\":9007199254740993}", "{\"a\":0.5}"])"},
      {R"([[9007199254740993, 0.5]])", R"(["[9007199254740993,0.5]"])"},
      {R"([[18446744073709551615]])", R"(["[18446744073709551615]"])"},
      {R"([[1, "x"], [2]])", R"(["[1,\"x\"]", "[2]"])"},
      {R"([{"role": "r", "p": {"role": "x"}}, {"role": "r", "p": {"role": "x", "y": 1}}])",
       R"(["{\"role\":\"r\",\"p\":{\"role\":\"x\"}}", "{\"role\":\"r\",\"p\":{\"role\":\"x\",\"y\":1}}"])"},
  };
  for (const Case& c : cases) {
    const std::string want = *c.want == '\0' ? c.values : c.want;
    EXPECT_EQ(column(Json::parse(c.values)), Json::parse(want)) << c.values;
  }
  EXPECT_EQ(
      error_of([&] { column({0.5, 9007199254740993}); }),
      "[dataset] cannot save 'saved.parquet': row 2, column 'c' holds integers past 2^53 and numbers with "
      "a point, which one column of doubles would round; save as jsonl");
  EXPECT_EQ(
      error_of([&] { column({18446744073709551615u}); }),
      "[dataset] cannot save 'saved.parquet': row 1, column 'c' holds the integer 18446744073709551615, "
      "which is past 64 bits; save as jsonl");
}

// The footer says 78 rows where its only group of rows has 77.
TEST_F(JsonTableTest, AFileWithAnotherNumberOfRowsThanItsGroupsIsRefused) {
  const std::string path = saved(std::vector<Json>(77, {{"c", "text"}}));
  std::string bytes = read_file(path);
  uint32_t footer = 0;
  std::memcpy(&footer, bytes.data() + bytes.size() - 8, sizeof(footer));
  const size_t at = bytes.find("\x16\x9a\x01", bytes.size() - 8 - footer);  // i64 77, zigzag
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] = '\x9c';
  write_file_atomic(in_dir("wrong.parquet"), bytes);
  EXPECT_EQ(test::thrown([&] { Dataset({in_dir("wrong.parquet")}); }),
            "[dataset] '" + in_dir("wrong.parquet") +
                "': it says that it has 78 rows, which its groups of rows do not have");
}

}  // namespace
}  // namespace twinkle
