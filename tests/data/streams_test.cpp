// Lazy and streamed data sets, and loaders over them: order, failures, threads, and resuming at every
// position.
#include <atomic>

#include "tests/data/data_testing.h"
#include "twinkle/data/lazy_dataset.h"
#include "twinkle/data/packing.h"

namespace twinkle {
namespace {

class StreamsTest : public DataFolderTest {
 protected:
  // `count` rows over `files` files; every 7th is broken when `broken`.
  std::string folder(int count, int files, bool broken = false) {
    std::filesystem::remove_all(in_dir("s"));
    for (int f = 0; f < files; ++f) {
      std::string lines;
      for (int i = f; i < count; i += files) {
        const bool bad = broken && i % 7 == 3;
        lines += "{\"query\":\"q" + std::to_string(i) + "\",\"response\":" +
                 (bad ? "5" : "\"" + std::string(1 + static_cast<size_t>(i % 5), 'r') + "\"") + "}\n";
      }
      write("s/f" + std::to_string(f) + ".jsonl", lines);
    }
    return in_dir("s");
  }
  static std::vector<std::string> origins(const std::vector<InputFeature>& batch) {
    std::vector<std::string> out;
    for (const auto& f : batch) out.push_back(f.origin);
    return out;
  }
};

std::shared_ptr<const Template> bytes() { return std::make_shared<ByteTemplate>(); }

// The batches of a loader, and that every resumed one goes on with the same.
template <class Make>
void expect_resumable(const Make& make, int batches, bool by_count = true) {
  std::vector<std::vector<std::vector<int32_t>>> whole;
  std::vector<Json> states;
  std::vector<int64_t> counts;
  auto loader = make();
  const auto ids = [](const std::vector<InputFeature>& batch) {
    std::vector<std::vector<int32_t>> out;
    for (const auto& f : batch) out.push_back(f.input_ids);
    return out;
  };
  for (int i = 0; i < batches; ++i) {
    states.push_back(Json::parse(loader.get_state().dump()));
    counts.push_back(loader.consumed_train_samples());
    whole.push_back(ids(loader.next()));
  }
  for (int k = 0; k < batches; ++k) {
    auto resumed = make();
    resumed.restore_state(states[static_cast<size_t>(k)]);
    for (int i = k; i < std::min(batches, k + 5); ++i)
      ASSERT_EQ(ids(resumed.next()), whole[static_cast<size_t>(i)]) << "state of " << k << ", batch " << i;
    if (!by_count) continue;
    auto counted = make();
    counted.resume_from_checkpoint(counts[static_cast<size_t>(k)]);
    ASSERT_EQ(ids(counted.next()), whole[static_cast<size_t>(k)]) << "count of " << k;
  }
}

TEST_F(StreamsTest, LazyGivesWhatEagerGives) {
  const std::string path = folder(40, 1);
  Dataset eager({path});
  eager.encode(*bytes());
  const LazyDataset lazy(Dataset({path}), bytes());
  ASSERT_EQ(lazy.size(), 40);
  for (int64_t i = 0; i < lazy.size(); ++i) {
    EXPECT_EQ(lazy.sample(i)[0].input_ids, eager.features()[static_cast<size_t>(i)].input_ids);
    EXPECT_EQ(lazy.sample(i)[0].origin, eager.features()[static_cast<size_t>(i)].origin);
  }
  EXPECT_EQ(error_of([&] {
              LazyDataset(Dataset({path}),
                          std::make_shared<ByteTemplate>(TemplateOptions{.truncation_strategy = "split"}));
            }).find("[dataset] LazyDataset cannot split rows"),
            0u);
}

TEST_F(StreamsTest, RowsThatFailAreReplacedAndMadeOnce) {
  Dataset data({folder(70, 1)});
  std::vector<std::atomic<int>> made(70);
  data.map([&](const Row& row) -> Trajectory {
    const int n = std::stoi(row.at("query").get<std::string>().substr(1));
    ++made[static_cast<size_t>(n)];
    if (n % 7 == 3) throw invalid_argument("unlucky");
    return {.messages = {{{"role", "user"}, {"content", row.at("query")}},
                         {{"role", "assistant"}, {"content", "a"}}}};
  });
  const auto samples = std::make_shared<LazyDataset>(std::move(data), bytes());
  for (const int workers : {0, 3}) {
    for (auto& count : made) count = 0;
    DataLoader loader(samples,
                      {.batch_size = 8, .seed = 1, .num_workers = workers, .bad_rows = BadRows::kDrop});
    int64_t rows = 0;
    while (loader.epoch() == 0) rows += static_cast<int64_t>(loader.next().size());
    EXPECT_EQ(rows, 60);  // 7 batches of 8, and the rest
    EXPECT_EQ(loader.failures().size(), 10u);
    EXPECT_NE(loader.failures()[0].find("unlucky"), std::string::npos);
    for (int n = 0; n < 70; ++n) EXPECT_EQ(made[static_cast<size_t>(n)], 1) << n << " with " << workers;
  }
  DataLoader strict(samples, {.batch_size = 70, .shuffle = false});
  EXPECT_NE(error_of([&] { strict.next(); }).find("row 4: unlucky"), std::string::npos);
  Dataset hopeless({in_dir("s")});
  hopeless.map([](const Row&) -> Trajectory { throw invalid_argument("never"); });
  // An epoch whose rows never fill a batch is no endless one.
  Dataset rare({in_dir("s")});
  rare.map([](const Row& row) -> Trajectory {
    const int n = std::stoi(row.at("query").get<std::string>().substr(1));
    if (n % 20 != 0) throw invalid_argument("unlucky");
    return {.messages = {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "a"}}}};
  });
  DataLoader few(std::make_shared<LazyDataset>(std::move(rare), bytes()),
                 {.batch_size = 8, .min_batch_size = 5, .shuffle = false, .bad_rows = BadRows::kDrop});
  EXPECT_EQ(
      error_of([&] { few.next(); }),
      "[data loader] a whole epoch of 70 samples has only 4 that can be used, a batch needs at least 5");
  DataLoader none(std::make_shared<LazyDataset>(std::move(hopeless), bytes()),
                  {.batch_size = 4, .bad_rows = BadRows::kDrop, .max_retries = 5});
  EXPECT_NE(error_of([&] { none.next(); }).find("6 samples in a row cannot be used (max_retries 5)"),
            std::string::npos);
}

