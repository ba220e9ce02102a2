#include "twinkle/core/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/needs.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

const std::string kGolden = TWINKLE_SOURCE_DIR "/tests/core/data/dequantize.gguf";

int64_t num_elements(const GgufTensor& tensor) {
  int64_t n = 1;
  for (const int64_t size : tensor.shape) n *= size;
  return n;
}

// As tests/parity/make_gguf_goldens.py computes it.
uint64_t checksum(const std::vector<float>& values) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], 4);
    sum += (2 * i + 1) * bits;
  }
  return sum;
}

TEST(Gguf, EveryFormatDecodesToTheBitsOfTheReference) {
  const GgufFile file = GgufFile::open(kGolden);
  int formats = 0;
  for (const auto& tensor : file.tensors()) {
    const GgufTensor* expected = file.find(tensor.name + ".expected");
    if (expected == nullptr) continue;
    ++formats;
    EXPECT_EQ(ggml_type_name(tensor.type), tensor.name);
    const int64_t count = num_elements(tensor);
    ASSERT_EQ(num_elements(*expected), count) << tensor.name;
    std::vector<float> got(static_cast<size_t>(count)), want(got.size());
    dequantize(tensor.type, tensor.data.data(), count, got.data());
    dequantize(expected->type, expected->data.data(), count, want.data());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], 4), 0)
          << tensor.name << "[" << i << "]: " << got[i] << " not " << want[i];
    }
  }
  EXPECT_EQ(formats, 12);
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  const GgufFile file = GgufFile::open(kGolden);
  const Json& m = file.metadata();
  EXPECT_EQ(m.at("general.architecture"), "llama");
  EXPECT_EQ(m.at("t.u8"), 250);
  EXPECT_EQ(m.at("t.i8"), -3);
  EXPECT_EQ(m.at("t.u16"), 65000);
  EXPECT_EQ(m.at("t.i16"), -300);
  EXPECT_EQ(m.at("t.u32"), 4000000000u);
  EXPECT_EQ(m.at("t.i32"), -70000);
  EXPECT_EQ(m.at("t.f32").get<float>(), 0.1f);
  EXPECT_EQ(m.at("t.u64"), 9223372036854775809ull);
  EXPECT_EQ(m.at("t.i64"), -(int64_t{1} << 62));
  EXPECT_EQ(m.at("t.f64"), 0.1);
  EXPECT_EQ(m.at("t.bool"), true);
  EXPECT_EQ(m.at("t.string"), "grüße");
  EXPECT_EQ(m.at("t.strings"), Json({"a", "", "Ġb"}));
  EXPECT_EQ(m.at("t.ints"), Json({1, -2, 3}));
  EXPECT_EQ(m.at("t.floats"), Json({0.5, -1.25}));
  EXPECT_EQ(file.find("Q4_K")->shape, (std::vector<int64_t>{2, 256}));
}

// Checksums by make_gguf_goldens.py --model.
TEST(Gguf, RealModelDecodesToTheBitsOfTheReference) {
  const GgufFile file = GgufFile::open(test::smollm2());
  ASSERT_EQ(file.tensors().size(), 272u);
  EXPECT_EQ(file.metadata().at("tokenizer.ggml.tokens").size(), 49152u);
  EXPECT_EQ(file.find("token_embd.weight")->shape, (std::vector<int64_t>{49152, 576}));
  std::vector<uint64_t> sums(file.tensors().size());
  parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& tensor = file.tensors()[static_cast<size_t>(i)];
      std::vector<float> values(static_cast<size_t>(num_elements(tensor)));
      dequantize(tensor.type, tensor.data.data(), num_elements(tensor), values.data());
      sums[static_cast<size_t>(i)] = checksum(values);
    }
  });
  EXPECT_EQ(sums[0], 0xee6fa1c00885e840u);
  uint64_t all = 0;
  for (const uint64_t sum : sums) all = all * 31 + sum;
  EXPECT_EQ(all, 0x1487e1df2dc9cdc0u);
}

// Writes headers by hand, so that any field can be wrong.
struct Bytes {
  std::string data;
  template <class T>
  Bytes& put(T value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& text(std::string_view s) {
    put<uint64_t>(s.size());
    data.append(s);
    return *this;
  }
  Bytes& header(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    data.append("GGUF");
    return put(version).put(tensors).put(values);
  }
  Bytes& tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    text(name).put(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) put(d);
    return put(type).put(offset);
  }
  Bytes& data_section(size_t bytes) {
    data.resize((data.size() + 31) / 32 * 32);
    data.append(bytes, '\1');
    return *this;
  }
};

GgufFile parse(const Bytes& bytes) { return GgufFile::parse(std::as_bytes(std::span(bytes.data)), "x.gguf"); }

