// What every template can do, made from its encode and decode.

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/parallel_errors.h"
#include "twinkle/data/template.h"

namespace twinkle {
namespace {

std::string in_batch(int64_t index, std::string_view message) {
  constexpr std::string_view kPlace = "[template] ";
  if (message.starts_with(kPlace)) message.remove_prefix(kPlace.size());
  return "[template] conversation " + std::to_string(index) + ": " + std::string(message);
}

}  // namespace

std::vector<InputFeature> Template::truncate(InputFeature whole) const {
  const auto size = static_cast<int64_t>(whole.input_ids.size());
  if (size > options().max_length) {
    throw invalid_argument("[template] the row has " + std::to_string(size) +
                           " tokens, more than max_length " + std::to_string(options().max_length));
  }
  std::vector<InputFeature> out;
  out.push_back(std::move(whole));
  return out;
}

std::vector<std::vector<InputFeature>> Template::batch_encode(
    std::span<const Trajectory> trajectories) const {
  std::vector<std::vector<InputFeature>> out(trajectories.size());
  const auto bad =
      errors_of_items(static_cast<int64_t>(trajectories.size()), 8, BadItems::kFirst, [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        out[at] = encode(trajectories[at]);
      });
  if (!bad.empty()) {
    const auto& [i, error] = *bad.begin();
    throw Error(error.kind(), in_batch(i, error.what()));
  }
  return out;
}

std::string Template::check(const Trajectory& trajectory) const {
  try {
    const auto features = encode(trajectory);
    if (features.empty()) {
      return "longer than max_length " + std::to_string(options().max_length) + " and deleted";
    }
    for (const InputFeature& feature : features) {
      if (feature.num_trained() > 0) return "";
    }
    return "no token of it is trained on (every label is masked)";
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) throw;
    return e.what();
  }
}

std::vector<std::string> Template::batch_check(std::span<const Trajectory> trajectories) const {
  std::vector<std::string> out(trajectories.size());
  parallel_for(static_cast<int64_t>(trajectories.size()), 8, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      out[i] = check(trajectories[i]);
  });
  return out;
}

std::vector<std::string> Template::batch_decode(std::span<const std::vector<int32_t>> ids,
                                                bool skip_special_tokens) const {
  std::vector<std::string> out(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) out[i] = decode(ids[i], skip_special_tokens);
  return out;
}

ParsedReply Template::parse_tool_call(std::string_view text) const {
  std::string name = options().tool_call_parser;
  // Reasoning may quote calls, so what finds the format looks only at the rest.
  const auto plain = tool_call_parser("hermes_qwen");
  if (name.empty()) {
    const ParsedReply first = parse_reply(*plain, text);
    if (!first.calls.empty()) return first;
    name = detect_tool_call_parser(first.content);
    if (name.empty()) return first;
  }
  return parse_reply(*tool_call_parser(name), text);
}

Template::Continued Template::concat_input_feature(const InputFeature& prompt,
                                                   std::span<const int32_t> new_tokens) const {
  if (prompt.labels.size() != prompt.input_ids.size() ||
      (!prompt.weights.empty() && prompt.weights.size() != prompt.input_ids.size())) {
    throw invalid_argument("[template] the prompt has " + std::to_string(prompt.input_ids.size()) + " ids, " +
                           std::to_string(prompt.labels.size()) + " labels and " +
                           std::to_string(prompt.weights.size()) + " weights; they must be as many");
  }
  const int64_t vocabulary = tokenizer().vocab_size();
  for (const int32_t id : new_tokens) {
    if (id < 0 || id >= vocabulary) {
      throw invalid_argument("[template] new token " + std::to_string(id) + " is not in the vocabulary of " +
                             std::to_string(vocabulary));
    }
  }
  Continued out;
  InputFeature& f = out.feature;
  f = prompt;
  for (const int32_t id : new_tokens) {
    // The last position so far now has a target.
    if (!f.labels.empty()) {
      f.labels.back() = id;
      if (!f.weights.empty()) f.weights.back() = 1;
    }
    f.input_ids.push_back(id);
    f.labels.push_back(kIgnoreIndex);
    if (!f.weights.empty()) f.weights.push_back(0);
  }
  const auto size = static_cast<int64_t>(f.input_ids.size());
  if (options().truncation_strategy == "split" && size > options().max_length) {
    throw invalid_argument("[template] prompt and reply have " + std::to_string(size) +
                           " tokens, more than max_length " + std::to_string(options().max_length) +
                           ", and a reply is not split");
  }
  if (size > 0) {
    auto parts = truncate(std::move(f));
    out.feature = parts.empty() ? InputFeature{} : std::move(parts.front());
  }
  // The end of the turn is no part of what it says; special tokens that belong to calls are.
  const std::vector<int32_t> stops = stop_ids();
  size_t length = new_tokens.size();
  while (length > 0 && std::find(stops.begin(), stops.end(), new_tokens[length - 1]) != stops.end()) --length;
  out.message = openai_message(parse_tool_call(decode(new_tokens.first(length), false)));
  return out;
}

}  // namespace twinkle
