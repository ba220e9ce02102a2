#include "twinkle/data/loss_scale.h"

#include <array>

#include "twinkle/text/tool_calls.h"

namespace twinkle {
namespace {

class DefaultLossScale : public LossScale {};

class AllLossScale : public LossScale {
 public:
  float outside() const override { return 1; }
};

// The assistant messages after the last one of the user, as in the model's next answer with its tool calls.
class LastRoundLossScale : public LossScale {
 public:
  float turn(const Json& messages, size_t index) const override {
    for (size_t i = index + 1; i < messages.size(); ++i) {
      if (messages[i].at("role") == "user") return 0;
    }
    return 1;
  }
};

// ReAct: the action and its input count twice; an observation that the turn itself spells is not the model's.
class ReactLossScale : public LossScale {
 public:
  std::vector<Part> parts(std::string_view turn) const override {
    struct Marker {
      std::string_view text;
      float marker, following;
    };
    static constexpr std::array<Marker, 5> kMarkers = {{{"Action Input:", 2, 2},
                                                        {"Action:", 2, 2},
                                                        {"Thought:", 1, 1},
                                                        {"Final Answer:", 1, 1},
                                                        {"Observation:", 2, 0}}};
    std::vector<Part> out;
    float current = 1;
    size_t begin = 0;
    const auto close = [&](size_t end) {
      if (current != 1 && end > begin) out.push_back({begin, end, current});
      begin = end;
    };
    for (size_t at = 0; at < turn.size(); ++at) {
      if (at > 0 && turn[at - 1] != '\n') continue;
      for (const Marker& m : kMarkers) {
        if (turn.substr(at, m.text.size()) != m.text) continue;
        close(at);
        current = m.marker;
        close(at + m.text.size());
        current = m.following;
        break;
      }
    }
    close(turn.size());
    return out;
  }
};

// Tool calls in <tool_call> blocks count twice; a tag that is only spoken of begins none.
class HermesLossScale : public LossScale {
 public:
  std::vector<Part> parts(std::string_view turn) const override {
    std::vector<Part> out;
    for (const TextSpan& call : tool_call_spans(*parser_, turn))
      out.push_back({static_cast<size_t>(call.begin), static_cast<size_t>(call.end), 2});
    return out;
  }

 private:
  std::shared_ptr<const ToolCallParser> parser_ = tool_call_parser("hermes_qwen");
};

// An empty <think> block is markup of the template, not thinking.
class IgnoreEmptyThinkLossScale : public LossScale {
 public:
  std::vector<Part> parts(std::string_view turn) const override {
    constexpr std::string_view kOpen = "<think>", kClose = "</think>";
    const size_t begin = turn.find(kOpen);
    if (begin == std::string_view::npos) return {};
    const size_t inside = turn.find_first_not_of(" \t\r\n", begin + kOpen.size());
    if (inside == std::string_view::npos || turn.substr(inside, kClose.size()) != kClose) return {};
    size_t end = inside + kClose.size();
    while (end < turn.size() && turn[end] == '\n') ++end;
    return {{begin, end, 0}};
  }
};

template <class T>
Registry<LossScale>::Add add(std::string name, std::string help) {
  return {{.name = std::move(name), .help = std::move(help)},
          [](const Options&) { return std::make_unique<T>(); }};
}

const auto kDefault = add<DefaultLossScale>("default", "Every assistant turn, nothing else.");
const auto kAll = add<AllLossScale>("all", "Every token of the conversation.");
const auto kLast = add<LastRoundLossScale>("last_round", "The assistant turns after the last user message.");
const auto kReact = add<ReactLossScale>(
    "react", "Assistant turns; lines of Action: and Action Input: count twice, those of Observation: not.");
const auto kHermes = add<HermesLossScale>("hermes", "Assistant turns; <tool_call> blocks count twice.");
const auto kThink = add<IgnoreEmptyThinkLossScale>("ignore_empty_think",
                                                   "Assistant turns without their empty <think> blocks.");

}  // namespace

std::shared_ptr<const LossScale> make_loss_scale(std::string_view name) {
  return Registry<LossScale>::create(name.empty() ? "default" : name);
}

}  // namespace twinkle
