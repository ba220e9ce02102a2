// Rows that are recorded while a loader draws them: what is in the file and in which order, of every kind of
// data set and format; a full disk, a second writer, and a process that is killed.
#include "twinkle/data/row_writer.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>

#include "tests/data/data_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/data/lazy_dataset.h"
#include "twinkle/data/packing.h"

namespace twinkle {
namespace {

using Lines = std::vector<std::string>;

class RowWriterTest : public DataFolderTest {
 protected:
  std::string questions(int count) {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      lines += Json{{"query", "q" + std::to_string(i)},
                    {"response", std::string(1 + static_cast<size_t>(i % 5), 'r')}}
                   .dump() +
               "\n";
    }
    return write("rows.jsonl", lines);
  }
  // The questions of a file of recorded conversations.
  Lines recorded(const std::string& name) {
    Lines out;
    for (const Json& row : rows_of({in_dir(name)}))
      out.push_back(row.at("messages").at(0).at("content").get<std::string>());
    return out;
  }
  // The questions of the rows that the next batches hold, read out of their tokens.
  static Lines drawn(DataLoader* loader, int batches) {
    Lines out;
    for (int i = 0; i < batches; ++i) {
      for (const InputFeature& feature : loader->next()) {
        EXPECT_EQ(feature.row, nullptr);  // told, and forgotten
        std::string text;
        for (const int32_t id : feature.input_ids) text.push_back(static_cast<char>(id));
        out.push_back(text.substr(0, text.find('r')));
      }
    }
    return out;
  }
  Lines files() const {
    Lines out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
      out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
};

std::shared_ptr<const Template> bytes() { return std::make_shared<ByteTemplate>(); }
std::function<Row()> number(int i) {
  return [i] { return Row{{"n", i}}; };
}

TEST_F(RowWriterTest, RowsAreInTheOrderInWhichTheyAreDrawn) {
  const std::string path = questions(40);
  const DataLoaderOptions shuffled{.batch_size = 6, .seed = 3};
  // Two epochs and a bit.
  Dataset eager({path});
  eager.save_as(in_dir("eager.jsonl"), {.mode = "training"});
  eager.encode(*bytes());
  DataLoader of_eager(eager.take_samples(), shuffled);
  const Lines order = drawn(&of_eager, 16);
  eager.flush_save();
  EXPECT_EQ(recorded("eager.jsonl"), order);
  EXPECT_NE(Lines(order.begin(), order.begin() + 40), Lines(order.begin() + 40, order.begin() + 80));
  // Asked for when the rows are encoded already, and drawn by features that were copied.
  Dataset late({path});
  late.encode(*bytes());
  late.save_as(in_dir("late.jsonl"), {.batch_size = 1, .mode = "training"});
  DataLoader of_late(late.features(), shuffled);
  EXPECT_EQ(drawn(&of_late, 16), order);
  late.flush_save();
  EXPECT_EQ(recorded("late.jsonl"), order);
  // Threads that encode rows ahead change nothing, nor does it matter who is asked to record.
  for (const int workers : {0, 3}) {
    const std::string name = "lazy" + std::to_string(workers) + ".jsonl";
    Dataset rows({path});
    if (workers == 0) rows.save_as(in_dir(name), {.mode = "training"});
    const auto lazy = std::make_shared<LazyDataset>(std::move(rows), bytes());
    if (workers > 0) lazy->save_as(in_dir(name), {.mode = "training"});
    DataLoaderOptions options = shuffled;
    options.num_workers = workers;
    DataLoader loader(lazy, options);
    EXPECT_EQ(drawn(&loader, 16), order);
    lazy->flush_save();
    EXPECT_EQ(recorded(name), order);
    drawn(&loader, 1);  // is not recorded any more
    EXPECT_EQ(recorded(name), order);
  }
  auto stream = std::make_unique<IterableDataset>(DatasetMeta{path}, bytes());
  IterableDataset* const source = stream.get();
  source->save_as(in_dir("stream.jsonl"), {.mode = "training"});
  DataLoader of_stream(std::move(stream), {.batch_size = 6, .shuffle = false});
  const Lines streamed = drawn(&of_stream, 9);
  source->flush_save();
  EXPECT_EQ(streamed.size(), 52u);  // 6 * 6 + 4 and two of the next epoch
  EXPECT_EQ(recorded("stream.jsonl"), streamed);
}

TEST_F(RowWriterTest, OnlyWhatIsGivenOutIsRecorded) {
  // A rank records its own rows, a row that cannot be used and one that is skipped by resuming do not come.
  std::string lines = read_file(questions(10));
  lines.insert(0, "{\"query\":\"bad\",\"response\":5}\n");
  const std::string path = write("with_bad.jsonl", lines);
  const auto lazy = std::make_shared<LazyDataset>(Dataset({path}), bytes());
  lazy->save_as(in_dir("rank.jsonl"), {.mode = "training"});
  DataLoader loader(
      lazy, {.batch_size = 4, .shuffle = false, .rank = 1, .world_size = 2, .bad_rows = BadRows::kDrop});
  drawn(&loader, 2);
  lazy->flush_save();
  EXPECT_EQ(recorded("rank.jsonl"), (Lines{"q2", "q3", "q6", "q7"}));
  auto stream = std::make_unique<IterableDataset>(DatasetMeta{path}, bytes(),
                                                  IterableOptions{.bad_rows = BadRows::kDrop, .chunk = 3});
  IterableDataset* const source = stream.get();
  stream->next();  // what is encoded already is recorded as well
  source->save_as(in_dir("resumed.jsonl"), {.mode = "training"});
  DataLoader resumed(std::move(stream), {.batch_size = 2, .shuffle = false});
  resumed.resume_from_checkpoint(4);
  drawn(&resumed, 2);
  source->flush_save();
  EXPECT_EQ(recorded("resumed.jsonl"), (Lines{"q4", "q5", "q6", "q7"}));
}

TEST_F(RowWriterTest, SamplesOfSeveralFeaturesAndRowsOfSeveralSamples) {
  // Bins: every row of a bin.
  Dataset packed({questions(12)});
  packed.save_as(in_dir("bins.jsonl"), {.mode = "training"});
  packed.encode(*bytes());
  const auto bins =
      std::make_shared<PackingDataset>(packed.take_features(), PackingOptions{.max_length = 16});
  DataLoader of_bins(bins, {.batch_size = 2, .seed = 1});
  const Lines order = drawn(&of_bins, 2);
  packed.flush_save();
  EXPECT_EQ(recorded("bins.jsonl"), order);
  auto stream = std::make_unique<IterableDataset>(DatasetMeta{in_dir("rows.jsonl")}, bytes());
  IterableDataset* const source = stream.get();
  source->save_as(in_dir("stream.jsonl"), {.mode = "training"});
  DataLoader of_stream(
      std::make_unique<IterablePackingDataset>(std::move(stream), StreamPackingOptions{.max_length = 16}),
      {.batch_size = 2, .shuffle = false});
  const Lines streamed = drawn(&of_stream, 2);
  source->flush_save();
  EXPECT_EQ(recorded("stream.jsonl"), streamed);
  // Conversations of one row come once, windows of one row once each.
  Dataset pairs({write("pairs.jsonl", R"({"prompt": "hi", "chosen": "yes", "rejected": "no"}
{"prompt": "ho", "chosen": "yes", "rejected": "no"}
)")});
  pairs.map("DPOProcessor");
  pairs.save_as(in_dir("saved_pairs.jsonl"), {.mode = "training"});
  pairs.encode(*bytes());
  DataLoader of_pairs(pairs.take_samples(), {.batch_size = 2, .shuffle = false});
  EXPECT_EQ(of_pairs.next().size(), 4u);
  pairs.flush_save();
  pairs.save_as(in_dir("at_once.jsonl"));
  EXPECT_EQ(rows_of({in_dir("saved_pairs.jsonl")}), rows_of({in_dir("at_once.jsonl")}));
  for (const bool streamed_too : {false, true}) {
    TemplateOptions options{.max_length = 4, .truncation_strategy = "split", .use_chat_template = false};
    const std::string text =
        write("long.jsonl", "{\"text\": \"abcdefghij\"}\n{\"text\": \"k\"}\n{\"text\":\"lmn\"}\n");
    const auto tmpl = std::make_shared<ByteTemplate>(options);
    const std::string name = streamed_too ? "w1.jsonl" : "w0.jsonl";
    if (streamed_too) {
      auto windows = std::make_unique<IterableDataset>(DatasetMeta{text}, tmpl,
                                                       IterableOptions{.bad_rows = BadRows::kDrop});
      IterableDataset* const from = windows.get();
      from->save_as(in_dir(name), {.mode = "training"});
      DataLoader loader(std::move(windows), {.batch_size = 4, .shuffle = false});
      loader.next();
      from->flush_save();
    } else {
      Dataset windows({text});
      windows.save_as(in_dir(name), {.mode = "training"});
      windows.encode(*tmpl, BadRows::kDrop);
      DataLoader loader(windows.take_samples(), {.batch_size = 4, .shuffle = false});
      loader.next();
      windows.flush_save();
    }
    EXPECT_EQ(recorded(name), (Lines{"abcdefghij", "abcdefghij", "abcdefghij", "lmn"})) << name;
  }
}

// In order, once, the file of mode "training" is that of mode "immediate", byte for byte.
TEST_F(RowWriterTest, EveryFormatIsThatOfTheWholeSave) {
  std::string lines = read_file(questions(25));
  lines +=
      R"({"messages": [{"role": "user", "content": "call, \"it\""}, {"role": "assistant", "content": "r"}], "tools": [{"type": "function", "function": {"name": "f"}}]})"
      "\n";
  std::vector<Row> rows;
  for (size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1)
    rows.push_back(Json::parse(lines.substr(at, lines.find('\n', at) - at)));
  for (Row& row : rows) {
    if (!row.contains("query")) continue;
    row = {{"messages",
            {{{"role", "user"}, {"content", row["query"]}},
             {{"role", "assistant"}, {"content", row["response"]}}}}};
  }
  Lines formats = {"jsonl", "json", "csv"};
#ifdef TWINKLE_HAS_ARROW
  formats.emplace_back("parquet");
#endif
  for (const std::string& format : formats) {
    Dataset data(DatasetMeta{.data = rows});
    data.map("MessagesProcessor");
    data.save_as(in_dir("whole." + format));
    data.save_as(in_dir("drawn"), {.format = format, .batch_size = 4, .mode = "training"});
    data.encode(*bytes());
    DataLoader loader(data.take_samples(), {.batch_size = 5, .shuffle = false});
    for (int i = 0; i < 6; ++i) loader.next();
    data.flush_save();
    EXPECT_EQ(read_file(in_dir("drawn")), read_file(in_dir("whole." + format))) << format;
    // A stream writes the same at once, and goes on where it stood.
    IterableDataset stream(DatasetMeta{write("in.jsonl",
                                             [&] {
                                               std::string text;
                                               for (const Row& row : rows) text += row.dump() + "\n";
                                               return text;
                                             }())},
                           bytes());
    const auto first = stream.next();
    stream.save_as(in_dir("stream." + format));
    EXPECT_EQ(read_file(in_dir("stream." + format)), read_file(in_dir("whole." + format))) << format;
    EXPECT_NE(stream.next()->front().input_ids, first->front().input_ids);
    LazyDataset lazy(Dataset({in_dir("in.jsonl")}), bytes());
    lazy.save_as(in_dir("lazy." + format));
    EXPECT_EQ(read_file(in_dir("lazy." + format)), read_file(in_dir("whole." + format))) << format;
  }
  for (const std::string& name : files()) {
    EXPECT_EQ(name.find("lock"), std::string::npos) << name;
    EXPECT_EQ(name.find(".csv.jsonl"), std::string::npos) << name;
    EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
  }
}

