#include "tests/data/data_testing.h"
#include "tests/needs.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

using DatasetTest = DataFolderTest;

TEST_F(DatasetTest, ReadsEveryKindOfFile) {
  const std::vector<Json> want = {{{"a", 1}}, {{"a", "x,]}\"{"}}};
  const std::string row2 = R"({"a": "x,]}\"{"})";
  EXPECT_EQ(rows_of({write("a.jsonl", "{\"a\":1}\n" + row2 + "\n")}), want);
  EXPECT_EQ(rows_of({write("b.jsonl", "\xEF\xBB\xBF{\"a\":1}\r\n\r\n  \n" + row2)}), want);
  EXPECT_EQ(rows_of({write("a.json", "[{\"a\":1},\n  " + row2 + "\n]\n")}), want);
  EXPECT_EQ(rows_of({write("b.json", "\xEF\xBB\xBF [ {\"a\":1}," + row2 + "]")}), want);
  EXPECT_EQ(rows_of({write("lines.json", "{\"a\":1}\n" + row2 + "\n")}), want);
  EXPECT_EQ(rows_of({write("pretty.json", "{\n \"a\": 1\n}\n" + row2)}), want);
  EXPECT_EQ(rows_of({.data = want}), want);
}

TEST_F(DatasetTest, CutsTextAsAsked) {
  const std::string path = write("t.txt", "\xEF\xBB\xBFone\r\ntwo\r\n\r\n \r\nthree\r\n");
  const auto texts = [&](const std::string& how) {
    std::vector<std::string> out;
    for (const auto& row : rows_of({.dataset_id = path, .text_split = how})) out.push_back(row.at("text"));
    return out;
  };
  EXPECT_EQ(texts("file"), (std::vector<std::string>{"one\ntwo\n\n \nthree\n"}));
  EXPECT_EQ(texts("paragraph"), (std::vector<std::string>{"one\ntwo", "three"}));
  EXPECT_EQ(texts("line"), (std::vector<std::string>{"one", "two", "three"}));
  // Blanks at the end of a line are text, as in paragraphs.
  write("t.txt", "def f():  \r\n\treturn 1\t\n \t\r\n  end ");
  EXPECT_EQ(texts("line"), (std::vector<std::string>{"def f():  ", "\treturn 1\t", "  end "}));
  EXPECT_EQ(texts("paragraph"), (std::vector<std::string>{"def f():  \n\treturn 1\t", "  end "}));
  EXPECT_EQ(error_of([&] { texts("word"); }),
            "[dataset] text_split must be one of file, paragraph, line, got 'word'");
}

TEST_F(DatasetTest, ReadsAFolderByPath) {
  write("d/b.jsonl", "{\"n\":2}\n");
  write("d/a/z.json", "[{\"n\":1}]");
  write("d/.hidden/c.jsonl", "{\"n\":9}");
  write("d/README.md", "read me");
  const Dataset data({in_dir("d")});
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.row(0), (Json{{"n", 1}}));
  EXPECT_EQ(data.row(1), (Json{{"n", 2}}));
  ASSERT_EQ(data.notes().size(), 1u);
  EXPECT_EQ(data.notes()[0], "skipped 1 files of other kinds in '" + in_dir("d") + "'");
}

