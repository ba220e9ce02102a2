#include "twinkle/text/tokenizer_engine.h"

#include <algorithm>
#include <optional>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

constexpr size_t kMaxInput = UINT32_MAX - 1;

void check_size(std::string_view text) {
  if (text.size() > kMaxInput) {
    throw exhausted("[tokenizer] a text of " + std::to_string(text.size()) +
                    " bytes; at most 4 GiB can be encoded at once");
  }
}

// A text as UTF-8, with the ranges that belong to it.
class Repaired {
 public:
  Repaired(std::string_view text, std::span<const TextSpan> literal) : text_(text), literal_(literal) {
    if (unicode::is_valid(text)) return;
    repaired_ = unicode::replace_invalid(text, &source_);
    check_size(repaired_);
    text_ = repaired_;
    for (const TextSpan& span : literal) moved_.push_back({place_of(span.begin), place_of(span.end)});
    literal_ = moved_;
  }
  Repaired(const Repaired&) = delete;
  Repaired& operator=(const Repaired&) = delete;

  std::string_view text() const { return text_; }
  std::span<const TextSpan> literal() const { return literal_; }
  /// Where a place of the text is in the text as given.
  int64_t source(int64_t at) const {
    return source_.empty() ? at : static_cast<int64_t>(source_[static_cast<size_t>(at)]);
  }

 private:
  int64_t place_of(int64_t at) const {
    return std::lower_bound(source_.begin(), source_.end(), static_cast<size_t>(at)) - source_.begin();
  }
  std::string_view text_;
  std::span<const TextSpan> literal_;
  std::string repaired_;
  std::vector<size_t> source_;
  std::vector<TextSpan> moved_;
};

template <class T>
void cut_to(std::vector<T>& list, size_t most, bool left) {
  if (list.size() <= most) return;
  if (left) {
    list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(most));
  } else {
    list.resize(most);
  }
}

}  // namespace

Engine::Engine(Json parts, std::unique_ptr<const Model> model, Json config, std::string_view where)
    : where_(where), parts_(std::move(parts)), config_(std::move(config)), model_(std::move(model)) {
  const std::string root = "[" + where_ + "] ";
  Json empty;
  const auto part = [&](const char* key) -> const Json& {
    const auto it = parts_.find(key);
    return it == parts_.end() ? empty : *it;
  };
  normalizer_ = model_->make_normalizer();
  if (normalizer_ == nullptr) {
    normalizer_ = parse_normalizer(part("normalizer"), root + "normalizer");
    steps_ = parse_pre_tokenizer(part("pre_tokenizer"), root + "pre_tokenizer");
  }
  decoder_ = DecoderChain::parse(part("decoder"), root + "decoder");
  added_.build(parse_added_tokens(part("added_tokens"), root + "added_tokens"), *model_, normalizer_.get());
  for (int32_t id = 0; id < model_->vocab().end_id(); ++id) {
    if (!added_.is_special(id) || !model_->vocab().has(id)) continue;
    spelled_.resize(static_cast<size_t>(id) + 1);
    spelled_.back() = true;
  }
  size_ = std::max(model_->vocab().end_id(), added_.end_id());
  if (size_ == 0) throw invalid_argument(root + "model.vocab: is empty");
  if (!config_.is_object()) config_ = Json::object();
  bos_ = config_id("bos_token");
  eos_ = config_id("eos_token");
  pad_ = config_id("pad_token");
  post_ = PostProcessor::parse(part("post_processor"), root + "post_processor", static_cast<int32_t>(size_));
  apply_bos_eos_rules();
  parts_.erase("added_tokens");
  only_cuts_ = true;
  for (size_t i = 0; i < steps_.size(); ++i) {
    only_cuts_ = only_cuts_ && steps_[i]->only_cuts();
    needs_origin_ = needs_origin_ || steps_[i]->needs_origin();
    if (!steps_[i]->maps_bytes()) continue;
    if (i + 1 == steps_.size() && model_->takes_bytes()) {
      maps_bytes_ = true;
    } else {
      only_cuts_ = false;
    }
  }
}