// What the template deletes is left out and counted, whatever happens to bad rows; as when all is encoded.
TEST_F(StreamsTest, DeletedRowsAreNoFault) {
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += Json{{"query", "q"}, {"response", std::string(i % 4 == 1 ? 99 : 3, 'r')}}.dump() + "\n";
  write("d.jsonl", lines);
  const auto tmpl =
      std::make_shared<ByteTemplate>(TemplateOptions{.max_length = 60, .truncation_strategy = "delete"});
  Dataset eager({in_dir("d.jsonl")});
  eager.encode(*tmpl);
  EXPECT_EQ(eager.features().size(), 9u);
  EXPECT_EQ(eager.dropped().size(), 3u);
  for (const int workers : {0, 2}) {
    DataLoader loader(std::make_shared<LazyDataset>(Dataset({in_dir("d.jsonl")}), tmpl),
                      {.batch_size = 9, .shuffle = false, .num_workers = workers});
    EXPECT_EQ(loader.next().size(), 9u);
    EXPECT_EQ(loader.failures().size(), 3u);
    EXPECT_EQ(loader.failures()[0], "sample 1: the template leaves it out");
    EXPECT_EQ(loader.next().size(), 9u);  // an epoch later the same rows fail
    EXPECT_EQ(loader.failures().size(), 3u);
  }
  IterableDataset stream({.dataset_id = in_dir("d.jsonl")}, tmpl);
  int64_t left = 0;
  while (stream.next()) ++left;
  EXPECT_EQ(left, 9);
  EXPECT_EQ(stream.num_dropped(), 3);
}

TEST_F(StreamsTest, StreamsRenameColumnsAndSplitRows) {
  write("n.jsonl", "{\"ask\": \"q\", \"response\": \"" + std::string(40, 'r') +
                       "\"}\n{\"ask\": \"q\", \"query\": \"q\", \"response\": \"r\"}\n");
  const auto tmpl =
      std::make_shared<ByteTemplate>(TemplateOptions{.max_length = 24, .truncation_strategy = "split"});
  const auto make = [&] {
    auto stream = std::make_unique<IterableDataset>(DatasetMeta{.dataset_id = in_dir("n.jsonl")}, tmpl,
                                                    IterableOptions{.bad_rows = BadRows::kDrop});
    stream->rename_columns({{"ask", "query"}});
    return stream;
  };
  auto stream = make();
  Dataset eager({.dataset_id = in_dir("n.jsonl"), .slice = "0:1"});
  eager.rename_columns({{"ask", "query"}});
  eager.encode(*tmpl);
  ASSERT_GT(eager.features().size(), 1u);
  for (const auto& feature : eager.features()) EXPECT_EQ(stream->next()->at(0).input_ids, feature.input_ids);
  EXPECT_FALSE(stream->next());
  EXPECT_EQ(stream->dropped(), std::vector<std::string>{"[dataset] " + in_dir("n.jsonl") +
                                                        " row 2: two columns would be called 'query'"});
  expect_resumable([&] { return DataLoader(make(), {.batch_size = 1}); }, 4);
  // The hash follows what the files hold.
  const std::string before = make()->content_hash();
  EXPECT_EQ(make()->content_hash(), before);
  write("n.jsonl", "{\"ask\": \"q\", \"response\": \"other\"}\n");
  EXPECT_NE(make()->content_hash(), before);
  // So does what makes rows of the bytes.
  const std::string csv = write("h.csv", "a,b\n");
  const auto hash = [](DatasetMeta meta) { return IterableDataset(meta, bytes()).content_hash(); };
  const std::string own = hash({.dataset_id = csv, .columns = {"query", "response"}});
  EXPECT_NE(hash({.dataset_id = csv, .columns = {"response", "query"}}), own);
  EXPECT_NE(hash({.dataset_id = write("h.tsv", "a,b\n"), .columns = {"query", "response"}}), own);
  const std::string text = write("h.txt", "a\n\nb\n");
  EXPECT_NE(hash({.dataset_id = text, .text_split = "line"}), hash({.dataset_id = text}));
}

