#include "twinkle/data/arrow/table_json.h"

#include <arrow/util/float16.h>
#include <arrow/util/ree_util.h>

#include <algorithm>
#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

Json bytes_of(std::string_view bytes) {
  return unicode::is_valid(bytes) ? std::string(bytes) : tokenizer::encode_base64(bytes);
}

// A column of text promises UTF-8; readers of Parquet do not look.
Json text_of(std::string_view bytes) {
  if (!unicode::is_valid(bytes)) throw invalid_argument("is not valid UTF-8");
  return std::string(bytes);
}

template <class T>
Json number(const arrow::Array& array, int64_t index) {
  return static_cast<const T&>(array).Value(index);
}

template <class T>
Json list(const arrow::Array& array, int64_t index) {
  const auto& lists = static_cast<const T&>(array);
  Json out = Json::array();
  const int64_t begin = lists.value_offset(index), end = begin + lists.value_length(index);
  for (int64_t i = begin; i < end; ++i) out.push_back(json_of(*lists.values(), i));
  return out;
}

Json map(const arrow::MapArray& maps, int64_t index) {
  const int64_t begin = maps.value_offset(index), end = begin + maps.value_length(index);
  const bool text = maps.map_type()->key_type()->id() == arrow::Type::STRING;
  Json out = text ? Json::object() : Json::array();
  for (int64_t i = begin; i < end; ++i) {
    Json key = json_of(*maps.keys(), i), value = json_of(*maps.items(), i);
    if (text) {
      out[key.is_string() ? key.get<std::string>() : std::string()] = std::move(value);
    } else {
      out.push_back(Json::array({std::move(key), std::move(value)}));
    }
  }
  return out;
}

Json object(const arrow::StructArray& objects, int64_t index) {
  Json out = Json::object();
  for (int i = 0; i < objects.num_fields(); ++i) {
    const std::string& name = objects.struct_type()->field(i)->name();
    if (out.contains(name)) throw invalid_argument("has two fields called '" + name + "'");
    out[name] = json_of(*objects.field(i), index);
  }
  return out;
}

// The value of whichever type the row has.
Json of_union(const arrow::UnionArray& array, int64_t index) {
  const auto child = array.field(array.child_id(index));
  if (array.mode() == arrow::UnionMode::SPARSE) return json_of(*child, index);
  return json_of(*child, static_cast<const arrow::DenseUnionArray&>(array).value_offset(index));
}

Json of_run(const arrow::RunEndEncodedArray& array, int64_t index) {
  return json_of(*array.values(),
                 arrow::ree_util::FindPhysicalIndex(arrow::ArraySpan(*array.data()), index, array.offset()));
}

// What a column holds, over all of its rows.
struct Shape {
  enum class Kind { kNull, kBool, kInt, kFloat, kText, kList, kObject };
  Kind kind = Kind::kNull;
  std::unique_ptr<Shape> item;                                         // of a list
  std::vector<std::pair<std::string, std::unique_ptr<Shape>>> fields;  // of an object
};

