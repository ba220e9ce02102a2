// Which bytes of a rendered conversation the model is trained to write. Pure functions over a chat template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "twinkle/text/chat_template.h"

namespace twinkle {

/// What an assistant message wrote in the rendering of the whole conversation.
struct TurnSpan {
  int64_t message = 0;
  TextSpan text;
  bool whole_tokens =
      true;  // only tokens that lie inside; false: also those that reach in at the front or end
};

/// What each message wrote in the loop over messages that wrote most; none where a message has no turn in it.
std::vector<std::optional<TextSpan>> message_spans(const Rendered& rendered, size_t messages);

/// The spans of all assistant messages, ascending. With generation blocks: what those wrote. Otherwise a turn
/// reaches from the end of the prompt that the model would be given for it to its end in `rendered`, which is
/// the rendering of all of `messages` without a generation prompt; where the template writes results of tools
/// into the turn and the message's words behind them, the words are a span of their own. Renders about one
/// prompt for each kind of predecessor, not one a turn. invalid_argument when a turn cannot be found.
std::vector<TurnSpan> assistant_spans(const ChatTemplate& chat, const Json& messages, const Json& tools,
                                      const ChatRenderOptions& options, const Rendered& rendered);

}  // namespace twinkle
