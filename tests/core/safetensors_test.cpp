#include "twinkle/core/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

std::string bytes_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\1');
}

SafetensorsFile parse(const std::string& bytes) {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "x.safetensors");
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, ReadsFilesOfTheReference) {
  const struct {
    const char *file, *dtype;
    std::vector<int64_t> shape;
  } cases[] = {{"tensor-1d-int32", "I32", {1}},
               {"tensor-2d-float64", "F64", {1, 4}},
               {"tensor-3d-float32", "F32", {1, 2, 4}},
               {"tensor-4d-float32", "F32", {1, 2, 4, 2}}};
  for (const auto& c : cases) {
    const auto file =
        SafetensorsFile::open(test::test_data("safetensors/" + std::string(c.file) + ".safetensors"));
    ASSERT_EQ(file.tensors().size(), 1u) << c.file;
    EXPECT_EQ(file.tensors()[0].dtype, c.dtype) << c.file;
    EXPECT_EQ(file.tensors()[0].data.size(),
              static_cast<size_t>(file.tensors()[0].num_elements() * safetensors_dtype_bytes(c.dtype)));
  }
  const auto model = SafetensorsFile::open(test::stories() + "/model.safetensors");
  EXPECT_EQ(model.metadata().at("format"), "pt");
  EXPECT_EQ(model.tensors().size(), 47u);
  ASSERT_NE(model.find("model.norm.weight"), nullptr);
  EXPECT_EQ(model.find("model.embed_tokens.weight")->shape, (std::vector<int64_t>{512, 64}));
  EXPECT_EQ(model.find("lm_head.weight"), nullptr);
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  // Spaces after the header, no tensors at all, a tensor without elements, a scalar, offsets in any order of
  // keys.
  EXPECT_EQ(parse(bytes_of("{}      ", 0)).tensors().size(), 0u);
  EXPECT_EQ(parse(bytes_of(one("F32", "[2,0,3]", "[0,0]"), 0)).find("a")->num_elements(), 0);
  EXPECT_EQ(parse(bytes_of(one("F32", "[]", "[0,4]"), 4)).find("a")->num_elements(), 1);
  const auto file = parse(bytes_of(
      R"({"b":{"data_offsets":[4,6],"shape":[1],"dtype":"BF16"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      6));
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
}

TEST(Safetensors, RefusesWhatIsMalformed) {
  const std::string good = one("F32", "[2,2]", "[0,16]");
  std::string absurd = bytes_of(good, 16);
  const uint64_t huge = uint64_t{1} << 63;
  std::memcpy(absurd.data(), &huge, 8);
  std::string too_long = bytes_of(good, 16);
  const uint64_t whole = too_long.size();
  std::memcpy(too_long.data(), &whole, 8);
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[8],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[8],"data_offsets":)" + b + "}}";
  };
  const struct {
    const char* message;
    std::string bytes;
  } cases[] = {
      {"the file has 0 bytes, too few for a header", ""},
      {"the file has 7 bytes, too few for a header", "1234567"},
      {"the header claims 9223372036854775808 bytes; the limit is 100000000", absurd},
      {"it is truncated or not a safetensors file", too_long},
      {"the header does not begin with '{'", bytes_of("", 0)},
      {"the header does not begin with '{'", bytes_of(" {}", 0)},
      {"the header does not begin with '{'", bytes_of("[]", 0)},
      {"the header is not valid JSON at byte", bytes_of("{not json}", 0)},
      {"the header is not valid JSON at byte", bytes_of("{\"a\":", 0)},
      {"the header is not valid JSON at byte", bytes_of("{\"\xff\":{}}", 0)},
      {"the header is not valid JSON at byte", bytes_of("{}x", 0)},
      {"'a' must be an object, got the number 1", bytes_of(R"({"a":1})", 0)},
      {"metadata 'k' must be a string, got the number 1", bytes_of(R"({"__metadata__":{"k":1}})", 0)},
      {"tensor 'a' has the unknown key 'strides'", bytes_of(R"({"a":{"strides":[1]}})", 0)},
      {"tensor 'a' has 'dtype' twice", bytes_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0)},
      {"tensor 'a' has no 'dtype'", bytes_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1)},
      {"tensor 'a' has no 'shape'", bytes_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1)},
      {"tensor 'a' has no 'data_offsets'", bytes_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1)},
      {"tensor 'a': 'data_offsets' must hold two numbers", bytes_of(one("U8", "[1]", "[0,1,2]"), 1)},
      {"tensor 'a': 'shape' must be a list of whole numbers >= 0, got the number -1",
       bytes_of(one("U8", "[-1]", "[0,1]"), 1)},
      {"got the number 1.5", bytes_of(one("U8", "[1.5]", "[0,1]"), 1)},
      {"got a list", bytes_of(one("U8", "[[1]]", "[0,1]"), 1)},
      {"tensor 'a' has the unknown dtype 'F31'", bytes_of(one("F31", "[1]", "[0,4]"), 4)},
      {"tensor 'a' ends before it begins: data_offsets [4, 0]", bytes_of(one("F32", "[1]", "[4,0]"), 4)},
      {"tensor 'a' ends at byte 16 of the data, which are 15 bytes; the file is truncated",
       bytes_of(good, 15)},
      {"tensor 'a' of F32 and shape [2, 2] needs 16 bytes, its data_offsets hold 12",
       bytes_of(one("F32", "[2,2]", "[0,12]"), 12)},
      {"the shape [4294967296, 4294967296] overflows",
       bytes_of(one("F32", "[4294967296,4294967296]", "[0,0]"), 0)},
      {"overflows", bytes_of(one("F32", "[0,9223372036854775808]", "[0,0]"), 0)},
      {"needs 0 bytes, its data_offsets hold 4", bytes_of(one("F32", "[0]", "[0,4]"), 4)},
      {"tensors 'a' and 'b' overlap", bytes_of(two("[0,8]", "[4,12]"), 12)},
      {"tensors 'a' and 'b' overlap", bytes_of(two("[0,8]", "[0,8]"), 8)},
      {"bytes 8 to 12 of the data belong to no tensor (before 'b')", bytes_of(two("[0,8]", "[12,20]"), 20)},
      {"4 bytes follow the last tensor", bytes_of(good, 20)},
      {"tensor 'a' appears twice",
       bytes_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2)},
  };
  for (const auto& c : cases) {
    const std::string got = test::thrown([&] { parse(c.bytes); });
    EXPECT_TRUE(got.starts_with("[safetensors] 'x.safetensors': ")) << got;
    EXPECT_HAS(got, c.message) << "\nwanted: " << c.message;
  }
}

