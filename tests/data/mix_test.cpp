// Several sources, columns and checks. The orders of mixing are those of Hugging Face's interleave_datasets,
// by its definition.
#include "tests/data/data_testing.h"

namespace twinkle {
namespace {

using MixTest = DataFolderTest;

Dataset numbers(int64_t a, int64_t b, int64_t c = 0) {
  const auto rows = [](int64_t count, const char* name) {
    std::vector<Json> out;
    for (int64_t i = 0; i < count; ++i)
      out.push_back({{"query", name + std::to_string(i)}, {"response", "r"}});
    return out;
  };
  Dataset out({.data = rows(a, "a")});
  EXPECT_EQ(out.add_dataset({.data = rows(b, "b")}), 1);
  if (c > 0) out.add_dataset({.data = rows(c, "c")});
  return out;
}

std::string order(const Dataset& data) {
  std::string out;
  for (int64_t i = 0; i < data.size(); ++i)
    out += (out.empty() ? "" : " ") + data.row(i).at("query").get<std::string>();
  return out;
}

TEST_F(MixTest, InterleavesAndConcatenatesAsHuggingFace) {
  Dataset data = numbers(4, 2, 3);
  data.mix_dataset();
  EXPECT_EQ(order(data), "a0 b0 c0 a1 b1 c1");
  data = numbers(4, 2, 3);
  data.mix_dataset({.stopping = "all_exhausted"});
  EXPECT_EQ(order(data), "a0 b0 c0 a1 b1 c1 a2 b0 c2 a3 b1 c0");
  data = numbers(2, 3);
  data.mix_dataset({.interleave = false});
  EXPECT_EQ(order(data), "a0 a1 b0 b1 b2");
  data.encode(ByteTemplate());
  EXPECT_EQ(data.features().size(), 5u);
}

TEST_F(MixTest, DrawsByProbabilitiesAndStops) {
  Dataset data = numbers(3000, 1000);
  data.mix_dataset({.probabilities = {0.75, 0.25}, .seed = 1});
  int64_t a = 0;
  for (int64_t i = 0; i < data.size(); ++i) a += data.row(i).at("query").get<std::string>()[0] == 'a';
  // One of them is used up, and each comes in its own order.
  EXPECT_TRUE(a == 3000 || data.size() - a == 1000);
  EXPECT_NEAR(static_cast<double>(a) / static_cast<double>(data.size()), 0.75, 0.02);
  const std::string first = order(data);
  Dataset again = numbers(3000, 1000);
  again.mix_dataset({.probabilities = {0.75, 0.25}, .seed = 1});
  EXPECT_EQ(order(again), first);
  EXPECT_EQ(again.content_hash(), data.content_hash());
  Dataset other = numbers(3000, 1000);
  other.mix_dataset({.probabilities = {0.75, 0.25}, .seed = 2});
  EXPECT_NE(order(other), first);
  Dataset all = numbers(10, 40);
  all.mix_dataset({.probabilities = {0.5, 0.5}, .stopping = "all_exhausted"});
  const std::string drawn = order(all);
  for (int i = 0; i < 40; ++i)
    EXPECT_NE((drawn + " ").find("b" + std::to_string(i) + " "), std::string::npos);
}

TEST_F(MixTest, RefusesWhatIsUnclear) {
  Dataset data = numbers(2, 2);
  EXPECT_EQ(error_of([&] { data.encode(ByteTemplate()); }),
            "[dataset] encode: there are 2 sources; mix them first");
  EXPECT_EQ(error_of([&] { data.map("QueryResponseProcessor"); }),
            "[dataset] map: there are 2 sources; name one, or mix them first");
  EXPECT_EQ(error_of([&] { data.map("QueryResponseProcessor", nullptr, 2); }),
            "[dataset] map: there is no source 2 of 2");
  EXPECT_EQ(error_of([&] { data.mix_dataset({.probabilities = {0.5, 0.6}}); }),
            "[dataset] probabilities must be 2 numbers above 0 whose sum is 1");
  EXPECT_EQ(error_of([&] { data.mix_dataset({.stopping = "never"}); }),
            "[dataset] stopping must be first_exhausted or all_exhausted, got 'never'");
  Dataset one({.data = {{{"query", "q"}, {"response", "r"}}}});
  EXPECT_EQ(error_of([&] { one.mix_dataset(); }),
            "[dataset] mix_dataset: there is only one source; add_dataset first");
}

TEST_F(MixTest, SourcesHaveTheirOwnPreprocessors) {
  Dataset data({.data = {{{"query", "q"}, {"response", "r"}}}});
  data.add_dataset({.data = {{{"instruction", "i"}, {"output", "o"}}}});
  data.map("QueryResponseProcessor", nullptr, 0);
  data.map("AlpacaProcessor", nullptr, 1);
  data.mix_dataset({.interleave = false});
  EXPECT_EQ(data.trajectory(0).messages[1].at("content"), "r");
  EXPECT_EQ(data.trajectory(1).messages[1].at("content"), "o");
}

TEST_F(MixTest, RenamesAndCastsColumns) {
  const std::string path = write("a.csv", "ask,reply,score\nq,r,2.5\nq2,r2,x\n");
  Dataset data({path});
  data.rename_columns({{"ask", "query"}, {"reply", "response"}});
  EXPECT_EQ(data.row(0), (Json{{"query", "q"}, {"response", "r"}, {"score", "2.5"}}));
  data.cast_column("score", "float");
  EXPECT_EQ(data.row(0).at("score"), 2.5);
  EXPECT_EQ(error_of([&] { data.row(1); }),
            "[dataset] a.csv row 2 (line 3): column 'score' cannot be cast to float: \"x\"");
  EXPECT_EQ(error_of([&] {
              data.cast_column("score", "double");
            }).find("[dataset] cast_column: unknown type 'double'"),
            0u);
  Dataset typed({path});
  EXPECT_EQ(error_of([&] { typed.rename_columns({{"aks", "query"}}); }),
            "[dataset] no row of 'a.csv' has a column 'aks' (did you mean 'ask'?)");
  typed.rename_columns({{"aks", "query"}}, -1, /*may_lack=*/true);
  EXPECT_EQ(typed.row(0).at("ask"), "q");
  // One row that has it is enough; a row that can not be read is another's affair.
  Dataset rare({write("rare.jsonl", "{\"a\": 1}\nx\n{\"b\": 2}\n")});
  rare.rename_columns({{"b", "c"}});
  EXPECT_EQ(rare.row(2), (Json{{"c", 2}}));
  Dataset twice({.data = {{{"a", 1}, {"b", 2}}}});
  twice.rename_columns({{"a", "b"}});
  EXPECT_EQ(error_of([&] { twice.row(0); }), "[dataset] row 1: two columns would be called 'b'");
  Dataset casts({.data = {{{"i", "3"}, {"s", 4}, {"b", "true"}, {"j", "{\"x\":[1]}"}, {"n", nullptr}}}});
  for (const auto& [column, type] :
       {std::pair{"i", "int"}, {"s", "string"}, {"b", "bool"}, {"j", "json"}, {"n", "int"}})
    casts.cast_column(column, type);
  EXPECT_EQ(casts.row(0), (Json{{"i", 3}, {"s", "4"}, {"b", true}, {"j", {{"x", {1}}}}, {"n", nullptr}}));
}

TEST_F(MixTest, CheckDropsWhatCannotBeEncoded) {
  Dataset data({.data = {{{"query", "q"}, {"response", "r"}},
                         {{"query", "q"}, {"response", 5}},
                         {{"query", "q"}, {"response", ""}},
                         {{"query", std::string(99, 'x')}, {"response", "r"}}}});
  data.map("QueryResponseProcessor");
  data.check(ByteTemplate({.max_length = 50, .truncation_strategy = "delete"}));
  EXPECT_EQ(data.size(), 1);
  ASSERT_EQ(data.dropped().size(), 3u);
  EXPECT_EQ(data.dropped()[0].reason, "row 2: expected a string in 'response', got number 5");
  EXPECT_EQ(data.dropped()[1].reason, "row 3: no token of it is trained on (every label is masked)");
  EXPECT_EQ(data.dropped()[2].row, 3);
  // A source of which nothing is left stops the check before any other is changed.
  Dataset two = numbers(2, 1);
  two.map_parts(
      [](const Row& row) -> std::vector<Part> {
        if (row.at("query") != "a0") throw invalid_argument("no");
        return {{"", {.messages = {{{"role", "assistant"}, {"content", "ab"}}}}}};
      },
      0);
  two.map_parts([](const Row&) -> std::vector<Part> { throw invalid_argument("never"); }, 1);
  EXPECT_THROW(two.check(ByteTemplate()), Error);
  EXPECT_EQ(two.size(), 3);
}

TEST_F(MixTest, GeneratorsAndIds) {
  int64_t next = 0;
  const Dataset data({.generator = [&]() -> std::optional<Row> {
    if (next == 3) return std::nullopt;
    return Row{{"n", next++}};
  }});
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.row(2).at("n"), 2);
  EXPECT_EQ(DatasetMeta{.dataset_id = "a/b.jsonl"}.get_id(), "a_b_jsonl:default:train");
}

}  // namespace
}  // namespace twinkle