TEST_F(DatasetTest, SliceIsCheckedNotWrapped) {
  const std::string path = write("a.jsonl", "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n");
  EXPECT_EQ(rows_of({.dataset_id = path, .data_slice = std::vector<int64_t>{2, 0}}),
            (std::vector<Json>{{{"n", 2}}, {{"n", 0}}}));
  EXPECT_EQ(error_of([&] { Dataset({.dataset_id = path, .data_slice = std::vector<int64_t>{0, 3}}); }),
            "[dataset] data_slice: row 3 of 'a.jsonl' does not exist; it has 3 rows");
  EXPECT_EQ(rows_of({.dataset_id = path, .slice = "1:"}), (std::vector<Json>{{{"n", 1}}, {{"n", 2}}}));
  EXPECT_EQ(parse_data_slice("0:3", 10), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(parse_data_slice("7:", 10), (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ(parse_data_slice("::4", 10), (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(parse_data_slice("3, 1,1", 10), (std::vector<int64_t>{3, 1, 1}));
  EXPECT_EQ(parse_data_slice("1:3:9223372036854775807", 10), (std::vector<int64_t>{1}));
  EXPECT_EQ(error_of([] { parse_data_slice("0:11", 10); }),
            "[dataset] data_slice '0:11': 11 is past the end of the 10 rows");
  EXPECT_EQ(error_of([] { parse_data_slice("4,10", 10); }),
            "[dataset] data_slice '4,10': 10 is past the end of the 10 rows");
  EXPECT_EQ(error_of([] { parse_data_slice("5:5", 10); }), "[dataset] data_slice '5:5' holds no row");
  EXPECT_EQ(error_of([] { parse_data_slice("0:9:0", 10); }),
            "[dataset] data_slice '0:9:0': the step must be >= 1");
  EXPECT_EQ(error_of([] { parse_data_slice("-1:", 10); }),
            "[dataset] data_slice '-1:': expected start:stop, start:stop:step or a list of row indices from "
            "0, got '-1'");
}

TEST_F(DatasetTest, BadFilesAreNamed) {
  struct Case {
    std::string name, bytes, want;
  };
  const std::vector<Case> cases = {
      {"a.jsonl", "{\"query\":\"q\",\"response\":\"r\"}\n\n{\"query\": oops}\n",
       "[dataset] a.jsonl row 2 (line 3, column 11): not valid JSON: syntax error while parsing value - "
       "invalid literal"},
      {"b.jsonl", "[1]\n",
       "[dataset] b.jsonl row 1: expected an object of columns, got list; a list of rows belongs in a .json "
       "file"},
      {"c.jsonl", "", "[dataset] 'c.jsonl' has no rows"},
      {"d.jsonl", "\n \n", "[dataset] 'd.jsonl' has no rows"},
      {"e.json", "[]", "[dataset] 'e.json' has no rows"},
      {"f.json", "[{\"query\":\"q\",\"response\":\"r\"},\n {\"query\":\"q\"",
       "[dataset] 'f.json': the list of rows is never closed; is the file cut short?"},
      {"g.json", "[{\"a\":1}] trailing", "[dataset] 'g.json': text follows the end of the list"},
      {"h.json", "[{\"query\":\"q\",\"response\":\"r\"},\n]",
       "[dataset] h.json row 2 (line 2, column 1): not valid JSON: syntax error while parsing value - "
       "unexpected end of input; expected '[', '{', or a literal"},
      {"i.json", "[{\"query\":\"q\",\"response\":\"r\"},\n 3]",
       "[dataset] i.json row 2: expected an object of columns, got number"},
      {"j.txt", "ab\nc\xFFz", "[dataset] 'j.txt' line 2, byte 5: not valid UTF-8"},
      {"k.txt", " \n", "[dataset] 'k.txt' has no rows"},
      {"l.jsonl", "\xFF\xFE{", "[dataset] 'l.jsonl' is UTF-16; save it as UTF-8"},
      {"m.csv", "a,b\n", "[dataset] 'm.csv' has no rows"},
      {"n", "x",
       "[dataset] 'n': cannot read a file without extension; known: .jsonl, .json, .csv, .tsv, .txt (also "
       ".gz and .zst of these), .parquet, .arrow, or a folder of them"},
      {"o.jsonl", "{\"query\":\"q\",\"response\":null}\n",
       "[dataset] o.jsonl row 1: expected a string in 'response', got null"},
      {"p.jsonl", "{\"query\":\"q\",\"response\":\"r\"}\n{\"query\":\"q\"}\n",
       "[dataset] p.jsonl row 2: has no column 'response' (columns: query)"},
      {"q.jsonl", "{\"x\":1,\"y\":2}\n",
       "[dataset] cannot guess a preprocessor from the columns x, y; name one (--preprocessor), or use rows "
       "with messages, conversations, query "
       "and response, instruction and output, or text"},
      {"r.jsonl", "{\"query\":\"q\",\"response\":\"\"}\n",
       "[dataset] r.jsonl row 1: no token of it is trained on (every label is masked)"},
      {"s.jsonl", "{\"messages\":[],\"chosen\":1}\n",
       "[dataset] the rows have 'chosen': preference data is not for supervised training; name a "
       "preprocessor to train on the rest of the row"},
      {"t.jsonl", "{\"query\":\"q\",\"response\":\"" + std::string(300, 'r') + "\"}\n",
       "[dataset] t.jsonl row 1: [template] is longer than max_length"},
      {"u.jsonl", std::string(1000, '[') + "\n",
       "[dataset] u.jsonl row 1: JSON is nested deeper than 256 levels"},
      {"v.jsonl", "{\"query\":\"\xC3\x28\",\"response\":\"r\"}\n",
       "[dataset] v.jsonl row 1 (line 1, column 12): not valid JSON: syntax error while parsing value - "
       "invalid string: ill-formed UTF-8 byte"},
  };
  for (const auto& c : cases) {
    const std::string path = write(c.name, c.bytes);
    EXPECT_EQ(error_of([&] { Dataset({path}).encode(ByteTemplate({.max_length = 100})); }), c.want);
  }
  EXPECT_EQ(error_of([&] { Dataset({in_dir("absent.jsonl")}); }),
            "[dataset] no file or folder 'absent.jsonl'; give the path of a file (.jsonl, .json, .csv, .tsv, "
            ".txt (also .gz and .zst of these), .parquet, .arrow), of a folder of them or a pattern");
  EXPECT_EQ(error_of([&] { Dataset(DatasetMeta{}); }),
            "[dataset] needs a dataset_id, rows in `data` or a generator");
  EXPECT_EQ(error_of([&] { Dataset({.dataset_id = "x", .data = {Row::object()}}); }),
            "[dataset] has more than one of a dataset_id, rows in `data` and a generator; give one");
  EXPECT_EQ(error_of([&] { Dataset({.dataset_id = "x", .split = "test"}); }),
            "[dataset] split 'test': local files have no splits; give the path of the file");
  EXPECT_EQ(error_of([&] { Dataset({.data = {Row(3)}}); }),
            "[dataset] row 1: expected an object of columns, got number");
  write("mix/a.txt", "x");
  write("mix/b.jsonl", "{}");
  EXPECT_EQ(error_of([&] { Dataset({in_dir("mix")}); }),
            "[dataset] the folder '" + std::string("mix") +
                "' mixes text ('mix/a.txt') and rows ('mix/b.jsonl'); give the path of one file or "
                "move one kind away");
  write("zip/a.zip", "x");
  EXPECT_EQ(
      error_of([&] { Dataset({in_dir("zip")}); }),
      "[dataset] 'zip/a.zip': .zip files are not read; convert to .jsonl, or give the path of one file");
}

TEST_F(DatasetTest, NumbersAndLineEndsAreExplained) {
  EXPECT_EQ(error_of([&] { Dataset({write("n.jsonl", "{\"a\": 1}\n{\"a\": [1, -1e999]}\n")}).row(1); }),
            "[dataset] n.jsonl row 2 (line 2, column 11): the number -1e999 is too large");
  const std::string error = error_of([&] { Dataset({write("c.jsonl", "{\"a\": 1}\r{\"a\": 2}\r")}).row(0); });
  EXPECT_EQ(error.find("[dataset] c.jsonl row 1 (line 1, column 10): not valid JSON"), 0u) << error;
  EXPECT_TRUE(error.ends_with("; the lines end with CR, as old Macs wrote them: save it with LF")) << error;
}

TEST_F(DatasetTest, DropsBadRowsAndSaysWhy) {
  const std::string path =
      write("a.jsonl",
            "{\"query\":\"q0\",\"response\":\"r0\"}\nnot json\n{\"query\":\"q2\",\"response\":5}\n"
            "{\"query\":\"q3\",\"response\":\"r3\"}\n{\"query\":\"q4\",\"response\":\"" +
                std::string(99, 'x') + "\"}\n");
  Dataset data({path});
  EXPECT_THROW(data.encode(ByteTemplate()), Error);
  data.encode(ByteTemplate({.max_length = 50, .truncation_strategy = "delete"}), BadRows::kDrop);
  EXPECT_EQ(data.feature_rows(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(data.features()[1].input_ids, (std::vector<int32_t>{'q', '3', 'r', '3'}));
  EXPECT_EQ(data.features()[1].labels, (std::vector<int32_t>{kIgnoreIndex, 'r', '3', kIgnoreIndex}));
  ASSERT_EQ(data.dropped().size(), 3u);
  EXPECT_EQ(data.dropped()[0].row, 1);
  EXPECT_EQ(data.dropped()[1].row, 2);
  EXPECT_EQ(data.dropped()[1].reason, path + " row 3: expected a string in 'response', got number 5");
  EXPECT_EQ(data.dropped()[2].reason,
            path + " row 5: deleted by the template (max_length 50, truncation_strategy delete)");
  Dataset all_bad({write("b.jsonl", "{\"query\":1}\n{\"query\":2}\n")});
  EXPECT_EQ(error_of([&] {
              all_bad.map("QueryResponseProcessor");
              all_bad.encode(ByteTemplate(), BadRows::kDrop);
            }),
            "[dataset] none of the 2 rows of 'b.jsonl' is left to train on\n  b.jsonl row 1: expected a "
            "string in 'query', got number 1\n  "
            "b.jsonl row 2: expected a string in 'query', got number 2");
}

TEST_F(DatasetTest, SplitRowsKeepTheirOrderAndSkipPartsWithoutLabels) {
  Dataset data({.data = {{{"query", "aaaaaaaa"}, {"response", "bcd"}}}});
  data.encode(ByteTemplate({.max_length = 4, .truncation_strategy = "split"}));
  ASSERT_EQ(data.features().size(), 2u);
  EXPECT_EQ(data.features()[0].labels, (std::vector<int32_t>{kIgnoreIndex, kIgnoreIndex, kIgnoreIndex, 'b'}));
  EXPECT_EQ(data.feature_rows(), (std::vector<int64_t>{0, 0}));
  ASSERT_EQ(data.dropped().size(), 1u);
  EXPECT_TRUE(data.dropped()[0].partial);
  EXPECT_EQ(data.dropped()[0].reason, "row 1: 1 of its 3 parts have no trained token and are left out");
}

TEST_F(DatasetTest, FilterThenEncodeKeepsOrderForAnyNumberOfThreads) {
  std::string lines;
  for (int i = 0; i < 2000; ++i)
    lines += "{\"query\":\"q" + std::to_string(i) + "\",\"response\":\"" + std::string(1 + i % 37, 'r') +
             "\",\"n\":" + std::to_string(i) + "}\n";
  const std::string path = write("a.jsonl", lines);
  std::vector<std::vector<int64_t>> rows;
  std::vector<std::string> hashes;
  const int before = num_threads();
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    Dataset data({path});
    data.filter([](const Row& row) { return row.at("n").get<int64_t>() % 3 == 0; });
    data.encode(ByteTemplate());
    ASSERT_EQ(data.size(), 667);
    ASSERT_EQ(data.features().size(), 667u);
    std::vector<int64_t> got;
    for (const auto& f : data.features()) {
      int64_t n = 0;
      for (size_t t = 1; f.input_ids[t] != 'r'; ++t) n = 10 * n + (f.input_ids[t] - '0');
      got.push_back(n);
    }
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<int64_t>(3 * i));
    EXPECT_EQ(data.trajectory(1).messages[0].at("content"), "q3");
    EXPECT_EQ(error_of([&] { data.filter([](const Row&) { return true; }); }),
              "[dataset] filter after encode; filter first");
    hashes.push_back(data.content_hash());
    // With many bad rows the first is always the one that is reported.
    Dataset bad({path});
    bad.map([](const Row& row) -> Trajectory {
      if (row.at("n").get<int64_t>() >= 700) throw invalid_argument("too large");
      return {.messages = {{{"role", "assistant"}, {"content", "ab"}}}};
    });
    EXPECT_EQ(error_of([&] { bad.encode(ByteTemplate()); }), "[dataset] a.jsonl row 701: too large");
  }
  set_num_threads(before);
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

TEST_F(DatasetTest, ContentHashFollowsTheRows) {
  const std::string a = write("a.jsonl", "{\"n\":1}\n{\"n\":2}\n"),
                    b = write("b.jsonl", "{\"n\":1}\r\n\n{\"n\":2}"),
                    c = write("c.jsonl", "{\"n\":2}\n{\"n\":1}\n");
  EXPECT_EQ(Dataset({a}).content_hash(), Dataset({b}).content_hash());
  EXPECT_NE(Dataset({a}).content_hash(), Dataset({c}).content_hash());
  EXPECT_EQ(Dataset({.dataset_id = a, .data_slice = std::vector<int64_t>{1, 0}}).content_hash(),
            Dataset({c}).content_hash());
  // sha256(sha256('{"n":1}') + sha256('{"n":2}')) by sha256sum.
  EXPECT_EQ(Dataset({a}).content_hash(), sha256_hex(sha256_hex("{\"n\":1}") + sha256_hex("{\"n\":2}")));
}

TEST_F(DatasetTest, RealDataSetsGoThrough) {
  const std::string root = test::test_data("datasets/");
  struct Case {
    std::string path;
    int64_t rows;
    std::string note;
  };
  // Row counts by `wc -l` and Python's json.
  const std::vector<Case> cases = {
      {"llama-factory/alpaca_en_demo.json", 999,
       "preprocessor AlpacaProcessor: the rows have 'instruction' and 'output'"},
      {"gsm8k/train.jsonl", 7473,
       "preprocessor QueryResponseProcessor: the rows have 'question' and 'answer'"},
      {"ms-swift/chatml.jsonl", 3, "preprocessor MessagesProcessor: the rows have 'messages'"},
      {"ms-swift/conversations.jsonl", 3, "preprocessor MessagesProcessor: the rows have 'conversations'"},
      {"ms-swift/sharegpt.jsonl", 3, "preprocessor MessagesProcessor: the rows have 'conversation'"},
      {"llama-factory/glaive_toolcall_en_demo.json", 300,
       "preprocessor MessagesProcessor: the rows have 'conversations'"},
      {"identity.json", 91, "preprocessor AlpacaProcessor: the rows have 'instruction' and 'output'"},
  };
  for (const auto& c : cases) {
    Dataset data({root + c.path});
    EXPECT_EQ(data.size(), c.rows) << c.path;
    data.encode(ByteTemplate({.max_length = 1 << 20}));
    EXPECT_EQ(static_cast<int64_t>(data.features().size()), c.rows) << c.path;
    ASSERT_EQ(data.notes().size(), 1u);
    EXPECT_EQ(data.notes()[0], c.note);
  }
  Dataset text({.dataset_id = root + "tinyshakespeare/input.txt"});
  text.encode(ByteTemplate({.max_length = 4096, .truncation_strategy = "split", .use_chat_template = false}));
  EXPECT_EQ(text.size(), 1);
  EXPECT_EQ(text.features().size(), (1115394u + 4095) / 4096);
}

}  // namespace
}  // namespace twinkle