TEST(Safetensors, NamesAPickleUnderAnotherName) {
  const std::string payload = "cposix\nsystem\n(S'evil'\ntR.";
  for (const char* begin : {"\x80\x02", "\x80\x03", "\x80\x04", "\x80\x05", "PK\x03\x04"}) {
    const std::string got = test::thrown([&] { parse(begin + payload); });
    EXPECT_HAS(got, "this is a pickle, as torch.save writes it, under another name") << begin;
  }
  // Those of the first protocols begin like any text.
  EXPECT_HAS(test::thrown([&] { parse(payload + payload); }), "the header claims");
  // A header of 640 bytes has a length that begins as a pickle does.
  const std::string header = one("F32", "[2,2]", "[0,16]");
  const auto file = parse(bytes_of(header + std::string(640 - header.size(), ' '), 16));
  EXPECT_EQ(file.tensors().size(), 1u);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string bytes = read_file(test::test_data("safetensors/tensor-4d-float32.safetensors"));
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(parse(bytes.substr(0, length)), Error) << length;
}

using Folder = test::TempDir;

// Byte i of tensor t is a fixed function of both, so that a piece in the wrong place shows.
std::byte pattern(size_t tensor, int64_t i) {
  return static_cast<std::byte>((static_cast<uint64_t>(i) * 2654435761u >> 13) + 31 * tensor);
}

