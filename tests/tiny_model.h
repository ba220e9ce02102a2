// A tiny chat model on disk for tests: a two-layer Llama with a byte-level tokenizer and a ChatML template,
// made here, so that tests of whole programs need nothing from outside.
#pragma once

#include <string>
#include <vector>

#include "tests/temp_dir.h"
#include "twinkle/core/json.h"

namespace twinkle::test {

inline Json tiny_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 259},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"initializer_range", 0.05},
          {"bos_token_id", 256},
          {"eos_token_id", 258},
          {"tie_word_embeddings", true}};
}

// GPT-2's alphabet: bytes that print stand for themselves, the others for code points from 256 up.
inline std::string byte_symbol(int byte) {
  static const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

/// A tokenizer.json whose ids are the bytes, then the given control tokens, then words that are one token.
inline Json byte_tokenizer(const std::vector<std::string>& control,
                           const std::vector<std::string>& words = {}) {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[byte_symbol(b)] = b;
  Json added = Json::array();
  const auto add = [&](const std::string& text, bool special) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  };
  for (const auto& text : control) add(text, true);
  for (const auto& text : words) add(text, false);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

inline Json tiny_tokenizer() { return byte_tokenizer({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}); }

inline Json tiny_tokenizer_config() {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", "<|endoftext|>"},
          {"eos_token", "<|im_end|>"},
          {"chat_template",
           "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
           "'<|im_end|>' + '\n' }}"
           "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"}};
}

/// The folder without weights: what `--init random` starts from.
inline void write_tiny_model(const std::string& directory) {
  write_text(directory + "/config.json", tiny_config().dump(2));
  write_text(directory + "/tokenizer.json", tiny_tokenizer().dump());
  write_text(directory + "/tokenizer_config.json", tiny_tokenizer_config().dump(2));
}

}  // namespace twinkle::test
