// twinkle inspect for what needs no torch: data sets, tokenizers, .gguf and .safetensors files.
#include <algorithm>
#include <map>

#include "twinkle/cli/command.h"
#include "twinkle/cli/inspect.h"
#include "twinkle/cli/options.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/gguf.h"
#include "twinkle/core/list_text.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/core/units.h"

namespace twinkle::cli {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;

// A value cut to a line.
std::string brief(const Json& value, size_t limit = 72) {
  if (value.is_array() && value.size() > 8)
    return "list of " + with_commas(static_cast<int64_t>(value.size()));
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (char& c : text) c = c == '\n' || c == '\r' || c == '\t' ? ' ' : c;
  if (text.size() <= limit) return text;
  size_t end = limit - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end) + "...";
}

int inspect_dataset(const ParsedArgs& args) {
  DatasetMeta meta{.dataset_id = args.get_string("path")};
  meta.text_split = args.get_string("text_split");
  meta.columns = string_list(args, "csv_columns");
  Dataset data(meta);
  // Columns over all rows, in the order they first come.
  struct Column {
    int64_t rows = 0, longest = 0;
    std::map<std::string, int64_t> types;
  };
  std::vector<std::string> order;
  std::map<std::string, Column> columns;
  std::string first_bad;
  int64_t bad = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    Row row;
    try {
      row = data.row(i);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInvalidArgument) throw;
      if (bad++ == 0) first_bad = e.what();
      continue;
    }
    for (const auto& [key, value] : row.items()) {
      Column& column = columns[key];
      if (column.rows++ == 0) order.push_back(key);
      column.types[std::string(json_type_name(value))]++;
      if (value.is_string())
        column.longest =
            std::max(column.longest, static_cast<int64_t>(value.get_ref<const std::string&>().size()));
    }
  }
  std::string preprocessor, problem;
  try {
    data.map("");
    preprocessor = data.notes().back();
  } catch (const Error& e) {
    problem = e.what();
  }
  const int64_t shown = std::min(args.get_int("rows"), data.size());
  if (args.get_bool("json")) {
    Json list = Json::array();
    for (const auto& name : order) {
      const Column& c = columns[name];
      list.push_back({{"name", name}, {"rows", c.rows}, {"types", c.types}, {"longest_bytes", c.longest}});
    }
    Json out = {{"kind", "dataset"},
                {"path", data.name()},
                {"rows", data.size()},
                {"bad_rows", bad},
                {"content_hash", data.content_hash()},
                {"columns", list}};
    if (bad > 0) out["first_bad_row"] = first_bad;
    out["preprocessor"] = problem.empty() ? Json(preprocessor) : Json(nullptr);
    write_json(out, 2);
    return 0;
  }
  Lines lines = {{"data set", data.name()}, {"rows", with_commas(data.size())}};
  if (bad > 0) lines.emplace_back("bad rows", with_commas(bad) + ", the first: " + first_bad);
  lines.emplace_back("content hash", data.content_hash());
  lines.emplace_back("used as", problem.empty() ? preprocessor : problem);
  write_out(table_text(lines) + "columns:\n");
  Lines rows;
  for (const auto& name : order) {
    const Column& c = columns[name];
    std::string types;
    for (const auto& [type, count] : c.types)
      types += (types.empty() ? "" : ", ") + type + (c.types.size() > 1 ? " x" + with_commas(count) : "");
    if (c.rows < data.size()) types += ", in " + with_commas(c.rows) + " rows";
    if (c.longest > 0) types += ", up to " + with_commas(c.longest) + " bytes";
    rows.emplace_back(name, types);
  }
  write_out(table_text(rows, 2));
  for (int64_t i = 0; i < shown; ++i) {
    Row row;
    try {
      row = data.row(i);
    } catch (const Error&) {
      continue;
    }
    write_out("row " + std::to_string(i + 1) + ":\n");
    Lines cells;
    for (const auto& [key, value] : row.items()) cells.emplace_back(key, brief(value));
    write_out(table_text(cells, 2));
  }
  return 0;
}

