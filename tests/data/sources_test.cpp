// Every kind of file: tables against pyarrow's reading of them, packed files, CSV by hand, patterns.
#include <zlib.h>
#include <zstd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/data/data_testing.h"
#include "tests/needs.h"
#include "twinkle/core/files.h"
#include "twinkle/data/csv.h"
#include "twinkle/data/table_file.h"

namespace twinkle {
namespace {

class SourcesTest : public DataFolderTest {
 protected:
  static std::string gzip(const std::string& text) {
    std::string out(compressBound(text.size()) + 64, '\0');
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
  }
  static std::string zstd(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
  }
};

TEST_F(SourcesTest, CsvAndTsv) {
  const std::vector<Json> want = {{{"a", "1"}, {"b", "x, \"y\"\nz"}}, {{"a", ""}, {"b", "plain \"quote\""}}};
  EXPECT_EQ(rows_of({write("a.csv",
                           "\xEF\xBB\xBF"
                           "a,b\r\n1,\"x, \"\"y\"\"\nz\"\r\n\r\n,plain \"quote\"\r\n")}),
            want);
  EXPECT_EQ(rows_of({write("a.tsv", "a\tb\n1\t\"x, \"\"y\"\"\nz\"\n\tplain \"quote\"")}), want);
  EXPECT_EQ(rows_of({.dataset_id = write("n.csv", "1,2\n3,4\n"), .columns = {"x", "y"}}),
            (std::vector<Json>{{{"x", "1"}, {"y", "2"}}, {{"x", "3"}, {"y", "4"}}}));
  // Old spreadsheets end lines with CR alone.
  EXPECT_EQ(rows_of({write("cr.csv", "a,b\r1,\"x, \"\"y\"\"\nz\"\r\r,plain \"quote\"\r")}), want);
  const auto all = [&](const std::string& name, const std::string& bytes) {
    const std::string path = write(name, bytes);
    return error_of([&] { rows_of({path}); });
  };
  EXPECT_EQ(all("b.csv", "a,b\n1,2\n1,2,3\n"),
            "[dataset] b.csv row 2 (line 3): has 3 fields, there are 2 columns");
  EXPECT_EQ(all("g.csv", "a,b\r1,2\r3\r"),
            "[dataset] g.csv row 2 (line 3): has 1 fields, there are 2 columns");
  EXPECT_EQ(all("c.csv", "a,b\n1,\"2\n"), "[dataset] 'c.csv' line 2: a quote of this record is never closed");
  EXPECT_EQ(
      all("d.csv", "a,b\n1,\"2\"3\n"),
      "[dataset] d.csv row 1 (line 2): field 2: text follows its closing quote; a quote inside of quotes is "
      "doubled");
  EXPECT_EQ(all("e.csv", "a,a\n1,2\n"),
            "[dataset] 'e.csv': column 2 has the name of another, 'a'; where the first record is no header, "
            "name the "
            "columns");
  EXPECT_EQ(all("f.csv", "a,b\n1,\xFF\n"), "[dataset] f.csv row 1 (line 2): column 'b' is not valid UTF-8");
  // What is written is read back.
  const std::vector<std::string> hard = {"", "a,b", "\"", "x\ny", "plain", " space "};
  EXPECT_EQ(csv::fields(csv::write(hard, ','), ','), hard);
  EXPECT_EQ(csv::fields(csv::write({""}, ','), ','), std::vector<std::string>{""});
}

TEST_F(SourcesTest, PackedFiles) {
  const std::string lines = "{\"n\":1}\n{\"n\":2}\n";
  const std::vector<Json> want = {{{"n", 1}}, {{"n", 2}}};
  EXPECT_EQ(rows_of({write("a.jsonl.gz", gzip(lines))}), want);
  EXPECT_EQ(rows_of({write("b.jsonl.gz", gzip("{\"n\":1}\n") + gzip("{\"n\":2}\n"))}), want);
  EXPECT_EQ(rows_of({write("a.jsonl.zst", zstd(lines))}), want);
  EXPECT_EQ(rows_of({write("b.jsonl.zst", zstd("{\"n\":1}\n") + zstd("{\"n\":2}\n"))}), want);
  EXPECT_EQ(rows_of({write("c.json.gz", gzip("[{\"n\":1},{\"n\":2}]"))}), want);
  EXPECT_EQ(rows_of({write("d.csv.gz", gzip("n\n1\n"))}), (std::vector<Json>{{{"n", "1"}}}));
  std::string big;
  for (int i = 0; i < 40000; ++i) big += "{\"n\":" + std::to_string(i) + "}\n";
  EXPECT_EQ(Dataset({write("big.jsonl.gz", gzip(big))}).size(), 40000);
  EXPECT_EQ(Dataset({write("big.jsonl.zst", zstd(big))}).row(39999), (Json{{"n", 39999}}));
  // Unpacked sizes that fill the buffer exactly.
  const std::string even = "{\"t\":\"" + std::string((1 << 18) - 9, 'x') + "\"}\n";
  ASSERT_EQ(even.size(), size_t{1} << 18);
  EXPECT_EQ(Dataset({write("even.jsonl.gz", gzip(even))}).size(), 1);
  EXPECT_EQ(Dataset({write("even.jsonl.zst", zstd(even))}).size(), 1);
  EXPECT_EQ(Dataset({write("evens.jsonl.zst", zstd(even + even) + zstd(even))}).size(), 3);
  const std::string whole = gzip(lines), frame = zstd(lines);
  EXPECT_EQ(error_of([&] { Dataset({write("e.jsonl.gz", whole.substr(0, whole.size() - 9))}); }),
            "[dataset] 'e.jsonl.gz': the gzip file is cut short");
  EXPECT_EQ(error_of([&] { Dataset({write("f.jsonl.zst", frame.substr(0, frame.size() - 1))}); }),
            "[dataset] 'f.jsonl.zst': the zstd file is cut short");
  EXPECT_NE(error_of([&] { Dataset({write("g.jsonl.gz", "no gzip")}); }).find("not a sound gzip file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Dataset({write("h.jsonl.zst", "no zstd file")}); }).find("not a sound zstd file"),
            std::string::npos);
}

TEST_F(SourcesTest, PatternsAndMixedColumns) {
  write("p/a1.jsonl", "{\"n\":1}\n");
  write("p/a2.csv", "n\n2\n");
  write("p/b.jsonl", "{\"m\":3}\n");
  EXPECT_EQ(rows_of({in_dir("p/a*")}), (std::vector<Json>{{{"n", 1}}, {{"n", "2"}}}));
  EXPECT_EQ(rows_of({in_dir("p/[ab]*")}).size(), 3u);
  EXPECT_EQ(error_of([&] { Dataset({.dataset_id = in_dir("p/b.jsonl"), .columns = {"x"}}); }),
            "[dataset] 'p/b.jsonl': names of columns are for .csv and .tsv files");
  EXPECT_EQ(error_of([&] { Dataset({.dataset_id = in_dir("p/b.jsonl"), .text_split = "line"}); }),
            "[dataset] 'p/b.jsonl': text_split is for .txt files");
  EXPECT_EQ(error_of([&] { Dataset({in_dir("p/z*.csv")}); }), "[dataset] no file matches 'p/z*.csv'");
  // Columns may differ from row to row, and in type.
  EXPECT_EQ(rows_of({write("mixed.jsonl", "{\"a\":1}\n{\"a\":\"x\",\"b\":[1]}\n")}),
            (std::vector<Json>{{{"a", 1}}, {{"a", "x"}, {"b", Json::array({1})}}}));
}

// As Python's glob with recursive=True: "**" stands for any folders. Links to folders are followed, and what
// can be reached twice is read once.
TEST_F(SourcesTest, FoldersBelowAndLinks) {
  for (const char* name :
       {"g/0.jsonl", "g/a/1.jsonl", "g/a/b/2.jsonl", "g/[x]/3.jsonl", "g/.h/4.jsonl", "far/5.jsonl"})
    write(name, std::string("{\"n\":") + name[std::strlen(name) - 7] + "}\n");
  const auto numbers = [&](const std::string& pattern) {
    std::string out;
    for (const Json& row : rows_of({in_dir(pattern)})) out += row.at("n").dump();
    return out;
  };
  const auto expect = [&](const std::vector<std::pair<const char*, const char*>>& cases) {
    for (const auto& [pattern, want] : cases) EXPECT_EQ(numbers(pattern), want) << pattern;
  };
  expect({{"g/**/*.jsonl", "0312"},
          {"g/**", "0312"},
          {"g/**/a/**/*.jsonl", "12"},
          {"**/b/*.jsonl", "2"},
          {"*/**/[12].jsonl", "12"},
          {"g/a**/*.jsonl", "1"},
          {"g/*.jsonl", "0"},
          {"g", "0312"}});
  std::filesystem::create_directory_symlink("../far", in_dir("g/link"));
  std::filesystem::create_directory_symlink("..", in_dir("g/a/round"));
  std::filesystem::create_directory_symlink("nowhere", in_dir("g/lost"));
  expect({{"g", "03125"}, {"g/**/*.jsonl", "03125"}, {"g/link/*.jsonl", "5"}, {"**/far/*.jsonl", "5"}});
}

TEST_F(SourcesTest, AFileThatIsCutShortIsNamed) {
  const std::string path = write("cut.jsonl", "{\"n\":1}\n" + std::string(1 << 16, ' ') + "{\"n\":2}\n");
  const Dataset data({path});
  EXPECT_EQ(data.row(1).at("n"), 2);
  std::filesystem::resize_file(path, 9);
  EXPECT_EQ(test::thrown([&] { static_cast<void>(data.row(1)); }, ErrorKind::kUnavailable),
            "[dataset] '" + path + "' was cut from 65552 to 9 bytes while it was read");
  // What takes its place is another file.
  const std::string whole = write("whole.jsonl", "{\"n\":1}\n{\"n\":2}\n");
  const Dataset kept({whole});
  std::filesystem::rename(write("new.jsonl", "{}\n"), whole);
  EXPECT_EQ(kept.row(1).at("n"), 2);
}

// Numbers that differ in type only are equal; floats come through Arrow's float32 as doubles.
void expect_same(const Json& got, const Json& want, const std::string& where) {
  if (want.is_object()) {
    for (const auto& [key, value] : want.items()) {
      ASSERT_TRUE(got.is_object() && got.contains(key)) << where << " " << key;
      expect_same(got.at(key), value, where + "." + key);
    }
  } else if (want.is_array()) {
    ASSERT_TRUE(got.is_array() && got.size() == want.size()) << where << got.dump();
    for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i], where + "[]");
  } else {
    EXPECT_EQ(got, want) << where;
  }
}

TEST_F(SourcesTest, TablesAreWhatPyarrowReads) {
  const std::string root = test_data("parquet-arrow/");
#ifndef TWINKLE_HAS_ARROW
  test::cannot_run("the Arrow library in this build (scripts/setup fetches it)");
#endif
  const Json goldens = read_json_file(TWINKLE_SOURCE_DIR "/tests/data/table_goldens.json");
  EXPECT_EQ(goldens.size(), 25u);
  for (const auto& [name, golden] : goldens.items()) {
    std::string path = root + name;
    if (name.find("arrow/") == 0) {  // our extension for both forms
      path = write(name.substr(6) + ".arrow", read_file(path));
    }
    const auto table = open_table_file(path);
    ASSERT_EQ(table->num_rows(), golden.at("rows").get<int64_t>()) << name;
    for (const Json& entry : golden.at("some"))
      expect_same(table->row(entry[0].get<int64_t>()), entry[1], name + " row " + entry[0].dump());
  }
  const Dataset data({root + "tinyzero_arithmetic_train.parquet"});
  EXPECT_EQ(data.size(), 800);
  EXPECT_EQ(data.row(0).at("prompt")[0].at("content"), "8,3:9,4");
  EXPECT_EQ(data.place(3), root + "tinyzero_arithmetic_train.parquet row 4");
}

// Rows far from the first come from an unpacked file: in any order, from several threads, and where a group
// of rows is broken, those of the others.
TEST_F(SourcesTest, ParquetRowsInAnyOrder) {
#ifndef TWINKLE_HAS_ARROW
  test::cannot_run("the Arrow library in this build (scripts/setup fetches it)");
#endif
  constexpr int64_t kRows = 90000;  // two groups
  std::vector<Row> rows;
  for (int64_t i = 0; i < kRows; ++i)
    rows.push_back({{"n", i}, {"list", {{{"x", std::to_string(i * 7919 % 1000)}}}}});
  const std::string path = in_dir("UP.PARQUET");
  write_parquet_file(path, rows);
  const auto table = open_table_file(path);
  ASSERT_EQ(table->num_rows(), kRows);
  std::atomic<int64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t k = 0; k < 2000; ++k) {
        const int64_t i = (k * 7901 + t * 13) % kRows;
        if (table->row(i) != rows[static_cast<size_t>(i)]) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  std::string bytes = read_file(path);
  bytes.replace(bytes.size() * 9 / 10, 300, std::string(300, 'x'));
  const auto broken = open_table_file(write("broken.parquet", bytes));
  EXPECT_EQ(broken->row(2000), rows[2000]);
  EXPECT_EQ(broken->row(65000), rows[65000]);
  const std::string error = error_of([&] { broken->row(kRows - 1); });
  EXPECT_EQ(error.find("[dataset] 'broken.parquet': "), 0u) << error;
}

TEST_F(SourcesTest, BrokenTablesAreNamed) {
#ifndef TWINKLE_HAS_ARROW
  EXPECT_NE(error_of([&] { Dataset({write("a.parquet", "PAR1")}); }).find("scripts/setup"),
            std::string::npos);
#else
  for (const char* name : {"a.parquet", "a.arrow"}) {
    for (const std::string& bytes :
         {std::string("PAR1xxxxPAR1"), std::string("ARROW1\0\0junkjunkjunk", 20), std::string(100, 'x')}) {
      const std::string error = error_of([&] { Dataset({write(name, bytes)}); });
      EXPECT_EQ(error.find("[dataset] '" + std::string(name) + "': "), 0u) << error;
    }
  }
#endif
}

TEST_F(SourcesTest, SaveAsReadsBack) {
  const std::vector<Json> rows = {
      {{"t", "a,\"b\"\n"}, {"n", 1}, {"l", Json::array({1, 2})}, {"o", {{"x", 1.5}}}, {"b", true}},
      {{"t", ""}, {"n", -2}, {"l", Json::array()}, {"o", {{"x", nullptr}}}, {"b", nullptr}}};
  Dataset data({.data = rows});
  for (const char* kind : {"jsonl", "json"}) {
    const std::string path = in_dir(std::string("saved.") + kind);
    data.save_as(path);
    EXPECT_EQ(rows_of({path}), rows) << kind;
  }
  data.save_as(in_dir("saved.csv"));
  EXPECT_EQ(rows_of({in_dir("saved.csv")})[0],
            (Json{{"t", "a,\"b\"\n"}, {"n", "1"}, {"l", "[1,2]"}, {"o", "{\"x\":1.5}"}, {"b", "true"}}));
#ifdef TWINKLE_HAS_ARROW
  data.save_as(in_dir("saved.parquet"));
  EXPECT_EQ(rows_of({in_dir("saved.parquet")}), rows);
  Dataset mixed({.data = {{{"a", 1}}, {{"a", "x"}}}});
  EXPECT_EQ(
      error_of([&] { mixed.save_as(in_dir("mixed.parquet")); }),
      "[dataset] cannot save 'mixed.parquet': row 2, column 'a' holds values of several kinds (string after "
      "others), which a Parquet column cannot; save as jsonl");
  EXPECT_FALSE(file_exists(in_dir("mixed.parquet")));
#endif
  EXPECT_EQ(error_of([&] { data.save_as(in_dir("x.xml")); }).find("[dataset] save_as: unknown format 'xml'"),
            0u);
  // Mapped rows are saved as conversations.
  Dataset chat({.data = {{{"query", "q"}, {"response", "r"}}}});
  chat.map("QueryResponseProcessor");
  chat.save_as(in_dir("chat.jsonl"));
  EXPECT_EQ(rows_of({in_dir("chat.jsonl")})[0].at("messages")[1],
            (Json{{"role", "assistant"}, {"content", "r"}}));
}

}  // namespace
}  // namespace twinkle