TEST_F(RowWriterTest, AFileGrowsAndIsWholeAfterEachWrite) {
  for (const char* name : {"rows.jsonl", "rows.json"}) {
    write(name, "of an earlier run\n");
    const MappedFile before(in_dir(name));
    RowWriter writer(in_dir(name), {.batch_size = 2});
    EXPECT_EQ(read_file(in_dir(name)), "of an earlier run\n");  // untouched until it is started
    writer.start();
    EXPECT_EQ(read_file(in_dir(name)), std::string(name) == "rows.json" ? "[\n]\n" : "");
    for (int i = 0; i < 5; ++i) {
      writer.write(number(i));
      writer.flush();
      EXPECT_EQ(rows_of({in_dir(name)}).size(), static_cast<size_t>(i) + 1) << name;
    }
    EXPECT_EQ(before.text(), "of an earlier run\n");  // for whoever reads it
    EXPECT_EQ(writer.num_rows(), 5);
  }
  // Without rows a table has no columns: there is none.
  RowWriter(in_dir("t.csv"), {}).finish();
  EXPECT_EQ(files(), (Lines{"rows.json", "rows.jsonl"}));
}

TEST_F(RowWriterTest, WhatWaitsIsBounded) {
  RowWriter writer(in_dir("rows.jsonl"), {.batch_size = 2});
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> given = 0;
  std::thread giver([&] {
    for (int i = 0; i < 30; ++i) {
      writer.write([gone, i] {
        gone.wait();
        return Row{{"n", i}};
      });
      ++given;
    }
  });
  // At most two are being made and eight wait.
  for (int i = 0; i < 200 && given < 9; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(given, 9);
  EXPECT_LE(given, 10);
  go.set_value();
  giver.join();
  writer.flush();
  EXPECT_EQ(writer.num_rows(), 30);
  EXPECT_EQ(rows_of({in_dir("rows.jsonl")}).size(), 30u);
}

TEST_F(RowWriterTest, ErrorsReachWhoeverGivesRows) {
  // A row that cannot be made: those before it are in the file.
  RowWriter writer(in_dir("rows.jsonl"), {});
  for (int i = 0; i < 3; ++i) writer.write(number(i));
  writer.write([]() -> Row { throw invalid_argument("row 4 is no row"); });
  EXPECT_EQ(error_of([&] { writer.flush(); }), "row 4 is no row");
  EXPECT_EQ(error_of([&] { writer.write(number(5)); }), "row 4 is no row");
  EXPECT_EQ(error_of([&] { writer.finish(); }), "row 4 is no row");
  writer.finish();  // once is enough
  EXPECT_EQ(rows_of({in_dir("rows.jsonl")}).size(), 3u);
  // Columns of several kinds are known at the end; the rows are not lost.
#ifdef TWINKLE_HAS_ARROW
  RowWriter table(in_dir("a.parquet"), {});
  table.write(number(1));
  table.write([] { return Row{{"n", "x"}}; });
  EXPECT_EQ(
      error_of([&] { table.finish(); }),
      "[dataset] cannot save 'a.parquet': row 2, column 'n' holds values of several kinds (string after "
      "others), which a Parquet column cannot; save as jsonl; the rows are in 'a.parquet.jsonl'");
  EXPECT_EQ(rows_of({in_dir("a.parquet.jsonl")}).size(), 2u);
#endif
  EXPECT_HAS(error_of([&] { RowWriter(in_dir("none/rows.jsonl"), {}).start(); }),
             "cannot write 'none/rows.jsonl'");
  EXPECT_HAS(error_of([&] { RowWriter("/dev/null", {.format = "jsonl"}).start(); }), "is not a regular file");
  Dataset data(DatasetMeta{.data = {{{"a", 1}}}});
  EXPECT_HAS(error_of([&] { data.save_as(in_dir("x.jsonl"), {.mode = "train"}); }), "unknown mode 'train'");
  EXPECT_HAS(error_of([&] { data.save_as(in_dir("x.jsonl"), {.batch_size = 0}); }),
             "batch_size must be from 1 to 1000000");
  EXPECT_HAS(error_of([&] { data.save_as(in_dir("x.xml"), {.mode = "training"}); }), "unknown format 'xml'");
  // Never over the rows that are read.
  const std::string path = questions(3);
  const std::string why = "'rows.jsonl' holds the rows that are read; record them in another file";
  EXPECT_HAS(error_of([&] { Dataset({path}).save_as(path, {.mode = "training"}); }), why);
  EXPECT_HAS(error_of([&] { LazyDataset(Dataset({path}), bytes()).save_as(path, {.mode = "training"}); }),
             why);
  EXPECT_HAS(error_of([&] { IterableDataset({path}, bytes()).save_as(path, {.mode = "training"}); }), why);
  std::filesystem::rename(path, in_dir("t.csv.jsonl"));
  EXPECT_HAS(
      error_of([&] { Dataset({in_dir("t.csv.jsonl")}).save_as(in_dir("t.csv"), {.mode = "training"}); }),
      "'t.csv.jsonl' holds the rows");
}

// A file that may not grow, as on a full disk: the error comes, and the file ends with a whole row.
TEST_F(RowWriterTest, AFullDisk) {
  for (const char* name : {"rows.jsonl", "rows.json"}) {
    const std::string path = questions(60);
    struct rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto old = std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = before;
    small.rlim_cur = 1000;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    std::string error;
    {
      Dataset data({path});
      data.save_as(in_dir(std::string("of_") + name), {.batch_size = 3, .mode = "training"});
      data.encode(*bytes());
      DataLoader loader(data.take_samples(), {.batch_size = 1, .shuffle = false});
      for (int i = 0; i < 60 && error.empty(); ++i) error = error_of([&] { loader.next(); });
      if (error.empty()) error = error_of([&] { data.flush_save(); });
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old);
    EXPECT_HAS(error, "cannot write '" + std::string("of_") + name + "'");
    const Lines got = recorded(std::string("of_") + name);
    ASSERT_GT(got.size(), 3u);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], "q" + std::to_string(i));
  }
}

