#include "twinkle/core/yaml.h"

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "twinkle/core/error.h"
#include "twinkle/core/utf8.h"

namespace twinkle {
namespace {

int64_t count_nodes(const YamlNode& node) {
  int64_t count = 1;
  for (const auto& item : node.list) count += count_nodes(item);
  for (const auto& [key, item] : node.map) count += 1 + count_nodes(item);
  return count;
}

// Builds the tree from the parser's events, which keeps the limits in our hands.
class YamlBuilder : public YAML::EventHandler {
 public:
  YamlBuilder(std::string_view where, const YamlLimits& limits) : where_(where), limits_(limits) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.line = line_of(mark);
    leaf(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(line_of(mark), "an alias that stands within what it names");
    nodes_ += found->second.second;
    check_nodes(line_of(mark));
    if (expect_key()) fail(line_of(mark), "a key must be plain text");
    attach(YamlNode(found->second.first));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node;
    node.line = line_of(mark);
    node.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    if (!node.quoted && !tag.empty() && tag != "?") fail(node.line, "tag '" + tag + "' is not supported");
    if (!is_utf8(value)) fail(node.line, "this is not UTF-8 text");
    node.kind = YamlNode::Kind::kScalar;
    node.scalar = value;
    if (!node.quoted &&
        (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL")) {
      node.kind = YamlNode::Kind::kNull;
    }
    if (expect_key()) {
      set_key(node);
    } else {
      leaf(std::move(node), anchor);
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode node;
    YAML::anchor_t anchor = YAML::NullAnchor;
    bool has_key = false;
    std::string key;
    int64_t key_line = 0;
    std::set<std::string> keys;
  };

  static int64_t line_of(const YAML::Mark& mark) { return mark.line + 1; }

  [[noreturn]] void fail(int64_t line, const std::string& what) const {
    throw invalid_argument("[" + where_ + " line " + std::to_string(line) + "] " + what);
  }

  void check_nodes(int64_t line) {
    if (nodes_ > limits_.max_nodes)
      fail(line, "more than " + std::to_string(limits_.max_nodes) + " values (aliases written out)");
  }

  bool expect_key() const {
    return !stack_.empty() && stack_.back().node.kind == YamlNode::Kind::kMap && !stack_.back().has_key;
  }

  void set_key(const YamlNode& node) {
    Level& level = stack_.back();
    if (node.scalar == "<<" && !node.quoted)
      fail(node.line, "merge keys (<<) are not supported; write the values out");
    if (!level.keys.insert(node.scalar).second) fail(node.line, "key '" + node.scalar + "' is given twice");
    level.key = node.scalar;
    level.key_line = node.line;
    level.has_key = true;
    ++nodes_;
    check_nodes(node.line);
  }

  void leaf(YamlNode node, YAML::anchor_t anchor) {
    if (expect_key()) fail(node.line, "a key must be plain text");
    ++nodes_;
    check_nodes(node.line);
    if (anchor != YAML::NullAnchor) anchors_[anchor] = {node, 1};
    attach(std::move(node));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    const int64_t line = line_of(mark);
    if (expect_key()) fail(line, "a key must be plain text");
    if (!tag.empty() && tag != "?" && tag != "!") fail(line, "tag '" + tag + "' is not supported");
    if (static_cast<int>(stack_.size()) >= limits_.max_depth)
      fail(line, "nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    ++nodes_;
    check_nodes(line);
    Level level;
    level.node.kind = kind;
    level.node.line = line;
    level.anchor = anchor;
    stack_.push_back(std::move(level));
  }

  void close() {
    Level level = std::move(stack_.back());
    stack_.pop_back();
    if (level.anchor != YAML::NullAnchor) anchors_[level.anchor] = {level.node, count_nodes(level.node)};
    attach(std::move(level.node));
  }

  void attach(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& parent = stack_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.list.push_back(std::move(node));
    } else {
      // yaml-cpp places nothing after the line's end, and a block where its first key or item is.
      if (node.kind != YamlNode::Kind::kScalar) node.line = parent.key_line;
      parent.node.map.emplace_back(std::move(parent.key), std::move(node));
      parent.key.clear();
      parent.has_key = false;
    }
  }

  std::string where_;
  YamlLimits limits_;
  YamlNode root_;
  std::vector<Level> stack_;
  std::map<YAML::anchor_t, std::pair<YamlNode, int64_t>> anchors_;
  int64_t nodes_ = 0;
};

}  // namespace

YamlNode parse_yaml(std::string_view text, std::string_view where, const YamlLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    throw invalid_argument("[" + std::string(where) + "] is longer than " + std::to_string(limits.max_bytes) +
                           " bytes");
  }
  YamlBuilder builder(where, limits);
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(builder)) return {};
    YamlNode root = builder.take();
    YamlBuilder second(where, limits);
    if (parser.HandleNextDocument(second))
      throw invalid_argument("[" + std::string(where) + "] holds more than one document");
    return root;
  } catch (const YAML::Exception& e) {
    throw invalid_argument("[" + std::string(where) + " line " + std::to_string(e.mark.line + 1) +
                           "] not valid YAML: " + e.msg);
  }
}

Json yaml_to_json(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return nullptr;
    case YamlNode::Kind::kList: {
      Json out = Json::array();
      for (const auto& item : node.list) out.push_back(yaml_to_json(item));
      return out;
    }
    case YamlNode::Kind::kMap: {
      Json out = Json::object();
      for (const auto& [key, item] : node.map) out[key] = yaml_to_json(item);
      return out;
    }
    case YamlNode::Kind::kScalar:
      break;
  }
  const std::string& s = node.scalar;
  if (node.quoted) return s;
  for (const char* word : {"true", "True", "TRUE"}) {
    if (s == word) return true;
  }
  for (const char* word : {"false", "False", "FALSE"}) {
    if (s == word) return false;
  }
  const char* begin = s.data() + (s.starts_with('+') ? 1 : 0);
  const char* end = s.data() + s.size();
  int64_t whole = 0;
  if (const auto [stop, code] = std::from_chars(begin, end, whole); code == std::errc() && stop == end)
    return whole;
  double number = 0;
  if (const auto [stop, code] = std::from_chars(begin, end, number);
      code == std::errc() && stop == end && std::isfinite(number)) {
    return number;
  }
  return s;
}

}  // namespace twinkle