// As in transformers: add_bos_token and add_eos_token of the config win over what the post-processor adds.
void Engine::apply_bos_eos_rules() {
  const auto flag = [this](const char* key) {
    const auto it = config_.find(key);
    return it != config_.end() && it->is_boolean() ? std::optional<bool>(it->get<bool>()) : std::nullopt;
  };
  const auto bos = flag("add_bos_token"), eos = flag("add_eos_token");
  if (!bos && !eos) return;
  std::vector<int32_t> want, have;
  std::vector<NamedId> before, after;
  if (bos.value_or(false) && bos_ >= 0) before.emplace_back(id_to_token(bos_), bos_);
  if (eos.value_or(false) && eos_ >= 0) after.emplace_back(id_to_token(eos_), eos_);
  for (const auto& list : {before, after}) {
    for (const auto& [text, id] : list) want.push_back(id);
  }
  post_.add_special(have);
  if (want == have) return;
  Json steps =
      PostProcessor::without_templates(parts_.contains("post_processor") ? parts_["post_processor"] : Json());
  if (!want.empty()) steps.push_back(template_processor(before, after));
  parts_["post_processor"] = steps.empty()       ? Json()
                             : steps.size() == 1 ? Json(steps[0])
                                                 : sequence("processors", steps);
  post_ = PostProcessor::parse(parts_["post_processor"], "[" + where_ + "] post_processor",
                               static_cast<int32_t>(size_));
}

// How many ids of the text itself may stay.
size_t Engine::room(const EncodeOptions& options) const {
  if (options.max_length == 0) return SIZE_MAX;
  std::vector<int32_t> added;
  if (options.add_special_tokens) post_.add_special(added);
  if (options.max_length < static_cast<int64_t>(added.size())) {
    throw invalid_argument("[tokenizer] max_length " + std::to_string(options.max_length) +
                           " is less than the " + std::to_string(added.size()) +
                           " special tokens around a text");
  }
  return static_cast<size_t>(options.max_length) - added.size();
}

int32_t Engine::config_id(const char* key) const {
  const auto it = config_.find(key);
  if (it == config_.end()) return -1;
  if (it->is_string()) return token_to_id(it->get_ref<const std::string&>());
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
    return token_to_id((*it)["content"].get_ref<const std::string&>());
  }
  return -1;
}

void Engine::check_id(int32_t id) const {
  if (id < 0 || id >= size_) {
    throw invalid_argument("[tokenizer] id " + std::to_string(id) + " is outside the vocabulary of " +
                           std::to_string(size_));
  }
}

std::vector<int32_t> Engine::encode(std::string_view text, const EncodeOptions& options) const {
  check_size(text);
  const size_t most = room(options);
  std::vector<int32_t> ids;
  const Repaired repaired(text, options.literal);
  const SpecialRule rule{!options.parse_special, repaired.literal()};
  if (!encode_ids(repaired.text(), rule, ids)) {
    Encoding encoding;
    encode_tracked(repaired.text(), rule, encoding);
    ids = std::move(encoding.ids);
  }
  cut_to(ids, most, options.truncate_left);
  if (options.add_special_tokens) post_.add_special(ids);
  return ids;
}

// Whether the model gave a special token that a text spells: the token of the unknown stands for other text.
bool Engine::has_spelled(std::string_view text, const std::vector<int32_t>& ids, size_t from) const {
  std::vector<int32_t> absent;  // each is looked for once
  for (size_t i = from; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    if (id >= spelled_.size() || !spelled_[id]) continue;
    if (std::find(absent.begin(), absent.end(), ids[i]) != absent.end()) continue;
    if (maps_bytes_ || text.find(model_->vocab().text_of(ids[i])) != std::string_view::npos) return true;
    absent.push_back(ids[i]);
  }
  return false;
}

// False when the model itself gave a special token and some are not allowed: then encode_tracked must find
// out where it stands.
bool Engine::encode_ids(std::string_view text, const SpecialRule& rule, std::vector<int32_t>& out) const {
  bool special = false;
  bool* const watch = rule.literal.empty() || spelled_.empty() ? nullptr : &special;
  if (needs_origin_) {
    piece_ids(pieces_of(text, rule, true), out, watch);
    return !special;
  }
  if (!added_.any(false)) {
    segment_ids(text, 0, rule, out, watch);
    return !special;
  }
  std::vector<AddedTokens::Part> parts;
  added_.cut(text, {}, false, rule, parts);
  for (const auto& part : parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      segment_ids(text.substr(part.range.begin, part.range.end - part.range.begin), part.range.begin, rule,
                  out, watch);
    }
  }
  return !special;
}

