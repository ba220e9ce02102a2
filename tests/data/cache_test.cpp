// Encoded rows on disk: taken when everything is the same, and never otherwise.
#include "tests/data/data_testing.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

class CacheTest : public DataFolderTest {
 protected:
  // Whether the rows were taken from the cache; what they are is compared with a run without.
  bool taken(const std::string& path, const Template& tmpl,
             const std::string& preprocessor = "QueryResponseProcessor",
             const std::function<void(Dataset&)>& edit = nullptr) {
    Dataset plain({path}), cached({path});
    for (Dataset* data : {&plain, &cached}) {
      if (edit) edit(*data);
      data->map(preprocessor);
    }
    plain.encode(tmpl, BadRows::kDrop);
    cached.encode(tmpl, BadRows::kDrop, in_dir("cache"));
    EXPECT_EQ(plain.features().size(), cached.features().size());
    for (size_t i = 0; i < plain.features().size(); ++i) {
      EXPECT_EQ(plain.features()[i].input_ids, cached.features()[i].input_ids);
      EXPECT_EQ(plain.features()[i].labels, cached.features()[i].labels);
      EXPECT_EQ(plain.features()[i].weights, cached.features()[i].weights);
      EXPECT_EQ(plain.features()[i].origin, cached.features()[i].origin);
    }
    EXPECT_EQ(plain.feature_rows(), cached.feature_rows());
    EXPECT_EQ(plain.dropped().size(), cached.dropped().size());
    for (size_t i = 0; i < std::min(plain.dropped().size(), cached.dropped().size()); ++i)
      EXPECT_EQ(plain.dropped()[i].reason, cached.dropped()[i].reason);
    for (const auto& note : cached.notes()) {
      if (note.starts_with("encoded rows taken")) return true;
    }
    return false;
  }
};

TEST_F(CacheTest, IsUsedForTheSameAndForNothingElse) {
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/minimind"));
  const auto tmpl = [&](TemplateOptions options = {}) { return make_template("", tokenizer, options); };
  const std::string a = write("a.jsonl",
                              "{\"query\":\"q\",\"response\":\"r\"}\n{\"query\":\"q\",\"response\":5}\n{"
                              "\"query\":\"x\",\"response\":\"yes\"}\n");
  EXPECT_FALSE(taken(a, *tmpl()));
  EXPECT_TRUE(taken(a, *tmpl()));
  EXPECT_FALSE(taken(a, *tmpl({.max_length = 100})));
  EXPECT_FALSE(taken(a, *tmpl({.default_system = "Be brief."})));
  EXPECT_FALSE(taken(a, *tmpl({.loss_scale = "all"})));
  EXPECT_FALSE(taken(a, *tmpl({.chat_template = "{% for m in messages %}{{ m.content }};{% endfor %}"})));
  EXPECT_FALSE(
      taken(a, *tmpl(), "QueryResponseProcessor", [](Dataset& d) { d.cast_column("query", "string"); }));
  EXPECT_FALSE(taken(a, *tmpl(), "QueryResponseProcessor",
                     [](Dataset& d) { d.filter([](const Row& row) { return row.at("query") == "q"; }); }));
  const std::string b = write("b.jsonl",
                              "{\"query\":\"q\",\"response\":\"r\"}\n{\"query\":\"q\",\"response\":5}\n{"
                              "\"query\":\"x\",\"response\":\"no!\"}\n");
  EXPECT_FALSE(taken(b, *tmpl()));
  EXPECT_TRUE(taken(a, *tmpl()));
  // The same rows under another name.
  EXPECT_TRUE(taken(write("c.jsonl", read_file(a)), *tmpl()));
}