TEST_F(RowWriterTest, TwoWritersOfOnePathAreRefused) {
  for (const char* name : {"rows.jsonl", "rows.csv"}) {
    RowWriter first(in_dir(name), {});
    first.start();
    first.write(number(1));
    const std::string grows = std::string(name) + (std::string(name) == "rows.csv" ? ".jsonl" : "");
    const std::string why =
        "[dataset] another run is writing rows to '" + grows + "'; give another file, or wait for it";
    EXPECT_EQ(error_of([&] { RowWriter(in_dir(name), {}).start(); }), why);
    EXPECT_EQ(error_of([&] { RowWriter(in_dir(name), {}).write(number(2)); }), why);
    // Of another process, and by another name.
    const std::string link = in_dir(std::string("link_") + grows);
    std::filesystem::create_symlink(in_dir(grows), link);
    const pid_t child = ::fork();
    if (child == 0) {
      bool refused = false;
      try {
        RowWriter(link, {}).start();
      } catch (const Error& e) {
        refused = e.kind() == ErrorKind::kConflict;
      }
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    first.finish();
    EXPECT_EQ(rows_of({in_dir(name)}).size(), 1u);
    RowWriter next(in_dir(name), {});  // now it is free
    next.start();
  }
}

TEST_F(RowWriterTest, AKilledProcessLeavesTheFirstRows) {
  for (const char* name : {"rows.jsonl", "rows.json", "rows.csv"}) {
    for (int round = 0; round < 3; ++round) {
      const std::string grows = in_dir(name) + (std::string(name) == "rows.csv" ? ".jsonl" : "");
      std::filesystem::remove(grows);
      const pid_t child = ::fork();
      if (child == 0) {
        RowWriter writer(in_dir(name), {.batch_size = 7});
        for (int i = 0;; ++i) writer.write(number(i));
      }
      std::error_code none;
      for (int i = 0; i < 1000; ++i) {
        const auto size = std::filesystem::file_size(grows, none);
        if (!none && size > static_cast<uintmax_t>(2000 * (round + 1))) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      ::kill(child, SIGKILL);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status));
      // Whole rows, but for what the kill cut of the last write.
      const std::string text = read_file(grows);
      EXPECT_GT(text.size(), 2000u);
      int seen = 0;
      for (size_t at = text.front() == '[' ? 2 : 0; at < text.size();) {
        const size_t end = text.find('\n', at);
        if (end == std::string::npos) break;
        std::string line = text.substr(at, end - at);
        if (line == "]") break;
        if (line.ends_with(',')) line.pop_back();
        EXPECT_EQ(line, Json({{"n", seen}}).dump());
        ++seen;
        at = end + 1;
      }
      EXPECT_GT(seen, 100);
    }
    // Nothing keeps the path locked.
    RowWriter next(in_dir(name), {});
    next.write(number(1));
    next.finish();
    EXPECT_EQ(rows_of({in_dir(name)}).size(), 1u);
  }
  EXPECT_EQ(files(), (Lines{"rows.csv", "rows.json", "rows.jsonl"}));
}

}  // namespace
}  // namespace twinkle
