// twinkle render: a conversation as the model sees it, with what is trained on.
#include "twinkle/cli/command.h"
#include "twinkle/cli/options.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

// What is asked for; a row of preferences holds several conversations, with names.
std::vector<Part> conversations(const ParsedArgs& args) {
  std::vector<Part> out(1);
  Trajectory& trajectory = out[0].trajectory;
  if (args.has("dataset_id")) {
    const Dataset data = load_dataset(args);
    for (const auto& note : data.notes()) write_error("note: " + note + "\n");
    const int64_t row = args.get_int("row");
    if (row > data.size()) {
      throw invalid_argument("[" + args.source("row") + "] 'row': '" + data.name() + "' has " +
                             std::to_string(data.size()) + " rows, got " + std::to_string(row));
    }
    return data.parts(row - 1);
  }
  if (args.has("prompt")) {
    if (args.has("system"))
      trajectory.messages.push_back({{"role", "system"}, {"content", args.get("system")}});
    trajectory.messages.push_back({{"role", "user"}, {"content", args.get("prompt")}});
    return out;
  }
  trajectory = (*Registry<Preprocessor>::create("MessagesProcessor"))({{"messages", args.get("messages")}});
  return out;
}

// A token is trained on when the position before it has it as its label, with a weight.
bool trained_on(const InputFeature& feature, size_t t) {
  return t > 0 && feature.labels[t - 1] != kIgnoreIndex;
}

// Text of the feature in runs of tokens that are, or are not, trained on: a character whose bytes lie in two
// tokens is shown whole.
std::string with_labels(const Template& tmpl, const InputFeature& feature, bool color) {
  std::string out;
  const std::span<const int32_t> ids = feature.input_ids;
  for (size_t begin = 0; begin < ids.size();) {
    const bool trained = trained_on(feature, begin);
    size_t end = begin + 1;
    while (end < ids.size() && trained_on(feature, end) == trained) ++end;
    const std::string text = tmpl.decode(ids.subspan(begin, end - begin), /*skip_special_tokens=*/false);
    if (color) {
      out += std::string(trained ? kGreen : kDim) + text + std::string(kReset);
    } else {
      out += trained ? "\u27e6" + text + "\u27e7" : text;
    }
    begin = end;
  }
  return out;
}

Json json_of(const Template& tmpl, const InputFeature& feature) {
  std::vector<std::string> tokens;
  Json trained = Json::array();
  for (size_t t = 0; t < feature.input_ids.size(); ++t) {
    const int32_t id = feature.input_ids[t];
    tokens.push_back(tmpl.tokenizer().is_special(id) ? tmpl.tokenizer().id_to_token(id)
                                                     : tmpl.tokenizer().token_bytes(id));
    trained.push_back(trained_on(feature, t));
  }
  Json out = {
      {"ids", feature.input_ids}, {"tokens", tokens}, {"labels", feature.labels}, {"trained", trained}};
  if (!feature.weights.empty()) out["weights"] = feature.weights;
  return out;
}

// One conversation: printed, or as JSON.
Json render_one(const ParsedArgs& args, const Template& tmpl, const Trajectory& trajectory) {
  const bool json = args.get_bool("json"), labels = args.get_bool("show_labels");
  const bool ends_with_user = trajectory.messages.back().value("role", "") == "user";
  const bool prompt =
      args.has("add_generation_prompt") ? args.get_bool("add_generation_prompt") : ends_with_user && !labels;
  const bool chat = tmpl.options().use_chat_template;
  const std::string text = chat ? tmpl.render(trajectory, prompt) : "";
  std::vector<InputFeature> features;
  if (json || labels || !chat)
    features =
        chat && prompt ? std::vector<InputFeature>{tmpl.encode_prompt(trajectory)} : tmpl.encode(trajectory);
  std::erase_if(features, [](const InputFeature& f) { return f.input_ids.empty(); });  // deleted
  if (json) {
    Json parts = Json::array();
    for (const auto& feature : features) parts.push_back(json_of(tmpl, feature));
    Json out = {{"features", parts}};
    if (chat) out["text"] = text;
    return out;
  }
  if (!labels && chat) {
    write_out(text + (text.ends_with('\n') ? "" : "\n"));
    return nullptr;
  }
  const bool color = use_color(args.get_string("color"));
  for (size_t i = 0; i < features.size(); ++i) {
    if (features.size() > 1)
      write_out("--- part " + std::to_string(i + 1) + " of " + std::to_string(features.size()) + "\n");
    const std::string shown =
        labels ? with_labels(tmpl, features[i], color) : tmpl.decode(features[i].input_ids, false);
    write_out(shown + (shown.ends_with('\n') ? "" : "\n"));
    const auto count = static_cast<int64_t>(features[i].input_ids.size());
    write_out((color ? std::string(kDim) : "") + "(" + with_commas(count) + " tokens, " +
              with_commas(features[i].num_trained()) + " trained on)" + (color ? std::string(kReset) : "") +
              "\n");
  }
  if (features.empty()) write_out("(deleted: longer than --max-length)\n");
  return nullptr;
}

int render(const ParsedArgs& args) {
  const auto tmpl = load_template(args, load_tokenizer(args));
  const std::vector<Part> parts = conversations(args);
  Json all = Json::array();
  for (const Part& part : parts) {
    if (!part.name.empty() && !args.get_bool("json")) write_out("--- " + part.name + "\n");
    Json out = render_one(args, *tmpl, part.trajectory);
    if (!part.name.empty() && out.is_object()) out["part"] = part.name;
    all.push_back(std::move(out));
  }
  if (args.get_bool("json"))
    write_json(parts.size() == 1 && parts[0].name.empty() ? all[0] : Json{{"parts", all}});
  return 0;
}

const AddRun run_render("render", render);

}  // namespace
}  // namespace twinkle::cli
