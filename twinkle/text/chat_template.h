// A model's chat template with the variables of its tokenizer: conversations in, text out, as transformers'
// apply_chat_template. Immutable after construction: safe from many threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/jinja.h"

namespace twinkle {

struct ChatRenderOptions {
  bool add_generation_prompt = false;
  std::optional<bool> enable_thinking;  // passed to the template when set
  Json variables = nullptr;             // an object of further variables (documents, date_string, ...)
};

class ChatTemplate {
 public:
  /// `source` replaces tokenizer_config's `chat_template` (a text, or a list of named ones of which
  /// `tool_use` is taken when there are tools). invalid_argument when there is none or it does not parse.
  explicit ChatTemplate(const Json& tokenizer_config, std::string_view source = "");

  /// `messages` in the OpenAI form, `tools` a list or null. Call arguments may be objects or JSON text: the
  /// template gets what it can use, and the same text comes out for both. Errors of the template, bad JSON in
  /// arguments and messages that are not objects with a role are invalid_argument.
  Rendered render(const Json& messages, const Json& tools = nullptr,
                  const ChatRenderOptions& options = {}) const;

  bool has_generation_blocks(bool with_tools = false) const {
    return pick(with_tools).has_generation_blocks();
  }
  /// Whether content may be a list of blocks.
  bool accepts_blocks() const { return accepts_blocks_; }
  /// Whether the template writes something for a block {type: kind}, kind being image, video or audio.
  bool accepts(std::string_view kind) const {
    return std::find(media_.begin(), media_.end(), kind) != media_.end();
  }
  /// Whether the template's source says `word` (reasoning_content, enable_thinking, ...).
  bool mentions(std::string_view word) const { return source_.find(word) != std::string::npos; }
  const std::string& source() const { return source_; }
  /// Whether a conversation rendered so far asked for the time: rendered again it may read otherwise.
  bool has_read_clock() const { return has_read_clock_; }
  /// How many messages were rendered so far: what a conversation costs, for those who measure it.
  int64_t rendered_messages() const { return rendered_messages_; }

 private:
  const JinjaTemplate& pick(bool with_tools) const;
  Rendered render_prepared(Json messages, const Json& tools, const ChatRenderOptions& options) const;
  bool probe_arguments(bool as_text) const;
  bool probe_blocks() const;
  bool probe_media(const std::string& kind) const;

  std::string source_;
  std::shared_ptr<const JinjaTemplate> template_, tool_template_;
  Json own_ = Json::object();  // bos_token and the like
  bool text_arguments_ = false;
  bool accepts_blocks_ = false;
  std::vector<std::string> media_;  // kinds of blocks that it knows
  mutable std::atomic<int64_t> rendered_messages_ = 0;
  mutable std::atomic<bool> has_read_clock_ = false;
};

/// json.dumps(value, ensure_ascii=False).
std::string python_json(const Json& value);

}  // namespace twinkle