// The same bytes are other rows under other columns, another separator, or as text.
TEST_F(CacheTest, WhatMakesARowOfBytesCounts) {
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/minimind"));
  const auto tmpl = make_template("", tokenizer),
             plain = make_template("", tokenizer, {.use_chat_template = false});
  const auto encoded = [&](const DatasetMeta& meta, std::string* hash) {
    Dataset data(meta);
    *hash = data.content_hash();
    const bool text = data.row(0).contains("text");
    data.map(text ? "TextProcessor" : "QueryResponseProcessor");
    data.encode(text ? *plain : *tmpl, BadRows::kRaise, in_dir("cache"));
    const bool taken = !data.notes().empty() && data.notes().back().starts_with("encoded rows taken");
    return std::pair(taken, data.features()[0].input_ids);
  };
  std::string ask, swapped, again;
  const auto [first, ids] = encoded({write("a.csv", "query,response\nAsk,Answer\n")}, &ask);
  const auto [second, other] = encoded({write("b.csv", "response,query\nAsk,Answer\n")}, &swapped);
  EXPECT_FALSE(first);
  EXPECT_FALSE(second);
  EXPECT_NE(ids, other);
  EXPECT_NE(ask, swapped);
  // The same row by columns that are named, and by a header elsewhere.
  DatasetMeta named{.dataset_id = write("c.csv", "Ask,Answer\n"), .columns = {"query", "response"}};
  EXPECT_TRUE(encoded(named, &again).first);
  EXPECT_EQ(again, ask);
  named.columns = {"response", "query"};
  EXPECT_EQ(encoded(named, &again), std::pair(true, other));
  EXPECT_EQ(again, swapped);
  // A comma and a tab cut the same bytes otherwise.
  DatasetMeta line{.dataset_id = write("d.csv", "a,b\tc,d\n"), .columns = {"query", "response", "x"}};
  EXPECT_EQ(encoded(line, &ask).first, false);
  line = {.dataset_id = write("d.tsv", "a,b\tc,d\n"), .columns = {"query", "response"}};
  EXPECT_EQ(encoded(line, &swapped).first, false);
  EXPECT_NE(ask, swapped);
  // Text that spells a row.
  const std::string json = "{\"text\": \"hello there\"}\n";
  EXPECT_FALSE(encoded({.dataset_id = write("e.jsonl", json)}, &ask).first);
  EXPECT_FALSE(encoded({.dataset_id = write("e.txt", json), .text_split = "line"}, &swapped).first);
  EXPECT_NE(ask, swapped);
}

TEST_F(CacheTest, ATemplateThatAsksForTheTimeIsNotKept) {
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/minimind"));
  const std::string source =
      "{% if not day is defined %}{% set day = strftime_now('%d %H:%M:%S') %}{% endif %}{{ day }}\n"
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  const std::string a = write("a.jsonl", "{\"query\":\"q\",\"response\":\"r\"}\n");
  const auto notes = [&](Json variables) {
    Dataset data({a});
    data.map("QueryResponseProcessor");
    data.encode(*make_template("", tokenizer,
                               {.chat_template = source, .chat_template_kwargs = std::move(variables)}),
                BadRows::kRaise, in_dir("cache"));
    return data.notes();
  };
  const std::vector<std::string> not_kept = {"encoded rows are not kept in '" + in_dir("cache") +
                                             "': the chat template asks for the time"};
  EXPECT_EQ(notes(nullptr), not_kept);
  EXPECT_EQ(notes(nullptr), not_kept);
  EXPECT_FALSE(std::filesystem::exists(in_dir("cache")));
  // A day that is given asks for nothing.
  EXPECT_EQ(notes({{"day", "today"}}), std::vector<std::string>());
  EXPECT_EQ(notes({{"day", "today"}}),
            std::vector<std::string>{"encoded rows taken from '" + in_dir("cache") + "'"});
}

TEST_F(CacheTest, DamagedFilesAndOwnFunctionsAreEncodedAnew) {
  const auto tmpl = make_template("", Tokenizer::load(test_data("tokenizers/minimind")), {});
  const std::string a = write("a.jsonl", "{\"query\":\"q\",\"response\":\"r\"}\n");
  EXPECT_FALSE(taken(a, *tmpl));
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(in_dir("cache"))) file = entry.path().string();
  const std::string whole = read_file(file);
  for (const size_t at : {size_t{3}, size_t{30}, size_t{100}, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file_atomic(file, damaged);
    EXPECT_FALSE(taken(a, *tmpl)) << at;
    EXPECT_TRUE(taken(a, *tmpl)) << at;  // written anew
  }
  write_file_atomic(file, whole.substr(0, whole.size() / 2));
  EXPECT_FALSE(taken(a, *tmpl));
  Dataset own({a});
  own.map([](const Row&) -> Trajectory {
    return {.messages = {{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"content", "y"}}}};
  });
  own.encode(*tmpl, BadRows::kRaise, in_dir("cache"));
  for (const auto& note : own.notes()) EXPECT_EQ(note.find("encoded rows"), std::string::npos);
}

}  // namespace
}  // namespace twinkle
