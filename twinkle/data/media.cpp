#include "twinkle/data/media.h"

#include <array>

#include "twinkle/core/error.h"
#include "twinkle/data/preprocessor_columns.h"

namespace twinkle {
namespace {

struct Kind {
  std::string_view name, tag;
  std::array<const char*, 2> columns;
  std::string_view spoken;
};
constexpr std::array<Kind, 3> kKinds = {{{"image", "<image>", {"images", "image"}, "an image"},
                                         {"video", "<video>", {"videos", "video"}, "a video"},
                                         {"audio", "<audio>", {"audios", "audio"}, "audio"}}};

Json text_block(std::string_view text) { return {{"type", "text"}, {"text", std::string(text)}}; }
Json media_block(std::string_view kind, const Json& value) {
  return {{"type", std::string(kind)}, {std::string(kind), value}};
}

// What a row or a message names: paths, or objects with a path or bytes as data sets of tables hold them.
Json media_of(const Json& holder, const Kind& kind) {
  Json out = Json::array();
  std::string from;
  for (const char* column : kind.columns) {
    const auto found = holder.find(column);
    if (found == holder.end() || found->is_null() || *found == "" || *found == Json::array()) continue;
    if (!from.empty()) throw invalid_argument("has both '" + from + "' and '" + column + "'; remove one");
    from = column;
    for (const Json& item : found->is_array() ? *found : Json::array({*found})) {
      if (!item.is_string() && !item.is_object())
        throw invalid_argument("expected paths in '" + from + "', got " + columns::got(item));
      out.push_back(item);
    }
  }
  return out;
}

// The blocks of a content, each text cut by `cut(text, blocks)`.
template <class Cut>
Json recut(const Json& content, const Cut& cut) {
  Json blocks = Json::array();
  if (content.is_string()) {
    cut(content.get_ref<const std::string&>(), &blocks);
    return blocks;
  }
  for (const Json& block : content) {
    if (const std::string* text = block_text(block)) {
      cut(*text, &blocks);
    } else {
      blocks.push_back(block);
    }
  }
  return blocks;
}

bool has_content_field(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && (content->is_string() || content->is_array());
}

size_t count_tags(const Json& messages, std::string_view tag) {
  size_t count = 0;
  for (const Json& message : messages) {
    if (!has_content_field(message)) continue;
    recut(message.at("content"), [&](std::string_view text, Json*) {
      for (size_t at = text.find(tag); at != std::string_view::npos; at = text.find(tag, at + tag.size()))
        ++count;
    });
  }
  return count;
}

// What has no place of its own goes before the first message of `asker`, "" for any.
void place_media(const Kind& kind, const Json& media, Json* messages, std::string_view asker) {
  if (media.empty()) return;
  const size_t tags = count_tags(*messages, kind.tag);
  if (tags > media.size()) {
    throw invalid_argument("has " + std::to_string(tags) + " " + std::string(kind.tag) + " and " +
                           std::to_string(media.size()) + " in '" + kind.columns[0] + "'");
  }
  size_t missing = media.size() - tags, next = 0;
  for (Json& message : *messages) {
    if (!has_content_field(message)) continue;
    Json& content = message["content"];
    const bool first_question = missing > 0 && (asker.empty() || message.value("role", "") == asker);
    if (!first_question && count_tags(Json::array({message}), kind.tag) == 0) continue;
    Json blocks = Json::array();
    for (; first_question && missing > 0; --missing) blocks.push_back(media_block(kind.name, media[next++]));
    for (Json& block : recut(content, [&](std::string_view text, Json* out) {
           for (size_t at = text.find(kind.tag); at != std::string_view::npos; at = text.find(kind.tag)) {
             if (at > 0) out->push_back(text_block(text.substr(0, at)));
             out->push_back(media_block(kind.name, media[next++]));
             text.remove_prefix(at + kind.tag.size());
           }
           if (!text.empty()) out->push_back(text_block(text));
         })) {
      blocks.push_back(std::move(block));
    }
    content = std::move(blocks);
  }
  if (next < media.size())
    throw invalid_argument("has '" + std::string(kind.columns[0]) + "' and no question to put them before");
}

// Qwen-VL's own form, which holds the path itself.
void place_inline_images(Json* messages) {
  constexpr std::string_view kOpen = "<img>", kClose = "</img>";
  if (count_tags(*messages, kOpen) == 0) return;
  for (Json& message : *messages) {
    if (!has_content_field(message)) continue;
    bool found = false;
    Json blocks = recut(message["content"], [&](std::string_view text, Json* out) {
      size_t from = 0;
      for (;;) {
        const size_t begin = text.find(kOpen, from);
        const size_t end = begin == std::string_view::npos ? begin : text.find(kClose, begin);
        if (end == std::string_view::npos) break;
        const std::string_view path = text.substr(begin + kOpen.size(), end - begin - kOpen.size());
        if (path.empty() || path.find_first_of(" \t\r\n<") != std::string_view::npos) {
          from = begin + kOpen.size();
          continue;
        }
        if (begin > 0) out->push_back(text_block(text.substr(0, begin)));
        out->push_back(media_block("image", std::string(path)));
        text.remove_prefix(end + kClose.size());
        from = 0;
        found = true;
      }
      if (!text.empty()) out->push_back(text_block(text));
    });
    if (found) message["content"] = std::move(blocks);
  }
}

}  // namespace

const std::string* block_text(const Json& block) {
  if (block_kind(block) != "text") return nullptr;
  const auto text = block.find("text");
  return text != block.end() && text->is_string() ? &text->get_ref<const std::string&>() : nullptr;
}

std::string_view block_kind(const Json& block) {
  if (!block.is_object()) return "";
  const auto given = block.find("type");
  if (given == block.end()) return block.contains("text") ? "text" : "";
  if (!given->is_string()) return "";
  const std::string& type = given->get_ref<const std::string&>();
  if (type == "text") return "text";
  if (type == "input_audio") return "audio";
  for (const Kind& kind : kKinds) {
    if (type == kind.name || type == std::string(kind.name) + "_url") return kind.name;
  }
  return "";
}

Json plain_block(const Json& block) {
  const std::string kind(block_kind(block));
  if (kind.empty() || kind == "text" || block.at("type") == kind) return block;
  const auto held = block.find(block.at("type").get<std::string>());
  Json value = held == block.end() ? Json() : *held;
  if (value.is_object() && value.contains("url")) value = value.at("url");
  return media_block(kind, value);
}

void place_media(const Row& row, Json* messages) {
  place_inline_images(messages);
  for (const Kind& kind : kKinds) {
    place_media(kind, media_of(row, kind), messages, "user");
    for (Json& message : *messages) {
      const Json own = media_of(message, kind);
      if (own.empty()) continue;
      Json alone = Json::array({std::move(message)});
      for (const char* column : kind.columns) alone[0].erase(column);
      place_media(kind, own, &alone, "");
      message = std::move(alone[0]);
    }
  }
}

std::string media_in(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return "";
  for (const Json& block : *content) {
    const std::string_view name = block_kind(block);
    for (const Kind& kind : kKinds) {
      if (name != kind.name) continue;
      const Json plain = plain_block(block);
      const auto held = plain.find(std::string(name));
      std::string out(kind.spoken);
      if (held != plain.end() && held->is_string() && held->get_ref<const std::string&>().size() <= 200)
        out += " (" + held->get<std::string>() + ")";
      return out;
    }
  }
  return "";
}

}  // namespace twinkle
