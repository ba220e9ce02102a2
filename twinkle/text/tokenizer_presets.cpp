// What stands in front of byte-level BPE in the model families that GGUF files name, as the tokenizer.json of
// the model has it. Free functions over constants; thread-safe.
#include <algorithm>
#include <initializer_list>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/tokenizer_pattern.h"

namespace twinkle::tokenizer {
namespace {

constexpr const char* kCjkRun =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+";
constexpr const char* kDeepseekV3Cjk =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
constexpr const char* kDeepseekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// DeepSeek-LLM's own list of letters and of punctuation.
constexpr const char* kDeepseekLlmLetters =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x)"
    R"({295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38)"
    R"(A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF)"
    R"(}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1)"
    R"(D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\)"
    R"(x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{)"
    R"(2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{)"
    R"(A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x)"
    R"({ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-)"
    R"(\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2)"
    R"(}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr const char* kDeepseekLlmPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr const char* kBloomExpression =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
constexpr const char* kBailingExpression =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoderExpression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kAyaDigits = R"(\d{1,3}(?=(?:\d{3})*\b))";

}  // namespace

BytePreset byte_preset(const std::string& name, const std::string& path) {
  const auto one_of = [&name](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  if (one_of({"default",    "gpt-2",       "gpt2",           "phi-2",        "roberta-bpe", "mpt",
              "olmo",       "jais",        "trillion",       "exaone4",      "jina-es",     "jina-de",
              "jina-v1-en", "jina-v2-es",  "jina-v2-de",     "jina-v2-code", "gigachat",    "a.x-4.0",
              "mellum",     "modern-bert", "granite-docling"})) {
    return {Json(), byte_level(true, true)};
  }
  if (one_of(
          {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"})) {
    return {Json(), sequence("pretokenizers", Json::array({digits, byte_level(true, true)}))};
  }
  if (one_of({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
              "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"})) {
    const bool ignore_merges = !one_of({"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"});
    return {Json(), after_splits({split_regex(kLlama3Expression)}), ignore_merges};
  }
  if (one_of({"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "f2llmv2"})) {
    return {{{"type", "NFC"}}, after_splits({split_regex(kQwen2Expression)})};
  }
  if (one_of({"hunyuan", "solar-open", "grok-2"}))
    return {Json(), after_splits({split_regex(kQwen2Expression)})};
  if (name == "qwen35") return {{{"type", "NFC"}}, after_splits({split_regex(kQwen35Expression)})};
  if (one_of({"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}))
    return {Json(), after_splits({split_regex(kO200kExpression)})};
  if (one_of({"tiny_aya", "cohere2moe"}))
    return {Json(), after_splits({split_regex(kAyaDigits), split_regex(kO200kExpression)})};
  if (name == "tekken") return {Json(), after_splits({split_regex(kTekkenExpression)}), true};
  if (name == "kimi-k2") return {Json(), after_splits({split_regex(kKimiExpression)})};
  if (one_of({"bailingmoe", "bailingmoe2", "llada-moe"}))
    return {Json(), after_splits({split_regex(kBailingExpression)})};
  if (name == "seed-coder") return {Json(), after_splits({split_regex(kSeedCoderExpression)})};
  if (name == "deepseek-llm") {
    return {Json(), after_splits({split_regex("[\r\n]"), split_regex(kDeepseekLlmLetters),
                                  split_regex(kDeepseekLlmPunctuation), split_regex("\\s+$"),
                                  split_regex(kCjkRun), digits})};
  }
  if (name == "deepseek-coder") {
    return {Json(), after_splits({split_regex("[\r\n]"), split_regex("\\s?\\p{L}+"),
                                  split_regex("\\s?\\p{P}+"), split_regex(kCjkRun), digits})};
  }
  if (one_of({"deepseek-v3", "deepseek3", "hunyuan-dense", "joyai-llm", "hy_v4"})) {
    return {Json(), after_splits({split_regex("\\p{N}{1,3}"), split_regex(kDeepseekV3Cjk),
                                  split_regex(kDeepseekV3Words)})};
  }
  if (name == "falcon") {
    const Json steps = Json::array({{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                                    byte_level(true, true),
                                    {{"type", "Digits"}, {"individual_digits", false}},
                                    split_regex("[0-9][0-9][0-9]")});
    return {Json(), sequence("pretokenizers", steps)};
  }
  if (one_of({"bloom", "poro-chat", "gpt3-finnish"}))
    return {Json(), after_splits({split_regex(kBloomExpression)})};
  if (name == "viking") return {Json(), after_splits({split_regex(kBloomExpression), digits})};
  throw invalid_argument(
      path + ": unknown pre-tokenizer \"" + name +
      "\" (gpt-2, smollm, llama-bpe, qwen2, qwen35, gpt-4o, tekken, kimi-k2, deepseek-llm, deepseek-coder, "
      "deepseek-v3, falcon, bloom, glm4, ...)");
}

}  // namespace twinkle::tokenizer