TEST(Gguf, ReadsVersionTwoAndTensorsInAnyOrder) {
  for (const uint32_t version : {2u, 3u}) {
    const Bytes bytes =
        Bytes().header(2, 0, version).tensor("b", {8}, 0, 32).tensor("a", {2, 4}, 0, 0).data_section(64);
    const GgufFile file = parse(bytes);
    EXPECT_EQ(file.find("a")->shape, (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(file.find("b")->data.data() - file.find("a")->data.data(), 32);
    EXPECT_EQ(file.find("c"), nullptr);
  }
}

TEST(Gguf, RefusesWhatIsMalformed) {
  constexpr uint64_t kHuge = uint64_t{1} << 62;
  const struct {
    const char* message;
    Bytes bytes;
  } cases[] = {
      {"this is not a GGUF file", Bytes()},
      {"this is not a GGUF file", Bytes{"GGML............."}},
      {"the file ends at byte 4, within the header", Bytes{"GGUF"}},
      {"the file ends at byte 12, within the header", Bytes{std::string("GGUF\3\0\0\0\0\0\0\0", 12)}},
      {"GGUF version 1 is not supported", Bytes().header(0, 0, 1)},
      {"the file is big-endian", Bytes().header(0, 0, 3u << 24)},
      {"more than the 0 bytes that follow can hold", Bytes().header(kHuge, 0)},
      {"more than the 0 bytes that follow can hold", Bytes().header(0, kHuge)},
      {"the length of metadata key 0 is 4611686018427387904",
       Bytes().header(0, 1).put(kHuge).data_section(64)},
      {"metadata key 0 has 0 bytes", Bytes().header(0, 1).text("").put(4u).put(1u).data_section(8)},
      {"the value of 'k' has the unknown type 13", Bytes().header(0, 1).text("k").put(13u).data_section(8)},
      {"the file ends", Bytes().header(0, 1).text("key").put(10u).put('\1')},
      {"is a boolean of 2", Bytes().header(0, 1).text("k").put(7u).put('\2').data_section(8)},
      {"the list 'k' claims 4611686018427387904 values",
       Bytes().header(0, 1).text("k").put(9u).put(4u).put(kHuge)},
      {"the list 'k' has the unknown type 99", Bytes().header(0, 1).text("k").put(9u).put(99u).put(kHuge)},
      {"'k' nests lists too deeply", Bytes()
                                         .header(0, 1)
                                         .text("k")
                                         .put(9u)
                                         .put(9u)
                                         .put(uint64_t{1})
                                         .put(9u)
                                         .put(uint64_t{1})
                                         .put(9u)
                                         .put(uint64_t{1})
                                         .put(9u)
                                         .put(uint64_t{1})
                                         .put(4u)
                                         .put(uint64_t{0})},
      {"metadata key 'k' appears twice",
       Bytes().header(0, 2).text("k").put(4u).put(1u).text("k").put(4u).put(1u)},
      {"'general.alignment' must be a power of two, got 24",
       Bytes().header(0, 1).text("general.alignment").put(4u).put(24u)},
      {"'general.alignment' must be an unsigned number",
       Bytes().header(0, 1).text("general.alignment").put(8u).text("32")},
      {"tensor 'a' has 5 dimensions",
       Bytes().header(1, 0).tensor("a", {1, 1, 1, 1, 1}, 0, 0).data_section(32)},
      {"tensor 'a': its shape overflows",
       Bytes().header(1, 0).tensor("a", {kHuge, 8}, 0, 0).data_section(32)},
      {"tensor 'a': its size overflows", Bytes().header(1, 0).tensor("a", {kHuge}, 0, 0).data_section(32)},
      {"tensor 'a' is stored as IQ4_XS, which is not supported (supported: F32, F16, BF16, Q4_0",
       Bytes().header(1, 0).tensor("a", {256}, 23, 0).data_section(256)},
      {"tensor 'a': rows of 33 are not whole blocks of 32 as Q4_0 needs",
       Bytes().header(1, 0).tensor("a", {33}, 2, 0).data_section(64)},
      {"tensor 'a' begins at 4, which is not a multiple of the alignment 32",
       Bytes().header(1, 0).tensor("a", {1}, 0, 4).data_section(64)},
      {"tensor 'a' needs 32 bytes at 0 of the data, which are 31 bytes; the file is truncated",
       Bytes().header(1, 0).tensor("a", {8}, 0, 0).data_section(31)},
      {"tensor 'a' needs 4 bytes at 18446744073709551584",
       Bytes().header(1, 0).tensor("a", {1}, 0, ~uint64_t{31}).data_section(64)},
      {"tensors 'a' and 'b' overlap",
       Bytes().header(2, 0).tensor("a", {9}, 0, 0).tensor("b", {8}, 0, 32).data_section(64)},
      {"tensor 'a' appears twice",
       Bytes().header(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).data_section(64)},
  };
  for (const auto& c : cases) {
    const std::string got = test::thrown([&] { parse(c.bytes); });
    EXPECT_TRUE(got.starts_with("[gguf] 'x.gguf': ")) << got;
    EXPECT_HAS(got, c.message) << "\nwanted: " << c.message;
  }
}

// Every truncation of a good file is an error, never a crash.
TEST(Gguf, RefusesEveryTruncation) {
  const std::string bytes = read_file(kGolden);
  for (size_t length = 0; length < bytes.size(); length += length < 3000 ? 1 : 97) {
    EXPECT_THROW(GgufFile::parse(std::as_bytes(std::span(bytes.data(), length)), "cut"), Error) << length;
  }
}

}  // namespace
}  // namespace twinkle