// A stream that goes on in the middle reads its rows as one that begins: what they are is guessed from the
// first.
TEST_F(StreamsTest, AGuessOutlivesAResume) {
  std::string lines = "not JSON\n";
  std::vector<Row> rows;
  for (int i = 0; i < 6; ++i) {
    rows.push_back({{"query", "q" + std::to_string(i)}, {"response", "r"}, {"text", "t"}});
    if (i > 2) rows.back().erase("query");
    lines += rows.back().dump() + "\n";
  }
  const IterableOptions options{.bad_rows = BadRows::kDrop, .chunk = 1};
  const std::string path = write("g.jsonl", lines);
  const auto generator = [&rows] {
    return [&rows, n = size_t{0}]() mutable -> std::optional<Row> {
      return n == rows.size() ? std::nullopt : std::optional<Row>(rows[n++]);
    };
  };
  const std::function<std::unique_ptr<IterableDataset>()> kinds[] = {
      [&] { return std::make_unique<IterableDataset>(DatasetMeta{.dataset_id = path}, bytes(), options); },
      [&] { return std::make_unique<IterableDataset>(generator, bytes(), options); }};
  for (const auto& make : kinds) {
    const auto whole = make();
    for (int i = 0; i < 3; ++i) {
      const Json state = whole->state();
      const auto sample = whole->next();
      ASSERT_TRUE(sample.has_value());
      const auto resumed = make();
      resumed->restore(state);
      EXPECT_EQ(resumed->next()->at(0).input_ids, sample->at(0).input_ids);
    }
    // Rows of another form are bad ones, wherever the stream begins.
    const auto resumed = make();
    resumed->restore(whole->state());
    EXPECT_FALSE(resumed->next());
    EXPECT_EQ(resumed->num_dropped(), 3);
    EXPECT_FALSE(whole->next());
  }
}

TEST_F(StreamsTest, ThreadsAheadChangeNothing) {
  const auto samples = std::make_shared<LazyDataset>(Dataset({folder(50, 1, true)}), bytes());
  const auto run = [&](int64_t workers, int64_t rank, int64_t world) {
    DataLoader loader(samples, {.batch_size = 6,
                                .min_batch_size = 2,
                                .seed = 9,
                                .rank = rank,
                                .world_size = world,
                                .num_workers = workers,
                                .prefetch = 3,
                                .bad_rows = BadRows::kDrop});
    std::vector<std::vector<std::string>> out;
    for (int i = 0; i < 30; ++i) out.push_back(origins(loader.next()));
    return out;
  };
  for (const int64_t world : {1, 2}) {
    for (int64_t rank = 0; rank < world; ++rank) EXPECT_EQ(run(4, rank, world), run(0, rank, world));
  }
  // The ranks together have the batch of one.
  const auto one = run(0, 0, 1), first = run(0, 0, 2), second = run(2, 1, 2);
  for (size_t i = 0; i < one.size(); ++i) {
    auto both = first[i];
    both.insert(both.end(), second[i].begin(), second[i].end());
    EXPECT_EQ(both, one[i]);
  }
  Dataset eager({in_dir("s")});
  eager.encode(*bytes(), BadRows::kDrop);
  const auto fixed = eager.take_samples();
  DataLoader with(fixed, {.batch_size = 5, .rank = 1, .world_size = 2, .num_workers = 2});
  DataLoader without(fixed, {.batch_size = 5, .rank = 1, .world_size = 2});
  for (int i = 0; i < 25; ++i) EXPECT_EQ(origins(with.next()), origins(without.next()));
}

