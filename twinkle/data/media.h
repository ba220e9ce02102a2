// Images, video and audio in messages: content is then a list of blocks {type: text | image | video | audio},
// as chat templates take it. Pure functions. Chat templates render a place for each; no model that is trained
// here sees what belongs there, so templates refuse to encode them.
#pragma once

#include <string>
#include <string_view>

#include "twinkle/data/types.h"

namespace twinkle {

/// "text", "image", "video" or "audio", also of OpenAI's image_url, video_url, audio_url and input_audio; ""
/// for anything else.
std::string_view block_kind(const Json& block);
/// The text of a text block; nullptr for any other.
const std::string* block_text(const Json& block);
/// The block with its kind as its type and as the name of what it holds.
Json plain_block(const Json& block);

/// Puts what the columns images, videos and audios (or image, video, audio) of a row name, and likewise those
/// of a message, where <image>, <video> and <audio> stand in the contents, in order; what has no such place
/// goes before the first question, as ms-swift does. <img>path</img> is an image, too. More places than media
/// are invalid_argument, as are columns that hold no paths. Without media nothing changes.
void place_media(const Row& row, Json* messages);

/// What the first block that is no text holds, for messages: "an image (cat.png)"; "" when all is text.
std::string media_in(const Json& message);

}  // namespace twinkle
