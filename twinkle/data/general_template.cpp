#include "twinkle/data/general_template.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/data/media.h"
#include "twinkle/data/packing.h"

namespace twinkle {
namespace {

std::string place(size_t message) { return "[template] message " + std::to_string(message); }

const std::string* text_content(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? &content->get_ref<const std::string&>() : nullptr;
}

// Weights of many tokens and a scale on top still have a finite sum.
constexpr double kMaxWeight = 1e30;

// Weight of a message's tokens: 1 unless the message says otherwise.
float message_weight(const Json& message, size_t index) {
  double weight = 1;
  for (const char* name : {"loss", "train", "weight"}) {
    const auto it = message.find(name);
    if (it == message.end() || it->is_null()) continue;
    if (it->is_boolean()) {
      weight *= it->get<bool>() ? 1 : 0;
    } else if (it->is_number() && it->get<double>() >= 0 && it->get<double>() <= kMaxWeight) {
      weight *= it->get<double>();
    } else {
      throw invalid_argument(place(index) + ": '" + name +
                             "' must be true, false or a number from 0 to 1e30, got " + it->dump());
    }
  }
  if (weight > kMaxWeight) {
    throw invalid_argument(place(index) +
                           ": its 'loss', 'train' and 'weight' multiplied give more than 1e30; make one of "
                           "them smaller");
  }
  return static_cast<float>(weight);
}

// The list of user_data's key_rounds; nothing when there is none.
std::optional<std::vector<int64_t>> key_rounds(const Json& user_data) {
  if (user_data.is_null()) return std::nullopt;
  if (!user_data.is_array())
    throw invalid_argument("[template] user_data must be a list of [key, json] pairs");
  for (const Json& pair : user_data) {
    if (!pair.is_array() || pair.size() != 2 || pair[0] != "key_rounds") continue;
    const Json list =
        pair[1].is_string() ? parse_json(pair[1].get<std::string>(), "user_data key_rounds") : pair[1];
    if (list.is_null()) return std::nullopt;
    std::vector<int64_t> out;
    if (!list.is_array())
      throw invalid_argument("[template] key_rounds must be a list of message indices, got " + list.dump());
    for (const Json& item : list) {
      if (!item.is_number_integer())
        throw invalid_argument("[template] key_rounds must be a list of message indices, got " + list.dump());
      out.push_back(item.get<int64_t>());
    }
    return out;
  }
  return std::nullopt;
}

// Likewise, where each is an answer of the row.
std::optional<std::vector<int64_t>> chosen_rounds(const Trajectory& trajectory) {
  auto rounds = key_rounds(trajectory.user_data);
  const auto given = static_cast<int64_t>(trajectory.messages.size());
  for (const int64_t round : rounds.value_or(std::vector<int64_t>())) {
    if (round < 0 || round >= given ||
        trajectory.messages[static_cast<size_t>(round)].at("role") != "assistant") {
      throw invalid_argument("[template] key_rounds: message " + std::to_string(round) +
                             " is not an assistant message (of " + std::to_string(given) + " messages)");
    }
  }
  return rounds;
}

std::string strip_newlines(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  while (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

std::string joined_blocks(const Json& blocks, size_t index) {
  std::string out;
  for (const Json& block : blocks) {
    const std::string* text = block_text(block);
    if (text == nullptr) {
      throw invalid_argument(place(index) + ": the chat template takes text only, got a block " +
                             block.dump().substr(0, 100));
    }
    out += *text;
  }
  return out;
}

// A block as the chat template knows it; one that it would pass over is refused.
Json placed_block(const Json& block, const ChatTemplate& chat, size_t index) {
  const std::string kind(block_kind(block));
  if (kind.empty() || (kind != "text" && !chat.accepts(kind))) {
    throw invalid_argument(place(index) + ": the chat template has no place for a block " +
                           block.dump().substr(0, 100));
  }
  return plain_block(block);
}

// No model here sees pictures: their placeholders alone would be trained on.
void refuse_media(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (const std::string media = media_in(messages[i]); !media.empty()) {
      throw invalid_argument(place(i) + ": has " + media +
                             ", and the models trained here read text only; remove it, or the row");
    }
  }
}

void split_thinking(Json* message) {
  const std::string* content = text_content(*message);
  if (content == nullptr) return;
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t begin = content->find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || content->compare(begin, kOpen.size(), kOpen) != 0) return;
  const size_t end = content->find(kClose, begin);
  if (end == std::string::npos) return;
  const std::string reasoning =
      strip_newlines(std::string_view(*content).substr(begin + kOpen.size(), end - begin - kOpen.size()));
  std::string answer = content->substr(end + kClose.size());
  answer.erase(0, std::min(answer.find_first_not_of('\n'), answer.size()));
  (*message)["reasoning_content"] = reasoning;
  (*message)["content"] = answer;
}

InputFeature feature_of(const std::vector<int32_t>& ids, const std::vector<float>& weights) {
  InputFeature out;
  out.input_ids = ids;
  out.labels.assign(ids.size(), kIgnoreIndex);
  std::vector<float> shifted(ids.size(), 0.0f);
  bool uniform = true;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    if (weights[t + 1] == 0) continue;
    out.labels[t] = ids[t + 1];
    shifted[t] = weights[t + 1];
    uniform = uniform && weights[t + 1] == 1;
  }
  if (!uniform) out.weights = std::move(shifted);
  return out;
}

// `first`: what comes before that message is not trained on here.
float turn_weight(const TurnSpan& turn, const Json& messages, const std::vector<float>& weights,
                  int64_t inserted, const std::optional<std::vector<int64_t>>& rounds, const LossScale& scale,
                  size_t first) {
  if (turn.message < 0) {
    const bool plain =
        first == 0 && !rounds && std::all_of(weights.begin(), weights.end(), [](float w) { return w == 1; });
    bool whole = plain;
    for (size_t i = 0; i < messages.size() && whole; ++i)
      whole = messages[i].at("role") != "assistant" || scale.turn(messages, i) == 1;
    if (!whole) {
      throw invalid_argument(
          "[template] a generation block belongs to no message that could be found, so rounds cannot be "
          "chosen");
    }
    return 1;
  }
  if (rounds && std::find(rounds->begin(), rounds->end(), turn.message - inserted) == rounds->end()) return 0;
  const auto message = static_cast<size_t>(turn.message);
  if (message < first) return 0;
  return weights[message] * scale.turn(messages, message);
}

// Where message `first` begins in a rendering, or where the last turn before it ends.
int64_t begin_of(size_t first, const Rendered& rendered, size_t messages,
                 const std::vector<TurnSpan>& turns) {
  if (const auto span = message_spans(rendered, messages)[first]) return span->begin;
  int64_t begin = 0;
  for (const TurnSpan& turn : turns) {
    if (turn.message < static_cast<int64_t>(first)) begin = std::max(begin, turn.text.end);
  }
  return begin;
}

// Weights that messages which are no turns have of their own, where such tokens count at all.
void scale_messages(const Json& messages, const std::vector<float>& own, const Rendered& rendered,
                    const Encoding& encoding, size_t first, std::vector<float>* weights) {
  const auto spans = message_spans(rendered, messages.size());
  for (size_t i = first; i < messages.size(); ++i) {
    if (own[i] == 1 || messages[i].at("role") == "assistant") continue;
    if (!spans[i]) {
      throw invalid_argument(
          place(i) + ": has a weight of its own, but the chat template does not show which tokens are its");
    }
    for (size_t t = 0; t < encoding.offsets.size(); ++t) {
      const int64_t at = encoding.offsets[t].first;
      if (at >= spans[i]->begin && at < spans[i]->end) (*weights)[t] *= own[i];
    }
  }
}

// Weights of the tokens that begin within a turn, by the parts of its text.
void scale_parts(const LossScale& scale, const std::string& text, const Encoding& encoding,
                 const TurnSpan& turn, size_t first, size_t last, std::vector<float>* weights) {
  const auto& [begin, end] = turn.text;
  const auto parts = scale.parts(
      std::string_view(text).substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  size_t part = 0;
  for (size_t t = first; t < last && part < parts.size(); ++t) {
    const int64_t at = encoding.offsets[t].first - begin;
    while (part < parts.size() && at >= static_cast<int64_t>(parts[part].end)) ++part;
    if (part < parts.size() && at >= static_cast<int64_t>(parts[part].begin))
      (*weights)[t] *= parts[part].weight;
  }
}

}  // namespace

GeneralTemplate::GeneralTemplate(std::shared_ptr<const Tokenizer> tokenizer, const TemplateOptions& options,
                                 std::string_view own_source)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      encoder_(tokenizer_),
      loss_scale_(make_loss_scale(options.loss_scale)) {
  if (options_.max_length < 1) {
    throw invalid_argument("[template] max_length must be >= 1, got " + std::to_string(options_.max_length));
  }
  if (std::find(kTruncationStrategies.begin(), kTruncationStrategies.end(), options_.truncation_strategy) ==
      kTruncationStrategies.end()) {
    throw invalid_argument("[template] unknown truncation_strategy '" + options_.truncation_strategy + "'" +
                           did_you_mean(options_.truncation_strategy, kTruncationStrategies));
  }
  if (!options_.chat_template_kwargs.is_null() && !options_.chat_template_kwargs.is_object()) {
    throw invalid_argument("[template] chat_template_kwargs must be an object, got " +
                           std::string(json_type_name(options_.chat_template_kwargs)));
  }
  if (options_.use_chat_template) {
    chat_ = std::make_unique<ChatTemplate>(
        tokenizer_->config(), options_.chat_template.empty() ? own_source : options_.chat_template);
  }
  find_stop_ids();
}

std::vector<InputFeature> GeneralTemplate::encode(const Trajectory& trajectory) const {
  if (!chat_) return truncate(encode_text(trajectory));
  const Prepared prepared = prepare(trajectory);
  refuse_media(trajectory.messages);
  if (options_.split_rounds) return encode_rounds(trajectory, prepared);
  return truncate(encode_chat(trajectory, prepared, 0, prepared.messages.size()));
}

std::vector<InputFeature> GeneralTemplate::encode_rounds(const Trajectory& trajectory,
                                                         const Prepared& prepared) const {
  const Json& messages = prepared.messages;
  const auto is = [&](size_t i, const char* role) { return messages[i].at("role") == role; };
  const auto rounds = chosen_rounds(trajectory);
  std::vector<InputFeature> out;
  for (size_t begin = 0, end = 0; begin < messages.size(); begin = end) {
    // A round ends before the next message of the user that follows an answer.
    bool trained = loss_scale_->outside() != 0;
    for (bool answered = false; end < messages.size() && !(answered && is(end, "user")); ++end) {
      if (!is(end, "assistant")) continue;
      answered = true;
      const TurnSpan turn{.message = static_cast<int64_t>(end), .text = {}};
      trained = trained || turn_weight(turn, messages, prepared.weights, prepared.inserted, rounds,
                                       *loss_scale_, begin) != 0;
    }
    if (!trained) continue;
    for (InputFeature& feature : truncate(encode_chat(trajectory, prepared, begin, end)))
      out.push_back(std::move(feature));
  }
  if (out.empty()) return truncate(encode_chat(trajectory, prepared, 0, messages.size()));
  return out;
}

InputFeature GeneralTemplate::encode_prompt(const Trajectory& trajectory) const {
  InputFeature out;
  if (chat_) {
    const Prepared prepared = prepare(trajectory);
    refuse_media(trajectory.messages);
    out.input_ids =
        encoder_.encode(chat_->render(prepared.messages, trajectory.tools, render_options(true))).ids;
  } else {
    out.input_ids = tokenizer_->encode(plain_text(trajectory), {.add_special_tokens = true});
  }
  const auto size = static_cast<int64_t>(out.input_ids.size());
  if (size == 0) throw invalid_argument("[template] the prompt has no tokens");
  if (size > options_.max_length) {
    if (options_.truncation_strategy == "left") {
      out.input_ids.erase(out.input_ids.begin(), out.input_ids.end() - options_.max_length);
    } else if (options_.truncation_strategy == "right") {
      out.input_ids.resize(static_cast<size_t>(options_.max_length));
    } else if (options_.truncation_strategy == "delete") {
      out.input_ids.clear();
    } else {
      too_long(size, /*is_prompt=*/true);
    }
  }
  out.labels.assign(out.input_ids.size(), kIgnoreIndex);
  return out;
}

std::string GeneralTemplate::render(const Trajectory& trajectory, bool add_generation_prompt) const {
  if (!chat_) return plain_text(trajectory);
  return chat_->render(prepare(trajectory).messages, trajectory.tools, render_options(add_generation_prompt))
      .text;
}

ChatRenderOptions GeneralTemplate::render_options(bool add_generation_prompt) const {
  return {.add_generation_prompt = add_generation_prompt,
          .enable_thinking = options_.enable_thinking,
          .variables = options_.chat_template_kwargs};
}

// The end-of-turn token is the first control token after an answer.
void GeneralTemplate::find_stop_ids() {
  if (tokenizer_->eos_id() >= 0) stop_ids_.push_back(tokenizer_->eos_id());
  if (!chat_) return;
  const std::string mark = "answer";
  const Json messages =
      Json::array({{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", mark}}});
  std::string text;
  try {
    text = chat_->render(messages, nullptr, render_options(false)).text;
  } catch (const Error&) {
    return;  // a template that refuses this conversation has no end of turn to show
  }
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) return;
  for (const int32_t id : tokenizer_->encode(std::string_view(text).substr(at + mark.size()))) {
    if (!tokenizer_->is_special(id)) continue;
    if (std::find(stop_ids_.begin(), stop_ids_.end(), id) == stop_ids_.end()) stop_ids_.push_back(id);
    return;
  }
}

std::string GeneralTemplate::plain_text(const Trajectory& trajectory) const {
  const bool one =
      trajectory.messages.is_array() && trajectory.messages.size() == 1 && trajectory.messages[0].is_object();
  const std::string* text = one ? text_content(trajectory.messages[0]) : nullptr;
  if (text == nullptr) {
    throw invalid_argument("[template] without a chat template a row must be one message with a text, got " +
                           (trajectory.messages.is_array()
                                ? std::to_string(trajectory.messages.size()) + " messages"
                                : std::string(json_type_name(trajectory.messages))));
  }
  return *text;
}

GeneralTemplate::Prepared GeneralTemplate::prepare(const Trajectory& trajectory) const {
  if (!trajectory.messages.is_array() || trajectory.messages.empty()) {
    throw invalid_argument("[template] 'messages' must be a list with at least one message, got " +
                           (trajectory.messages.is_array()
                                ? std::string("none")
                                : std::string(json_type_name(trajectory.messages))));
  }
  Prepared out;
  out.messages = Json::array();
  size_t index = 0;
  for (const Json& given : trajectory.messages) {
    if (!given.is_object()) {
      throw invalid_argument(place(index) + ": expected an object, got " +
                             std::string(json_type_name(given)));
    }
    const auto role = given.find("role");
    if (role == given.end() || !role->is_string())
      throw invalid_argument(place(index) + ": expected a string in 'role'");
    if (index == 0 && *role == "user" && !options_.default_system.empty()) {
      out.messages.push_back({{"role", "system"}, {"content", options_.default_system}});
      out.weights.push_back(0);
      out.inserted = 1;
    }
    out.weights.push_back(message_weight(given, index));
    out.messages.push_back(prepare_message(given, index));
    ++index;
  }
  adjust(&out.messages, &out.weights);
  return out;
}

Json GeneralTemplate::prepare_message(const Json& given, size_t index) const {
  Json message = Json::object();
  for (const auto& [key, value] : given.items()) {
    // Tables give every row every column: a null one is not there. Content may really be null.
    if (value.is_null() && key != "content") continue;
    if (key != "loss" && key != "train" && key != "weight") message[key] = value;
  }
  if (const auto content = message.find("content"); content != message.end() && content->is_array()) {
    if (!chat_->accepts_blocks()) {
      *content = joined_blocks(*content, index);
    } else {
      for (Json& block : *content) block = placed_block(block, *chat_, index);
    }
  }
  if (message["role"] == "assistant" && !message.contains("reasoning_content") &&
      chat_->mentions("reasoning_content")) {
    split_thinking(&message);
  }
  return message;
}

InputFeature GeneralTemplate::encode_chat(const Trajectory& trajectory, const Prepared& prepared,
                                          size_t begin, size_t end) const {
  Json cut;
  if (end < prepared.messages.size()) {
    cut = prepared.messages;
    cut.erase(cut.begin() + static_cast<std::ptrdiff_t>(end), cut.end());
  }
  const Json& messages = cut.is_null() ? prepared.messages : cut;
  const ChatRenderOptions options = render_options(false);
  const Rendered rendered = chat_->render(messages, trajectory.tools, options);
  const Encoding encoding = encoder_.encode(rendered);
  const auto rounds = chosen_rounds(trajectory);
  const auto turns = assistant_spans(*chat_, messages, trajectory.tools, options, rendered);
  std::vector<float> weights(encoding.ids.size(), loss_scale_->outside());
  if (loss_scale_->outside() != 0) {
    scale_messages(messages, prepared.weights, rendered, encoding, begin, &weights);
    const int64_t first = begin == 0 ? 0 : begin_of(begin, rendered, messages.size(), turns);
    for (size_t t = 0; t < weights.size() && encoding.offsets[t].first < first; ++t) weights[t] = 0;
  }
  size_t token = 0;
  for (const TurnSpan& turn : turns) {
    // Of the whole conversation, also where only its beginning is rendered.
    const float weight = turn_weight(turn, prepared.messages, prepared.weights, prepared.inserted, rounds,
                                     *loss_scale_, begin);
    if (weight == 0 && loss_scale_->outside() == 0) continue;
    const auto& [from, to] = turn.text;
    while (token > 0 && encoding.offsets[token - 1].second > from) --token;
    size_t first = weights.size();
    for (; token < weights.size() && encoding.offsets[token].first < to; ++token) {
      const auto& [left, right] = encoding.offsets[token];
      const bool inside = turn.whole_tokens ? left >= from && right <= to : right > from;
      if (!inside) continue;
      first = std::min(first, token);
      weights[token] = weight;
    }
    if (first < token) scale_parts(*loss_scale_, rendered.text, encoding, turn, first, token, &weights);
  }
  return feature_of(encoding.ids, weights);
}

InputFeature GeneralTemplate::encode_text(const Trajectory& trajectory) const {
  const auto ids = tokenizer_->encode(plain_text(trajectory), {.add_special_tokens = true});
  return feature_of(ids, std::vector<float>(ids.size(), 1.0f));
}

// A prompt, or a text to be compared, in pieces is another one.
void GeneralTemplate::too_long(int64_t size, bool is_prompt) const {
  throw invalid_argument("[template] the row has " + std::to_string(size) + " tokens, more than max_length " +
                         std::to_string(options_.max_length) +
                         (is_prompt && options_.truncation_strategy == "split"
                              ? ", and what is not trained on is not split"
                              : "") +
                         "; raise it, or set truncation_strategy to " +
                         (is_prompt ? "left, right or delete" : "left, right, split or delete"));
}

std::vector<InputFeature> GeneralTemplate::truncate(InputFeature whole) const {
  const auto size = static_cast<int64_t>(whole.input_ids.size());
  const int64_t most = options_.max_length;
  if (size == 0) throw invalid_argument("[template] the row has no tokens");
  if (size <= most) return {std::move(whole)};
  const std::string& strategy = options_.truncation_strategy;
  if (strategy == "delete") return {};
  if (strategy == "right") return {cut_feature(whole, 0, most)};
  // Labels stand at the position before their token, so the first token kept is nobody's target.
  if (strategy == "left") return {cut_feature(whole, size - most, size)};
  if (strategy != "split") too_long(size, /*is_prompt=*/false);
  std::vector<InputFeature> out;
  for (int64_t begin = 0; begin < size; begin += most)
    out.push_back(cut_feature(whole, begin, std::min(size, begin + most)));
  return out;
}

}  // namespace twinkle