void Engine::segment_ids(std::string_view text, size_t origin, const SpecialRule& rule,
                         std::vector<int32_t>& out, bool* special) const {
  TrackedText normal;
  Place place{.start = origin};
  if (normalizer_ != nullptr && !normalizer_->leaves(text)) {
    normal = TrackedText(text, origin, !rule.literal.empty() && added_.normalizes_special());
    normalizer_->apply(normal);
    text = normal.bytes();
    place.tracked = &normal;
  }
  if (!added_.any(true)) {
    plain_ids(text, out, special);
    return;
  }
  std::vector<AddedTokens::Part> parts;
  added_.cut(text, place, true, rule, parts);
  for (const auto& part : parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      plain_ids(text.substr(part.range.begin, part.range.end - part.range.begin), out, special);
    }
  }
}

void Engine::plain_ids(std::string_view text, std::vector<int32_t>& out, bool* special) const {
  if (text.empty()) return;
  if (!only_cuts_) {
    std::vector<Piece> pieces;
    pieces.push_back({TrackedText(text, 0, false), -1});
    for (const auto& step : steps_) step->apply(pieces);
    piece_ids(pieces, out, special);
    return;
  }
  std::vector<Range> ranges = {{0, text.size()}}, next, inner;
  for (const auto& step : steps_) {
    if (ranges.size() == 1) {
      next.clear();
      const size_t shift = ranges[0].begin;
      step->ranges(text.substr(shift, ranges[0].end - shift), next);
      if (shift != 0) {
        for (Range& r : next) r = {r.begin + shift, r.end + shift};
      }
    } else {
      next.clear();
      for (const Range& outer : ranges) {
        inner.clear();
        step->ranges(text.substr(outer.begin, outer.end - outer.begin), inner);
        for (const Range& r : inner) next.push_back({r.begin + outer.begin, r.end + outer.begin});
      }
    }
    ranges.swap(next);
  }
  out.reserve(out.size() + ranges.size());
  const size_t before = out.size();
  for (const Range& r : ranges) {
    const std::string_view piece = text.substr(r.begin, r.end - r.begin);
    if (maps_bytes_) {
      model_->byte_ids(piece, out);
    } else {
      model_->ids(piece, out);
    }
  }
  if (special != nullptr && has_spelled(text, out, before)) *special = true;
}

void Engine::piece_ids(const std::vector<Piece>& pieces, std::vector<int32_t>& out, bool* special) const {
  for (const Piece& piece : pieces) {
    if (piece.token >= 0) {
      out.push_back(piece.token);
      continue;
    }
    const size_t before = out.size();
    model_->ids(piece.text.bytes(), out);
    if (special != nullptr && has_spelled(piece.text.bytes(), out, before)) *special = true;
  }
}

std::vector<Piece> Engine::pieces_of(std::string_view text, const SpecialRule& rule, bool tracked) const {
  std::vector<Piece> pieces;
  std::vector<AddedTokens::Part> outer, inner;
  added_.cut(text, {}, false, rule, outer);
  for (const auto& part : outer) {
    TrackedText segment(text.substr(part.range.begin, part.range.end - part.range.begin), part.range.begin,
                        tracked);
    if (part.id >= 0) {
      pieces.push_back({std::move(segment), part.id});
      continue;
    }
    if (normalizer_ != nullptr) normalizer_->apply(segment);
    inner.clear();
    added_.cut(segment.bytes(), {.tracked = &segment}, true, rule, inner);
    for (const auto& p : inner) pieces.push_back({segment.slice(p.range.begin, p.range.end), p.id});
  }
  for (const auto& step : steps_) step->apply(pieces);
  return pieces;
}

