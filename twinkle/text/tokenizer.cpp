#include "twinkle/text/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/gguf.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_kind.h"

namespace twinkle {
namespace {

// tokenizer_config.json, with what newer checkpoints keep in files of their own.
Json folder_config(const std::string& folder) {
  Json config = Json::object();
  if (file_exists(folder + "/tokenizer_config.json"))
    config = read_json_file(folder + "/tokenizer_config.json");
  if (!config.is_object()) throw invalid_argument("[" + folder + "/tokenizer_config.json] needs an object");
  if (file_exists(folder + "/chat_template.jinja"))
    config["chat_template"] = read_file(folder + "/chat_template.jinja");
  if (file_exists(folder + "/special_tokens_map.json")) {
    const Json map = read_json_file(folder + "/special_tokens_map.json");
    if (!map.is_object()) throw invalid_argument("[" + folder + "/special_tokens_map.json] needs an object");
    for (const auto& [key, value] : map.items()) {
      if (!config.contains(key) || config[key].is_null()) config[key] = value;
    }
  }
  return config;
}

// tokenizer.model is a name for two things: SentencePiece's protobuf, and lines of base64 and rank.
std::shared_ptr<const Tokenizer> load_other(const std::string& path, Json config) {
  const MappedFile file(path);
  const std::string_view head = file.text().substr(0, 64);
  const bool text = std::all_of(head.begin(), head.end(),
                                [](char c) { return c == '\n' || c == '\r' || (c >= ' ' && c <= '~'); });
  return text ? Tokenizer::from_tiktoken(file.text(), config, path)
              : Tokenizer::from_sentencepiece(file.text(), config, path);
}

bool is_other(std::string_view name) {
  return name.starts_with("tokenizer.model") || name.ends_with(".tiktoken") || name.ends_with(".model") ||
         name.find(".model.v") != std::string_view::npos;
}

}  // namespace

bool is_tokenizer_file(std::string_view name) {
  return name == "tokenizer.json" || name == "vocab.txt" || is_other(name);
}

std::string tokenizer_file_of(const std::string& folder) {
  const auto has = [&](const char* name) { return file_exists(folder + "/" + name); };
  if (has("tokenizer.json")) return "tokenizer.json";
  if (has("vocab.json") && has("merges.txt")) return "vocab.json";
  std::vector<std::string> others;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_other(name)) others.push_back(name);
  }
  if (!others.empty()) return *std::min_element(others.begin(), others.end());
  return has("vocab.txt") ? "vocab.txt" : "";
}

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& path) {
  if (is_directory(path)) {
    const std::string name = tokenizer_file_of(path), file = path + "/" + name;
    if (name.empty()) {
      throw not_found(
          "[tokenizer] " + path +
          " has no tokenizer.json, vocab.json with merges.txt, tokenizer.model, *.tiktoken or vocab.txt");
    }
    if (name == "tokenizer.json") return from_json(read_json_file(file), folder_config(path), file);
    if (name == "vocab.json") return tokenizer::from_vocab_and_merges(path, folder_config(path));
    if (name == "vocab.txt") return tokenizer::from_bert_vocab(file, folder_config(path));
    return load_other(file, folder_config(path));
  }
  if (!file_exists(path)) throw not_found("[tokenizer] no such file or folder: " + path);
  if (path.ends_with(".gguf")) {
    const GgufFile file = GgufFile::open(path);
    return from_gguf_metadata(file.metadata(), path);
  }
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const std::string name = std::filesystem::path(path).filename().string();
  if (is_other(name)) return load_other(path, folder_config(folder));
  if (name.ends_with("vocab.txt")) return tokenizer::from_bert_vocab(path, folder_config(folder));
  return from_json(read_json_file(path), name == "tokenizer.json" ? folder_config(folder) : Json::object(),
                   path);
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json(const Json& json, const Json& tokenizer_config,
                                                      std::string_view where) {
  const std::string root = "[" + std::string(where) + "] ";
  if (!json.is_object())
    throw invalid_argument(root + "needs an object, got " + std::string(json_type_name(json)));
  if (!tokenizer_config.is_object() && !tokenizer_config.is_null()) {
    throw invalid_argument(root + "tokenizer_config: needs an object, got " +
                           std::string(json_type_name(tokenizer_config)));
  }
  constexpr std::string_view kKeys[] = {"version",        "truncation", "padding",
                                        "added_tokens",   "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",    "model"};
  Json parts = Json::object();
  for (const auto& [key, value] : json.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      throw invalid_argument(root + "unknown key \"" + key + "\"");
    }
    if (key != "model") parts[key] = value;
  }
  if (const auto version = json.find("version"); version != json.end() && *version != "1.0") {
    throw invalid_argument(root + "version: needs \"1.0\", got " + version->dump());
  }
  const auto model = json.find("model");
  if (model == json.end()) throw invalid_argument(root + "model: is missing");
  return tokenizer::make_tokenizer(std::move(parts), tokenizer::parse_model(*model, root + "model"),
                                   tokenizer_config, where);
}

namespace {

class WholeAtEnd : public DecodeStream {
 public:
  WholeAtEnd(const Tokenizer& tokenizer, bool skip) : tokenizer_(tokenizer), skip_(skip) {}
  std::string push(int32_t id) override {
    ids_.push_back(id);
    return {};
  }
  std::string finish() override { return tokenizer_.decode(ids_, skip_); }

 private:
  const Tokenizer& tokenizer_;
  bool skip_;
  std::vector<int32_t> ids_;
};

}  // namespace

std::unique_ptr<DecodeStream> Tokenizer::start_decoding(bool skip_special_tokens) const {
  return std::make_unique<WholeAtEnd>(*this, skip_special_tokens);
}

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), stream_(tokenizer_->start_decoding(skip_special_tokens)) {}

std::string StreamDecoder::push(int32_t id) { return stream_->push(id); }

std::string StreamDecoder::finish() { return stream_->finish(); }

}  // namespace twinkle