void widen(Shape* shape, const Json& value) {
  using Kind = Shape::Kind;
  Kind kind = Kind::kText;
  if (value.is_null()) return;
  if (value.is_boolean()) kind = Kind::kBool;
  if (value.is_number_integer()) kind = Kind::kInt;
  if (value.is_number_float()) kind = Kind::kFloat;
  if (value.is_array()) kind = Kind::kList;
  if (value.is_object()) kind = Kind::kObject;
  const bool numbers = (kind == Kind::kInt || kind == Kind::kFloat) &&
                       (shape->kind == Kind::kInt || shape->kind == Kind::kFloat);
  if (shape->kind == Kind::kNull) {
    shape->kind = kind;
  } else if (numbers && shape->kind != kind) {
    shape->kind = Kind::kFloat;
  } else if (shape->kind != kind) {
    throw invalid_argument("holds values of several kinds (" + std::string(json_type_name(value)) +
                           " after others), which a Parquet column cannot; save as jsonl");
  }
  if (kind == Kind::kInt && value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
    throw invalid_argument("holds the integer " + value.dump() + ", which is past 64 bits; save as jsonl");
  if (kind == Kind::kList) {
    if (!shape->item) shape->item = std::make_unique<Shape>();
    for (const Json& entry : value) widen(shape->item.get(), entry);
  }
  if (kind == Kind::kObject) {
    for (const auto& [key, entry] : value.items()) {
      auto found =
          std::find_if(shape->fields.begin(), shape->fields.end(), [&](auto& f) { return f.first == key; });
      if (found == shape->fields.end()) {
        shape->fields.emplace_back(key, std::make_unique<Shape>());
        found = shape->fields.end() - 1;
      }
      widen(found->second.get(), entry);
    }
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

Json json_of(const arrow::Array& array, int64_t index) {
  using arrow::Type;
  if (array.IsNull(index)) return nullptr;
  switch (array.type_id()) {
    case Type::NA:
      return nullptr;
    case Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(index);
    case Type::INT8:
      return number<arrow::Int8Array>(array, index);
    case Type::INT16:
      return number<arrow::Int16Array>(array, index);
    case Type::INT32:
      return number<arrow::Int32Array>(array, index);
    case Type::INT64:
      return number<arrow::Int64Array>(array, index);
    case Type::UINT8:
      return number<arrow::UInt8Array>(array, index);
    case Type::UINT16:
      return number<arrow::UInt16Array>(array, index);
    case Type::UINT32:
      return number<arrow::UInt32Array>(array, index);
    case Type::UINT64:
      return number<arrow::UInt64Array>(array, index);
    case Type::HALF_FLOAT:
      return arrow::util::Float16::FromBits(
                 static_cast<const arrow::HalfFloatArray&>(array).raw_values()[index])
          .ToDouble();
    case Type::FLOAT:
      return static_cast<double>(static_cast<const arrow::FloatArray&>(array).Value(index));
    case Type::DOUBLE:
      return number<arrow::DoubleArray>(array, index);
    case Type::STRING:
      return text_of(static_cast<const arrow::StringArray&>(array).GetView(index));
    case Type::LARGE_STRING:
      return text_of(static_cast<const arrow::LargeStringArray&>(array).GetView(index));
    case Type::STRING_VIEW:
      return text_of(static_cast<const arrow::StringViewArray&>(array).GetView(index));
    case Type::BINARY:
      return bytes_of(static_cast<const arrow::BinaryArray&>(array).GetView(index));
    case Type::LARGE_BINARY:
      return bytes_of(static_cast<const arrow::LargeBinaryArray&>(array).GetView(index));
    case Type::BINARY_VIEW:
      return bytes_of(static_cast<const arrow::BinaryViewArray&>(array).GetView(index));
    case Type::FIXED_SIZE_BINARY:
      return bytes_of(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(index));
    case Type::LIST:
      return list<arrow::ListArray>(array, index);
    case Type::LARGE_LIST:
      return list<arrow::LargeListArray>(array, index);
    case Type::LIST_VIEW:
      return list<arrow::ListViewArray>(array, index);
    case Type::LARGE_LIST_VIEW:
      return list<arrow::LargeListViewArray>(array, index);
    case Type::FIXED_SIZE_LIST:
      return list<arrow::FixedSizeListArray>(array, index);
    case Type::MAP:
      return map(static_cast<const arrow::MapArray&>(array), index);
    case Type::STRUCT:
      return object(static_cast<const arrow::StructArray&>(array), index);
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION:
      return of_union(static_cast<const arrow::UnionArray&>(array), index);
    case Type::RUN_END_ENCODED:
      return of_run(static_cast<const arrow::RunEndEncodedArray&>(array), index);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return json_of(*coded.dictionary(), coded.GetValueIndex(index));
    }
    case Type::EXTENSION:
      return json_of(*static_cast<const arrow::ExtensionArray&>(array).storage(), index);
    case Type::DATE32:
    case Type::DATE64:
    case Type::TIME32:
    case Type::TIME64:
    case Type::TIMESTAMP:
    case Type::DECIMAL32:
    case Type::DECIMAL64:
    case Type::DECIMAL128:
    case Type::DECIMAL256: {
      // Arrow writes them as ISO 8601 and as digits.
      const auto scalar = array.GetScalar(index);
      if (!scalar.ok()) throw invalid_argument(scalar.status().message());
      return (*scalar)->ToString();
    }
    default:
      break;
  }
  throw invalid_argument("is of type " + array.type()->ToString() +
                         ", which rows cannot hold; cast it, or leave the column out");
}

std::shared_ptr<arrow::Array> array_of(std::span<const Row> rows, const std::string& key) {
  Shape shape;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto found = rows[i].find(key);
    if (found == rows[i].end()) continue;
    try {
      widen(&shape, *found);
    } catch (const Error& e) {
      throw invalid_argument("row " + std::to_string(i + 1) + ", column '" + key + "' " + e.what());
    }
  }
  std::unique_ptr<arrow::ArrayBuilder> builder;
  must(arrow::MakeBuilder(arrow::default_memory_pool(), type_of(shape), &builder));
  for (const Row& row : rows) {
    const auto found = row.find(key);
    append(builder.get(), found == row.end() ? Json(nullptr) : *found);
  }
  std::shared_ptr<arrow::Array> out;
  must(builder->Finish(&out));
  return out;
}

}  // namespace twinkle