TEST_F(StreamsTest, StreamsReadEveryFileInOrder) {
  IterableDataset stream({.dataset_id = folder(100, 3)}, bytes(), {.chunk = 8});
  std::vector<std::string> got;
  while (auto sample = stream.next()) got.push_back(sample->at(0).origin);
  ASSERT_EQ(got.size(), 100u);
  EXPECT_EQ(got[0], in_dir("s/f0.jsonl") + " row 1");
  EXPECT_EQ(got[34], in_dir("s/f1.jsonl") + " row 1");
  EXPECT_EQ(got[99], in_dir("s/f2.jsonl") + " row 33");
  stream.rewind();
  EXPECT_EQ(stream.next()->at(0).origin, got[0]);
  // A file without rows is passed over, as in a data set read at once.
  write("s/f1.jsonl", "");
  stream.rewind();
  int64_t left = 0;
  while (stream.next()) ++left;
  EXPECT_EQ(left, 67);
  // Bad rows stop the stream or are counted.
  const std::string broken = folder(70, 2, true);
  IterableDataset strict({.dataset_id = broken}, bytes());
  EXPECT_EQ(error_of([&] {
              while (strict.next()) {
              }
            }),
            "[dataset] s/f0.jsonl row 6: expected a string in 'response', got number 5");
  // Rows around a bad one are not lost.
  IterableDataset on({.dataset_id = broken}, bytes());
  int64_t good = 0, errors = 0;
  for (bool more = true; more;) {
    try {
      more = on.next().has_value();
      good += more ? 1 : 0;
    } catch (const Error&) {
      ++errors;
    }
  }
  EXPECT_EQ(good, 60);
  EXPECT_EQ(errors, 10);
  IterableDataset dropping({.dataset_id = broken}, bytes(), {.bad_rows = BadRows::kDrop});
  int64_t count = 0;
  while (dropping.next()) ++count;
  EXPECT_EQ(count, 60);
  EXPECT_EQ(dropping.num_dropped(), 10);
  dropping.rewind();
  while (dropping.next()) ++count;
  EXPECT_EQ(count, 120);
  EXPECT_EQ(dropping.num_dropped(), 10);
  EXPECT_EQ(error_of([&] { dropping.restore({{"file", 0}, {"row", 99}, {"given", 0}}); }),
            "[dataset] the state of the stream names row 99 of a file of 35");
  IterableDataset filtered({.dataset_id = folder(100, 3)}, bytes());
  filtered.filter([](const Row& row) { return row.at("query").get<std::string>().ends_with("5"); });
  count = 0;
  while (filtered.next()) ++count;
  EXPECT_EQ(count, 10);
  EXPECT_EQ(error_of([&] { IterableDataset({.dataset_id = broken, .slice = "0:3"}, bytes()); }),
            "[dataset] IterableDataset has no data_slice: its length is not known");
  EXPECT_EQ(error_of([&] {
              IterableDataset({.dataset_id = broken, .split = "test"}, bytes());
            }).find("[dataset] IterableDataset reads files: "),
            0u);
}

TEST_F(StreamsTest, EveryKindResumesAtEveryPosition) {
  const std::string path = folder(60, 2, true);
  const auto lazy = std::make_shared<LazyDataset>(Dataset({path}), bytes());
  expect_resumable([&] { return DataLoader(lazy, {.batch_size = 7, .seed = 3, .bad_rows = BadRows::kDrop}); },
                   20);
  expect_resumable(
      [&] {
        return DataLoader(lazy, {.batch_size = 7, .seed = 3, .num_workers = 2, .bad_rows = BadRows::kDrop});
      },
      20);
  const auto packed = [&] {
    Dataset data({path});
    data.encode(*bytes(), BadRows::kDrop);
    return std::make_shared<PackingDataset>(data.take_features(), PackingOptions{.max_length = 16});
  }();
  expect_resumable([&] { return DataLoader(packed, {.batch_size = 3, .seed = 3}); }, 30);
  const auto stream = [&] {
    return std::make_unique<IterableDataset>(DatasetMeta{.dataset_id = path}, bytes(),
                                             IterableOptions{.bad_rows = BadRows::kDrop, .chunk = 5});
  };
  expect_resumable([&] { return DataLoader(stream(), {.batch_size = 4}); }, 30);
  expect_resumable(
      [&] {
        return DataLoader(std::make_unique<IterablePackingDataset>(
                              stream(), StreamPackingOptions{.max_length = 16, .packing_interval = 9}),
                          {.batch_size = 2});
      },
      25);
  const auto generator = [] {
    return [n = 0]() mutable -> std::optional<Row> {
      if (n == 33) return std::nullopt;
      return Row{{"query", "q" + std::to_string(n++)}, {"response", "r"}};
    };
  };
  expect_resumable(
      [&] {
        return DataLoader(std::make_unique<IterableDataset>(generator, bytes(), IterableOptions{.chunk = 4}),
                          {.batch_size = 5});
      },
      20);
}

}  // namespace
}  // namespace twinkle
