#include "twinkle/data/arrow/json_table.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/data/dataset_internal.h"
#include "twinkle/text/chat_template.h"

namespace twinkle {
namespace {

// Where a value lies: columns and what only lists are around may hold messages.
enum class Level { kColumn, kListed, kInside };

// What a place of a column holds, over all of its rows.
struct Shape {
  enum class Kind { kNull, kBool, kInt, kFloat, kText, kList, kObject };
  Kind kind = Kind::kNull;
  bool several_kinds = false;
  bool wide = false;            // holds an integer that a double would round
  bool too_wide = false;        // or one past 64 bits
  std::unique_ptr<Shape> item;  // of a list
  std::vector<std::pair<std::string, std::unique_ptr<Shape>>> fields;  // of objects
  bool any_object = false;
  bool same_fields = true;                          // the objects have the same ones, in the same order
  bool all_have_role = true, all_have_from = true;  // they are messages
};

bool has_text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string();
}

void widen(Shape* shape, const Json& value, Level level);

void widen_object(Shape* shape, const Json& value, Level level) {
  const bool first = !shape->any_object;
  shape->any_object = true;
  shape->all_have_role = shape->all_have_role && level != Level::kInside && has_text(value, "role");
  shape->all_have_from = shape->all_have_from && level != Level::kInside && has_text(value, "from");
  if (!first && value.size() != shape->fields.size()) shape->same_fields = false;
  size_t at = 0;
  for (const auto& [key, entry] : value.items()) {
    auto found =
        std::find_if(shape->fields.begin(), shape->fields.end(), [&](auto& f) { return f.first == key; });
    if (static_cast<size_t>(found - shape->fields.begin()) != at++) shape->same_fields = false;
    if (found == shape->fields.end()) {
      if (!first) shape->same_fields = false;
      shape->fields.emplace_back(key, std::make_unique<Shape>());
      found = shape->fields.end() - 1;
    }
    widen(found->second.get(), entry, Level::kInside);
  }
}

void widen(Shape* shape, const Json& value, Level level) {
  using Kind = Shape::Kind;
  constexpr int64_t kExact = int64_t{1} << 53;
  Kind kind = Kind::kText;
  if (value.is_null()) return;
  if (value.is_boolean()) kind = Kind::kBool;
  if (value.is_number_integer()) kind = Kind::kInt;
  if (value.is_number_float()) kind = Kind::kFloat;
  if (value.is_array()) kind = Kind::kList;
  if (value.is_object()) kind = Kind::kObject;
  const auto is_number = [](Kind k) { return k == Kind::kInt || k == Kind::kFloat; };
  if (shape->kind == Kind::kNull) {
    shape->kind = kind;
  } else if (is_number(kind) && is_number(shape->kind)) {
    if (kind != shape->kind) shape->kind = Kind::kFloat;
  } else if (shape->kind != kind) {
    shape->several_kinds = true;
    return;
  }
  if (kind == Kind::kInt) {
    const bool past = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
    shape->too_wide = shape->too_wide || past;
    shape->wide = shape->wide || past || value.get<int64_t>() > kExact || value.get<int64_t>() < -kExact;
  }
  if (kind == Kind::kList) {
    if (!shape->item) shape->item = std::make_unique<Shape>();
    const Level inner = level == Level::kInside ? level : Level::kListed;
    for (const Json& entry : value) widen(shape->item.get(), entry, inner);
  }
  if (kind == Kind::kObject) widen_object(shape, value, level);
}

// Whether Arrow's types give every value back as it was. Of a message a missing field may come back as null,
// which readers of messages take for a missing one.
bool is_exact(const Shape& shape) {
  if (shape.several_kinds || shape.too_wide || (shape.wide && shape.kind == Shape::Kind::kFloat))
    return false;
  if (shape.item && !is_exact(*shape.item)) return false;
  if (shape.kind != Shape::Kind::kObject) return true;
  return !shape.fields.empty() && (shape.same_fields || shape.all_have_role || shape.all_have_from) &&
         std::all_of(shape.fields.begin(), shape.fields.end(), [](auto& f) { return is_exact(*f.second); });
}

// Arguments of a call are JSON text, as in OpenAI's API; of a text and of an object templates write the same.
void spell_arguments(Json* value) {
  if (value->is_array()) {
    for (Json& item : *value) spell_arguments(&item);
    return;
  }
  const auto calls = value->is_object() ? value->find("tool_calls") : value->end();
  if (calls == value->end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    Json& holder = function != call.end() && function->is_object() ? *function : call;
    const auto arguments = holder.find("arguments");
    if (arguments != holder.end() && !arguments->is_string() && !arguments->is_null())
      *arguments = python_json(*arguments);
  }
}

std::shared_ptr<arrow::DataType> type_of(const Shape& shape) {
  switch (shape.kind) {
    case Shape::Kind::kNull:
      return arrow::null();
    case Shape::Kind::kBool:
      return arrow::boolean();
    case Shape::Kind::kInt:
      return arrow::int64();
    case Shape::Kind::kFloat:
      return arrow::float64();
    case Shape::Kind::kText:
      return arrow::utf8();
    case Shape::Kind::kList:
      return arrow::list(type_of(*shape.item));
    case Shape::Kind::kObject:
      break;
  }
  arrow::FieldVector fields;
  for (const auto& [name, inner] : shape.fields) fields.push_back(arrow::field(name, type_of(*inner)));
  return arrow::struct_(fields);
}

void must(const arrow::Status& status) {
  if (!status.ok()) throw invalid_argument(status.message());
}

void append(arrow::ArrayBuilder* builder, const Json& value) {
  if (value.is_null()) return must(builder->AppendNull());
  switch (builder->type()->id()) {
    case arrow::Type::BOOL:
      return must(static_cast<arrow::BooleanBuilder*>(builder)->Append(value.get<bool>()));
    case arrow::Type::INT64:
      return must(static_cast<arrow::Int64Builder*>(builder)->Append(value.get<int64_t>()));
    case arrow::Type::DOUBLE:
      return must(static_cast<arrow::DoubleBuilder*>(builder)->Append(value.get<double>()));
    case arrow::Type::STRING:
      return must(static_cast<arrow::StringBuilder*>(builder)->Append(value.get_ref<const std::string&>()));
    case arrow::Type::LIST: {
      auto* lists = static_cast<arrow::ListBuilder*>(builder);
      must(lists->Append());
      for (const Json& entry : value) append(lists->value_builder(), entry);
      return;
    }
    default:
      break;
  }
  auto* objects = static_cast<arrow::StructBuilder*>(builder);
  must(objects->Append());
  for (int i = 0; i < objects->num_fields(); ++i) {
    const auto found = value.find(objects->type()->field(i)->name());
    append(objects->field_builder(i), found == value.end() ? Json(nullptr) : *found);
  }
}

}  // namespace