void Engine::encode_tracked(std::string_view text, const SpecialRule& rule, Encoding& out) const {
  const bool watch = !rule.literal.empty() && !spelled_.empty();
  const TrackedText* piece = nullptr;
  const Refused refused = [&](int32_t id, size_t begin, size_t end) {
    if (static_cast<size_t>(id) >= spelled_.size() || !spelled_[static_cast<size_t>(id)]) return false;
    // The token of the unknown stands for other text, but may have taken in its own spelling.
    const std::string_view part = std::string_view(piece->bytes()).substr(begin, end - begin);
    return part.find(model_->vocab().text_of(id)) != std::string_view::npos &&
           rule.touches(piece->bytes(), {begin, end}, {.tracked = piece});
  };
  std::vector<Token> tokens;
  for (const Piece& part : pieces_of(text, rule, true)) {
    piece = &part.text;
    if (part.token >= 0) {
      out.ids.push_back(part.token);
      out.offsets.push_back(piece->origin(0, piece->bytes().size()));
      continue;
    }
    tokens.clear();
    model_->tokenize(piece->bytes(), tokens);
    if (watch && std::any_of(tokens.begin(), tokens.end(),
                             [&](const Token& t) { return refused(t.id, t.begin, t.end); })) {
      tokens.clear();
      model_->tokenize_without(piece->bytes(), refused, tokens);
    }
    for (const Token& token : tokens) {
      out.ids.push_back(token.id);
      out.offsets.push_back(piece->origin(token.begin, token.end));
    }
  }
}

Encoding Engine::encode_with_offsets(std::string_view text, const EncodeOptions& options) const {
  check_size(text);
  const size_t most = room(options);
  Encoding encoding;
  const Repaired repaired(text, options.literal);
  encode_tracked(repaired.text(), {!options.parse_special, repaired.literal()}, encoding);
  cut_to(encoding.ids, most, options.truncate_left);
  cut_to(encoding.offsets, most, options.truncate_left);
  post_.apply(repaired.text(), encoding.ids, encoding.offsets, options.add_special_tokens,
              [this](int32_t id) { return id_to_token(id); });
  for (auto& [begin, end] : encoding.offsets) {
    begin = repaired.source(begin);
    end = repaired.source(end);
  }
  return encoding;
}

std::string Engine::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  for (const int32_t id : ids) check_id(id);
  if (decoder_.is_byte_level()) {
    std::string bytes;
    for (const int32_t id : ids) {
      if (skip_special_tokens && is_special(id)) continue;
      const AddedToken* added = added_.by_id(id);
      const std::string_view token =
          added != nullptr ? std::string_view(added->content) : model_->vocab().text_of(id);
      if (!unmap_bytes(token, bytes)) bytes += token;
    }
    return unicode::is_valid(bytes) ? bytes : unicode::replace_invalid(bytes);
  }
  DecoderChain::Run run(decoder_);
  for (const int32_t id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    if (added_.by_id(id) == nullptr && !model_->vocab().has(id)) continue;  // a gap between ids
    run.push(id_to_token(id));
  }
  run.finish();
  return run.take();
}

class Engine::Stream : public DecodeStream {
 public:
  Stream(const Engine& engine, bool skip) : engine_(engine), run_(engine.decoder_), skip_(skip) {}
  std::string push(int32_t id) override {
    engine_.check_id(id);
    if (skip_ && engine_.is_special(id)) return {};
    if (engine_.added_.by_id(id) == nullptr && !engine_.model_->vocab().has(id)) return {};
    run_.push(engine_.id_to_token(id));
    return run_.take();
  }
  std::string finish() override {
    run_.finish();
    return run_.take();
  }

 private:
  const Engine& engine_;
  DecoderChain::Run run_;
  bool skip_;
};

std::unique_ptr<DecodeStream> Engine::start_decoding(bool skip_special_tokens) const {
  return std::make_unique<Stream>(*this, skip_special_tokens);
}

std::string Engine::token_bytes(int32_t id) const {
  check_id(id);
  if (const AddedToken* added = added_.by_id(id)) return added->content;
  return decoder_.inside(std::string(model_->vocab().text_of(id)));
}

int32_t Engine::token_to_id(std::string_view token) const {
  const int32_t id = added_.find(token);
  return id >= 0 ? id : model_->vocab().find(token);
}

std::string Engine::id_to_token(int32_t id) const {
  check_id(id);
  if (const AddedToken* added = added_.by_id(id)) return added->content;
  return std::string(model_->vocab().text_of(id));
}

Json Engine::to_json() const {
  Json out = {
      {"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added_.to_json()}};
  for (const char* key :
       {"truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    const auto it = parts_.find(key);
    out[key] = it == parts_.end() ? Json() : *it;
  }
  out["model"] = model_->to_json();
  return out;
}

std::shared_ptr<const Tokenizer> make_tokenizer(Json parts, std::unique_ptr<const Model> model, Json config,
                                                std::string_view where) {
  return std::make_shared<Engine>(std::move(parts), std::move(model), std::move(config), where);
}

}  // namespace twinkle::tokenizer