std::vector<TensorToWrite> patterned(const std::vector<std::pair<std::string, int64_t>>& tensors) {
  std::vector<TensorToWrite> out;
  for (size_t t = 0; t < tensors.size(); ++t) {
    auto next = std::make_shared<int64_t>(0);
    out.push_back({.name = tensors[t].first,
                   .dtype = t % 2 ? "BF16" : "F32",
                   .shape = {tensors[t].second},
                   .fill = [t, next](int64_t offset, std::span<std::byte> piece) {
                     EXPECT_EQ(offset, *next);
                     EXPECT_EQ(piece.size() % (t % 2 ? 2 : 4), 0u);
                     *next += static_cast<int64_t>(piece.size());
                     for (size_t i = 0; i < piece.size(); ++i)
                       piece[i] = pattern(t, offset + static_cast<int64_t>(i));
                   }});
  }
  return out;
}

void round_trip(const std::string& path, const std::vector<std::pair<std::string, int64_t>>& tensors) {
  write_safetensors(path, patterned(tensors), {{"format", "pt"}});
  const auto file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (size_t t = 0; t < tensors.size(); ++t) {
    const SafeTensor* tensor = file.find(tensors[t].first);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, std::vector<int64_t>{tensors[t].second});
    bool same = true;
    for (size_t i = 0; i < tensor->data.size(); ++i)
      same &= tensor->data[i] == pattern(t, static_cast<int64_t>(i));
    EXPECT_TRUE(same) << tensors[t].first;
  }
}

TEST(SafetensorsWriter, RoundTripsSmallAndLargeFiles) {
  const Folder folder;
  round_trip(folder / "none", {});
  round_trip(folder / "small", {{"b", 3}, {"a", 5}, {"empty", 0}, {"ä \"quoted\"\n", 1}});
  // Larger than the pieces, with tensors that cross them at odd places.
  round_trip(folder / "large",
             {{"w0", 3'000'001}, {"w1", 5'000'003}, {"w2", 1}, {"w3", 7}, {"w4", 4'194'304}});
}

TEST(SafetensorsWriter, WorksWhereTheCacheCannotBePassed) {
  if (!std::filesystem::is_directory("/dev/shm")) return;
  const Folder folder("/dev/shm");
  round_trip(folder / "large", {{"w0", 3'000'001}, {"w1", 5'000'003}});
}

// The bytes that the `safetensors` package writes for the same tensors (safetensors.numpy.save, 0.8.0).
TEST(SafetensorsWriter, WritesTheBytesOfTheReference) {
  const Folder folder;
  const auto constant = [](std::string name, std::string dtype, std::vector<int64_t> shape, std::byte value) {
    return TensorToWrite{name, dtype, shape, [value](int64_t, std::span<std::byte> out) {
                           std::fill(out.begin(), out.end(), value);
                         }};
  };
  write_safetensors(folder / "f",
                    {constant("b", "F16", {2}, std::byte{1}), constant("z", "F32", {1, 2}, std::byte{2}),
                     constant("c", "I64", {1}, std::byte{3}), constant("a", "F32", {1}, std::byte{4})},
                    {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"c":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"z":{"dtype":"F32","shape":[1,2],"data_offsets":[12,20]},)"
      R"("b":{"dtype":"F16","shape":[2],"data_offsets":[20,24]}})";
  std::string padded = header;
  padded.resize((padded.size() + 7) / 8 * 8, ' ');
  std::string want = bytes_of(padded, 0) + std::string(8, '\3') + std::string(4, '\4') +
                     std::string(8, '\2') + std::string(4, '\1');
  EXPECT_EQ(read_file(folder / "f"), want);
}

TEST(SafetensorsWriter, FullDiskIsExhaustedAndLeavesNothing) {
  const Folder folder;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 20'000'000;
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_HAS(test::thrown([&] { write_safetensors(folder / "f", patterned({{"w0", 12'000'000}}), {}); },
                          ErrorKind::kExhausted),
             "[safetensors] cannot write '" + (folder / "f"));
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, AThrowingFillLeavesNothing) {
  const Folder folder;
  for (const int64_t elements : {int64_t{10}, int64_t{20'000'000}}) {
    int calls = 0;
    const TensorToWrite bad{"w", "F32", {elements}, [&](int64_t, std::span<std::byte>) {
                              if (++calls == (elements > 10 ? 5 : 1)) throw exhausted("stop");
                            }};
    EXPECT_THROW(write_safetensors(folder / "f", {bad}, {}), Error);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  EXPECT_THROW(write_safetensors(folder / "no/such/folder", {}, {}), Error);
}

}  // namespace
}  // namespace twinkle
