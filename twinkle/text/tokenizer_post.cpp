#include "twinkle/text/tokenizer_post.h"

#include <algorithm>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

constexpr char32_t kSpaceChar = 0x120;  // the character that stands for the byte of a space
constexpr int32_t kSequence = -1;

int32_t pair_id(Fields& fields, std::string_view key, int32_t end_id) {
  const Json& pair = fields.list(key);
  if (pair.size() != 2 || !pair[0].is_string()) fields.fail(key, "needs [token, id]");
  return static_cast<int32_t>(integer_value(pair[1], 0, end_id - 1, fields.at(key) + "[1]"));
}

using SpecialTokens = std::map<std::string, std::vector<int32_t>>;

SpecialTokens parse_special_tokens(Fields& fields, int32_t end_id) {
  SpecialTokens special;
  const Json* object = fields.find("special_tokens");
  if (object == nullptr) return special;
  const std::string path = fields.at("special_tokens");
  if (!object->is_object()) throw invalid_argument(path + ": needs an object");
  for (const auto& [name, value] : object->items()) {
    Fields one(value, path + "[\"" + name + "\"]");
    one.ignore("tokens");
    one.ignore("id");
    size_t i = 0;
    for (const Json& id : one.list("ids")) {
      special[name].push_back(static_cast<int32_t>(
          integer_value(id, 0, end_id - 1, one.at("ids") + "[" + std::to_string(i++) + "]")));
    }
    one.done();
  }
  return special;
}

std::vector<int32_t> parse_template(Fields& fields, const SpecialTokens& special) {
  std::vector<int32_t> items;
  size_t i = 0;
  for (const Json& item : fields.list("single")) {
    Fields outer(item, fields.at("single") + "[" + std::to_string(i++) + "]");
    if (outer.has("SpecialToken")) {
      Fields token(outer.need("SpecialToken"), outer.at("SpecialToken"));
      const std::string name = token.string("id");
      token.integer("type_id", 0, UINT32_MAX);
      token.done();
      const auto it = special.find(name);
      if (it == special.end()) token.fail("id", "\"" + name + "\" is not among special_tokens");
      items.insert(items.end(), it->second.begin(), it->second.end());
    } else if (outer.has("Sequence")) {
      Fields sequence(outer.need("Sequence"), outer.at("Sequence"));
      const std::string name = sequence.string("id");
      if (name != "A")
        sequence.fail("id", "needs \"A\" in a template for one sequence, got \"" + name + "\"");
      sequence.integer("type_id", 0, UINT32_MAX);
      sequence.done();
      items.push_back(kSequence);
    } else {
      throw invalid_argument(outer.path() + ": needs \"SpecialToken\" or \"Sequence\"");
    }
    outer.done();
  }
  if (std::count(items.begin(), items.end(), kSequence) > 1)
    fields.fail("single", "has the sequence more than once");
  return items;
}

// A character that covers several bytes of a token, or several characters that come from one, move by
// characters of the text, as in the package.
void trim(std::string_view text, const std::vector<int32_t>& ids,
          std::vector<std::pair<int64_t, int64_t>>& offsets, bool prefix_space,
          const std::function<std::string(int32_t)>& token_text) {
  const auto blank = [](char32_t c) { return c == kSpaceChar || unicode::is_space(c); };
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string token = token_text(ids[i]);
    int lead = 0, trail = 0;
    for (size_t at = 0; at < token.size() && blank(unicode::char_at(token, at));
         at += unicode::char_bytes(token[at]))
      ++lead;
    for (size_t end = token.size(); end > 0;) {
      end = unicode::previous(token, end);
      if (!blank(unicode::char_at(token, end))) break;
      ++trail;
    }
    auto& [begin, end] = offsets[i];
    // One leading blank of the first token is the one that add_prefix_space put there.
    if ((i == 0 || begin == 0) && prefix_space && lead == 1) lead = 0;
    for (; lead > 0 && begin < end; --lead)
      begin += static_cast<int64_t>(unicode::char_bytes(text[static_cast<size_t>(begin)]));
    for (; trail > 0 && end > begin; --trail)
      end = static_cast<int64_t>(unicode::previous(text, static_cast<size_t>(end)));
  }
}

}  // namespace