int inspect_tokenizer(const ParsedArgs& args) {
  const auto tokenizer = load_tokenizer(args.get_string("path"));
  const auto name = [&](int32_t id) {
    return id < 0 ? std::string("none") : std::to_string(id) + " " + tokenizer->id_to_token(id);
  };
  int64_t special = 0;
  for (int64_t id = 0; id < tokenizer->vocab_size(); ++id)
    special += tokenizer->is_special(static_cast<int32_t>(id)) ? 1 : 0;
  const Json& config = tokenizer->config();
  const bool has_template =
      config.is_object() && config.contains("chat_template") && !config.at("chat_template").is_null();
  if (args.get_bool("json")) {
    Json out = {{"kind", "tokenizer"},
                {"path", args.get_string("path")},
                {"vocab_size", tokenizer->vocab_size()},
                {"special_tokens", special},
                {"bos_id", tokenizer->bos_id()},
                {"eos_id", tokenizer->eos_id()},
                {"pad_id", tokenizer->pad_id()}};
    out["chat_template"] = has_template ? config.at("chat_template") : Json(nullptr);
    write_json(out, 2);
    return 0;
  }
  write_out(table_text(
      {{"tokenizer", args.get_string("path")},
       {"vocabulary", with_commas(tokenizer->vocab_size()) + " tokens, " + with_commas(special) + " special"},
       {"bos", name(tokenizer->bos_id())},
       {"eos", name(tokenizer->eos_id())},
       {"pad", name(tokenizer->pad_id())},
       {"chat template", has_template ? brief(config.at("chat_template")) : "none"}}));
  return 0;
}

// Tensors by type with their count, elements and bytes; the same for both kinds of file.
struct TensorLine {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    return n;
  }
};

void print_tensors(const ParsedArgs& args, const std::vector<TensorLine>& tensors, const Json& head,
                   const Lines& metadata) {
  int64_t elements = 0, bytes = 0;
  std::map<std::string, int64_t> types;
  for (const auto& t : tensors) {
    elements += t.elements();
    bytes += t.bytes;
    types[t.dtype]++;
  }
  if (args.get_bool("json")) {
    Json out = head;
    out["num_tensors"] = tensors.size();
    out["elements"] = elements;
    out["bytes"] = bytes;
    out["dtypes"] = types;
    if (args.get_bool("tensors")) {
      out["tensors"] = Json::array();
      for (const auto& t : tensors)
        out["tensors"].push_back(
            {{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}, {"bytes", t.bytes}});
    }
    write_json(out, 2);
    return;
  }
  std::string by_type;
  for (const auto& [type, count] : types)
    by_type += (by_type.empty() ? "" : ", ") + with_commas(count) + " " + type;
  write_out(table_text({{"file", args.get_string("path")},
                        {"tensors", with_commas(static_cast<int64_t>(tensors.size())) + " (" + by_type + ")"},
                        {"elements", with_commas(elements)},
                        {"bytes", bytes_text(bytes)}}));
  if (!metadata.empty()) write_out("metadata:\n" + table_text(metadata, 2));
  if (!args.get_bool("tensors")) return;
  Lines lines;
  for (const auto& t : tensors) lines.emplace_back(t.name, t.dtype + " " + shape_text(t.shape));
  write_out("tensors:\n" + table_text(lines, 2));
}

int inspect_gguf(const ParsedArgs& args) {
  const GgufFile file = GgufFile::open(args.get_string("path"));
  std::vector<TensorLine> tensors;
  for (const auto& t : file.tensors())
    tensors.push_back(
        {t.name, std::string(ggml_type_name(t.type)), t.shape, static_cast<int64_t>(t.data.size())});
  Lines metadata;
  Json values = Json::object();
  for (const auto& [key, value] : file.metadata().items()) {
    metadata.emplace_back(key, brief(value));
    values[key] = value.is_array() && value.size() > 8 ? Json{{"length", value.size()}} : value;
  }
  print_tensors(args, tensors, {{"kind", "gguf"}, {"path", args.get_string("path")}, {"metadata", values}},
                metadata);
  return 0;
}

int inspect_safetensors(const ParsedArgs& args) {
  const SafetensorsFile file = SafetensorsFile::open(args.get_string("path"));
  std::vector<TensorLine> tensors;
  for (const auto& t : file.tensors())
    tensors.push_back({t.name, t.dtype, t.shape, static_cast<int64_t>(t.data.size())});
  Lines metadata;
  for (const auto& [key, value] : file.metadata()) metadata.emplace_back(key, brief(value));
  print_tensors(args, tensors,
                {{"kind", "safetensors"}, {"path", args.get_string("path")}, {"metadata", file.metadata()}},
                metadata);
  return 0;
}

int inspect(const ParsedArgs& args) {
  const std::string kind = inspect_kind(args.get_string("path"), args.get_string("kind"));
  check_inspect_options(args, kind);
  if (kind == "dataset") return inspect_dataset(args);
  if (kind == "tokenizer") return inspect_tokenizer(args);
  if (kind == "gguf") return inspect_gguf(args);
  return inspect_safetensors(args);
}

const AddRun run_inspect("inspect", inspect);

}  // namespace
}  // namespace twinkle::cli