std::shared_ptr<arrow::Array> array_of(std::span<const Row> rows, const std::string& key) {
  std::vector<Json> values(rows.size());
  Shape shape;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto found = rows[i].find(key);
    if (found == rows[i].end()) continue;
    values[i] = *found;
    if (key == "tools" && values[i].is_structured()) values[i] = dataset_internal::dump(values[i]);
    spell_arguments(&values[i]);
    widen(&shape, values[i], Level::kColumn);
    const auto refuse = [&](const std::string& what) {
      throw invalid_argument("row " + std::to_string(i + 1) + ", column '" + key + "' " + what +
                             "; save as jsonl");
    };
    if (shape.several_kinds) {
      refuse("holds values of several kinds (" + std::string(json_type_name(values[i])) +
             " after others), which a Parquet column cannot");
    }
    if (shape.too_wide) refuse("holds the integer " + values[i].dump() + ", which is past 64 bits");
    if (shape.wide && shape.kind == Shape::Kind::kFloat)
      refuse("holds integers past 2^53 and numbers with a point, which one column of doubles would round");
  }
  if (!is_exact(shape)) {
    for (Json& value : values) {
      if (!value.is_null()) value = dataset_internal::dump(value);
    }
    shape = {.kind = Shape::Kind::kText};
  }
  std::unique_ptr<arrow::ArrayBuilder> builder;
  must(arrow::MakeBuilder(arrow::default_memory_pool(), type_of(shape), &builder));
  for (const Json& value : values) append(builder.get(), value);
  std::shared_ptr<arrow::Array> out;
  must(builder->Finish(&out));
  return out;
}

}  // namespace twinkle