PostProcessor PostProcessor::parse(const Json& value, const std::string& path, int32_t end_id) {
  PostProcessor made;
  if (!value.is_null()) parse_into(value, path, end_id, made.steps_);
  return made;
}

void PostProcessor::parse_into(const Json& value, const std::string& path, int32_t end_id,
                               std::vector<Step>& steps) {
  const std::string type = component_type(value, path);
  Fields fields(value, path);
  fields.ignore("type");
  Step step;
  if (type == "ByteLevel") {
    step.prefix_space = fields.boolean_or("add_prefix_space", true);
    step.trims = fields.boolean_or("trim_offsets", true);
    fields.boolean_or("use_regex", true);
  } else if (type == "TemplateProcessing") {
    const SpecialTokens special = parse_special_tokens(fields, end_id);
    step.items = parse_template(fields, special);
    step.has_template = true;
    fields.ignore("pair");
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const int32_t sep = pair_id(fields, "sep", end_id), cls = pair_id(fields, "cls", end_id);
    step.items = {cls, kSequence, sep};
    step.has_template = true;
    if (type == "RobertaProcessing") {
      step.trims = fields.boolean_or("trim_offsets", true);
      step.prefix_space = fields.boolean_or("add_prefix_space", true);
    }
  } else if (type == "Sequence") {
    size_t i = 0;
    for (const Json& one : fields.list("processors")) {
      parse_into(one, fields.at("processors") + "[" + std::to_string(i++) + "]", end_id, steps);
    }
    fields.done();
    return;
  } else {
    throw invalid_argument(path + ".type: unknown post-processor \"" + type + "\"");
  }
  fields.done();
  steps.push_back(std::move(step));
}

Json PostProcessor::without_templates(const Json& value) {
  Json out = Json::array();
  const auto type = value.is_object() ? value.find("type") : value.end();
  if (type == value.end() || !type->is_string()) return out;
  if (*type == "Sequence") {
    if (const auto steps = value.find("processors"); steps != value.end() && steps->is_array()) {
      for (const Json& step : *steps) {
        for (Json& kept : without_templates(step)) out.push_back(std::move(kept));
      }
    }
  } else if (*type == "ByteLevel") {
    out.push_back(value);
  }
  return out;
}

void PostProcessor::add_special(std::vector<int32_t>& ids) const {
  std::vector<int32_t> out;
  for (const Step& step : steps_) {
    if (!step.has_template) continue;
    out.clear();
    for (const int32_t item : step.items) {
      if (item == kSequence) {
        out.insert(out.end(), ids.begin(), ids.end());
      } else {
        out.push_back(item);
      }
    }
    ids.swap(out);
  }
}

void PostProcessor::apply(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<std::pair<int64_t, int64_t>>& offsets, bool add_special,
                          const std::function<std::string(int32_t)>& token_text) const {
  for (const Step& step : steps_) {
    if (step.trims) trim(text, ids, offsets, step.prefix_space, token_text);
    if (!step.has_template || !add_special) continue;
    std::vector<int32_t> new_ids;
    std::vector<std::pair<int64_t, int64_t>> new_offsets;
    for (const int32_t item : step.items) {
      if (item == kSequence) {
        new_ids.insert(new_ids.end(), ids.begin(), ids.end());
        new_offsets.insert(new_offsets.end(), offsets.begin(), offsets.end());
      } else {
        new_ids.push_back(item);
        new_offsets.emplace_back(0, 0);
      }
    }
    ids.swap(new_ids);
    offsets.swap(new_offsets);
  }
}

}  // namespace twinkle::tokenizer
