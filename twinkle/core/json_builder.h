// What parse_json() and parse_json_packed() hand to nlohmann's parser. Of use to nobody else.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

// A number that no double holds.
struct JsonNumberTooLarge {
  size_t end = 0;  // bytes up to its end
  std::string number;
};

// A whole number that 64 bits do not hold.
struct JsonNumberTooWide {
  std::string number;
};

// Builds the value itself: nlohmann's own builder searches every earlier key of an object for each new one,
// and a tokenizer's vocabulary is one object of 150,000 keys. As there, the last of two equal keys wins.
class JsonBuilder {
 public:
  JsonBuilder(Json* root, WideIntegers wide) : root_(root), wide_(wide) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(Json::number_integer_t value) { return put(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(Json(value)); }
  bool number_float(Json::number_float_t value, const std::string& text) {
    if (wide_ == WideIntegers::kRefuse && text.find_first_of(".eE") == std::string::npos)
      throw JsonNumberTooWide{text};
    return put(Json(value));
  }
  bool string(std::string& value) { return put(Json(std::move(value))); }
  bool binary(Json::binary_t& value) { return put(Json(std::move(value))); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    auto& members = static_cast<std::vector<std::pair<const std::string, Json>>&>(
        level.value->get_ref<Json::object_t&>());
    if (members.size() == kSmall) {
      for (size_t i = 0; i < kSmall; ++i) level.index.emplace(members[i].first, i);
    }
    size_t at = members.size();
    if (members.size() < kSmall) {
      for (size_t i = 0; i < members.size(); ++i) {
        if (members[i].first == name) at = i;
      }
    } else {
      at = level.index.try_emplace(name, at).first->second;
    }
    if (at == members.size()) members.emplace_back(std::move(name), Json());
    slot_ = &members[at].second;
    return true;
  }

  template <class Exception>
  bool parse_error(size_t end, const std::string& token, const Exception& e) {
    if (const auto* parse = dynamic_cast<const nlohmann::json::parse_error*>(&e)) throw *parse;
    throw JsonNumberTooLarge{end, token};
  }

 protected:
  bool put(Json value) {
    place(std::move(value));
    return true;
  }

 private:
  static constexpr size_t kSmall = 32;
  struct Level {
    Json* value;
    std::unordered_map<std::string, size_t> index;  // of objects with more than kSmall keys
  };

  Json* place(Json value) {
    if (levels_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    Json* top = levels_.back().value;
    if (top->is_array()) {
      auto& list = top->get_ref<Json::array_t&>();
      list.push_back(std::move(value));
      return &list.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  // A container's address holds while it is open: its parent grows only after it is closed.
  bool open(Json value) {
    levels_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  Json* root_;
  WideIntegers wide_;
  Json* slot_ = nullptr;
  std::vector<Level> levels_;
};

}  // namespace twinkle
