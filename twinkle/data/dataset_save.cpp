// Data sets back to files.
#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/data/csv.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/dataset_internal.h"

namespace twinkle {

using dataset_internal::dump;

namespace {

Json conversation(const Trajectory& trajectory) {
  Json out = {{"messages", trajectory.messages}};
  if (!trajectory.tools.is_null()) out["tools"] = trajectory.tools;
  if (!trajectory.user_data.empty()) out["user_data"] = trajectory.user_data;
  return out;
}

std::string csv_text(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    for (const auto& [key, value] : row.items()) {
      if (std::find(names.begin(), names.end(), key) == names.end()) names.push_back(key);
    }
  }
  std::string out = csv::write(names, ',');
  for (const Row& row : rows) {
    std::vector<std::string> fields;
    for (const auto& name : names) {
      const auto found = row.find(name);
      if (found == row.end() || found->is_null()) {
        fields.emplace_back();
      } else {
        fields.push_back(found->is_string() ? found->get<std::string>() : dump(*found));
      }
    }
    out += csv::write(fields, ',');
  }
  return out;
}

}  // namespace

Row Dataset::saved_row(int64_t index) const {
  const auto [source, at_row] = at(index);
  if (!source->map) return row_of(*source, at_row);
  const std::vector<Part> given = parts(index);
  if (given.size() == 1) {
    Row out = conversation(given[0].trajectory);
    // The form of MessagesProcessor's KTO rows.
    if (given[0].name == "desirable" || given[0].name == "undesirable")
      out["label"] = given[0].name == "desirable";
    return out;
  }
  Row out = Row::object();
  for (const Part& part : given) {
    const Json messages = part.trajectory.messages;
    if (part.name == "chosen" || part.name == "anchor") {
      out.update(conversation(part.trajectory));
    } else if (part.name == "rejected") {
      out["rejected_messages"] = messages;
    } else {
      out[part.name + "_messages"].push_back(messages);
    }
  }
  return out;
}

void Dataset::save_as(const std::string& path, const std::string& format) const {
  static const std::vector<std::string> kFormats = {"jsonl", "json", "csv", "parquet"};
  std::string kind = format;
  if (kind.empty() && path.rfind('.') != std::string::npos) kind = path.substr(path.rfind('.') + 1);
  if (std::find(kFormats.begin(), kFormats.end(), kind) == kFormats.end())
    throw invalid_argument("[dataset] save_as: unknown format '" + kind + "'" + did_you_mean(kind, kFormats));
  std::vector<Row> rows(static_cast<size_t>(size()));
  const auto bad = dataset_internal::each_row(
      size(), BadRows::kRaise, [&](int64_t i) { rows[static_cast<size_t>(i)] = saved_row(i); });
  if (!bad.empty())
    throw invalid_argument(dataset_internal::at_place(place(bad.begin()->first), bad.begin()->second));
  if (kind == "parquet") return write_parquet_file(path, rows);
  std::string text;
  if (kind == "csv") {
    text = csv_text(rows);
  } else if (kind == "jsonl") {
    for (const Row& row : rows) text += dump(row) + "\n";
  } else {
    text = "[";
    for (size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "\n" : ",\n") + dump(rows[i]);
    text += "\n]\n";
  }
  write_file_atomic(path, text);
}

}  // namespace twinkle
