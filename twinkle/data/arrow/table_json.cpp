#include "twinkle/data/arrow/table_json.h"

#include <arrow/util/float16.h>
#include <arrow/util/ree_util.h>

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

}  // namespace twinkle
