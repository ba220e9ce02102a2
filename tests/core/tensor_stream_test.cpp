// Weights on the wire: what is sent comes out, and nothing that was damaged, cut or made up does.
#include "twinkle/core/tensor_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kBucket = 64;

Bytes random_bytes(size_t n, uint64_t seed) {
  CounterRng rng(seed);
  Bytes out(n);
  for (auto& b : out) b = static_cast<std::byte>(rng.next_below(256));
  return out;
}

// Tensors of several types and sizes, one of them empty.
struct Tensors {
  Tensors() {
    const auto add = [&](const std::string& name, const std::string& dtype, std::vector<int64_t> shape) {
      int64_t n = safetensors_dtype_bytes(dtype);
      for (const int64_t size : shape) n *= size;
      values[name] = random_bytes(static_cast<size_t>(n), values.size() + 1);
      list.push_back({name, dtype, std::move(shape), [this, name](int64_t offset, std::span<std::byte> out) {
                        std::memcpy(out.data(), values[name].data() + offset, out.size());
                      }});
    };
    add("a", "F32", {3, 5});
    add("none", "F32", {0, 7});
    add("b", "BF16", {9});
    add("c", "F32", {31});
  }
  std::map<std::string, Bytes> values;
  std::vector<TensorToWrite> list;
};

Bytes stream_of(Tensors& tensors, int64_t* file_bytes) {
  Bytes out;
  FrameWriter writer(
      [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
  const auto plan = plan_safetensors(tensors.list, {});
  *file_bytes = plan.total_bytes;
  writer.write_message(FrameKind::kAbout, Json{{"name", "x"}});
  send_tensors(writer, plan, kBucket);
  writer.write_message(FrameKind::kEnd, Json::object());
  return out;
}

ReadBytes bytes_from(std::span<const std::byte> stream) {
  return [left = stream](std::span<std::byte> out) mutable {
    const size_t n = std::min(out.size(), left.size());
    std::copy_n(left.begin(), n, out.begin());
    left = left.subspan(n);
    return n;
  };
}

std::map<std::string, Bytes> read_stream(const Bytes& stream, int64_t file_bytes) {
  FrameReader reader(bytes_from(stream));
  EXPECT_EQ(reader.read_message(FrameKind::kAbout), (Json{{"name", "x"}}));
  std::map<std::string, Bytes> out;
  std::vector<SafeTensor> known;
  SafetensorsFeed feed(
      static_cast<uint64_t>(file_bytes), "stream",
      [&](const std::vector<SafeTensor>& tensors) {
        known = tensors;
        for (const auto& tensor : tensors) out[tensor.name];
      },
      [&](size_t tensor, int64_t offset, std::span<const std::byte> bytes) {
        Bytes& to = out[known[tensor].name];
        EXPECT_EQ(static_cast<int64_t>(to.size()), offset);
        to.insert(to.end(), bytes.begin(), bytes.end());
      });
  receive_buckets(reader, file_bytes, kBucket, [&](std::span<const std::byte> b) { feed.feed(b); });
  feed.finish();
  reader.read_message(FrameKind::kEnd);
  EXPECT_FALSE(reader.read_message_or_end(FrameKind::kAbout).has_value());
  return out;
}

std::string message_of(const std::function<void()>& fn, ErrorKind kind) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Crc32c, IsThatOfTheStandard) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogues.
  Bytes zeros(32), ones(32, std::byte{0xFF}), up(32);
  for (size_t i = 0; i < 32; ++i) up[i] = static_cast<std::byte>(i);
  const std::string digits = "123456789";
  for (const auto crc : {crc32c, crc32c_plain}) {
    EXPECT_EQ(crc(zeros, 0), 0x8A9136AAu);
    EXPECT_EQ(crc(ones, 0), 0x62A8AB43u);
    EXPECT_EQ(crc(up, 0), 0x46DD794Eu);
    EXPECT_EQ(crc(std::as_bytes(std::span(digits)), 0), 0xE3069283u);
  }
  const Bytes all = random_bytes(1000, 1);
  for (const size_t cut : {0u, 1u, 7u, 8u, 333u, 999u, 1000u}) {
    const auto first = std::span(all).first(cut), rest = std::span(all).subspan(cut);
    EXPECT_EQ(crc32c(rest, crc32c(first)), crc32c_plain(all)) << cut;
    EXPECT_EQ(crc32c_plain(rest, crc32c_plain(first)), crc32c(all)) << cut;
  }
}

TEST(TensorStream, GivesWhatWasSent) {
  Tensors tensors;
  int64_t file_bytes = 0;
  const Bytes stream = stream_of(tensors, &file_bytes);
  EXPECT_GT(file_bytes, 4 * kBucket);
  EXPECT_EQ(read_stream(stream, file_bytes), tensors.values);
}

TEST(TensorStream, FindsEveryFlippedBit) {
  Tensors tensors;
  int64_t file_bytes = 0;
  const Bytes stream = stream_of(tensors, &file_bytes);
  for (size_t at = 0; at < stream.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = stream;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_THROW(read_stream(damaged, file_bytes), Error) << "byte " << at << ", bit " << bit;
    }
  }
}

TEST(TensorStream, FindsEveryCut) {
  Tensors tensors;
  int64_t file_bytes = 0;
  const Bytes stream = stream_of(tensors, &file_bytes);
  for (size_t length = 0; length < stream.size(); ++length) {
    const Bytes cut(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(length));
    const std::string said = message_of([&] { read_stream(cut, file_bytes); }, ErrorKind::kUnavailable);
    EXPECT_NE(said.find("the other side is gone"), std::string::npos) << said;
  }
}

TEST(TensorStream, FindsFramesThatAreLostOrComeTwice) {
  Tensors tensors;
  int64_t file_bytes = 0;
  const Bytes stream = stream_of(tensors, &file_bytes);
  const size_t about = 32 + std::string(R"({"name":"x"})").size(), frame = 32 + kBucket;
  Bytes lost = stream, twice = stream;
  lost.erase(lost.begin() + static_cast<ptrdiff_t>(about),
             lost.begin() + static_cast<ptrdiff_t>(about + frame));
  twice.insert(twice.begin() + static_cast<ptrdiff_t>(about), stream.begin() + static_cast<ptrdiff_t>(about),
               stream.begin() + static_cast<ptrdiff_t>(about + frame));
  EXPECT_EQ(message_of([&] { read_stream(lost, file_bytes); }, ErrorKind::kInvalidArgument),
            "[stream] frame 1: it has the number 2; frames were lost");
  EXPECT_EQ(message_of([&] { read_stream(twice, file_bytes); }, ErrorKind::kInvalidArgument),
            "[stream] frame 2: it has the number 1; frames were lost");
}

TEST(TensorStream, ChecksLengthsBeforeItAllocates) {
  // A head that is whole and claims more than there is memory.
  struct {
    uint32_t magic = 0x464B5754, kind = 3;
    uint64_t number = 0, bytes = uint64_t{1} << 60;
    uint32_t body_crc = 0, head_crc = 0;
  } head;
  head.head_crc = crc32c(std::as_bytes(std::span(&head, 1)).first(28));
  const auto bytes = std::as_bytes(std::span(&head, 1));
  Bytes body;
  EXPECT_EQ(message_of([&] { FrameReader(bytes_from(bytes)).read(FrameKind::kBucket, 100, body); },
                       ErrorKind::kInvalidArgument),
            "[stream] frame 0: it claims 1152921504606846976 bytes, at most 100 may come here");
  EXPECT_EQ(message_of([&] { FrameReader(bytes_from(bytes)).read(FrameKind::kEnd, 100, body); },
                       ErrorKind::kInvalidArgument),
            "[stream] frame 0: expected an end, got a bucket");
  EXPECT_TRUE(body.empty());
}

TEST(TensorStream, SaysWhatEitherSideThrows) {
  Tensors tensors;
  const auto plan = plan_safetensors(tensors.list, {});
  int writes = 0;
  FrameWriter broken([&](std::span<const std::byte>) {
    if (++writes > 3) throw unavailable("no more");
  });
  EXPECT_EQ(message_of([&] { send_tensors(broken, plan, kBucket); }, ErrorKind::kUnavailable), "no more");
  tensors.list[0].fill = [](int64_t, std::span<std::byte>) { throw exhausted("no memory"); };
  FrameWriter fine([](std::span<const std::byte>) {});
  EXPECT_EQ(message_of([&] { send_tensors(fine, plan, kBucket); }, ErrorKind::kExhausted), "no memory");

  Tensors whole;
  int64_t file_bytes = 0;
  const Bytes stream = stream_of(whole, &file_bytes);
  FrameReader reader(bytes_from(stream));
  reader.read_message(FrameKind::kAbout);
  EXPECT_EQ(message_of(
                [&] {
                  receive_buckets(reader, file_bytes, kBucket,
                                  [](std::span<const std::byte>) { throw conflict("not this"); });
                },
                ErrorKind::kConflict),
            "not this");
}

TEST(SafetensorsFeed, TakesPiecesOfAnySize) {
  Tensors tensors;
  const auto plan = plan_safetensors(tensors.list, {});
  Bytes file(static_cast<size_t>(plan.total_bytes));
  std::memcpy(file.data(), plan.head.data(), plan.head.size());
  size_t at = plan.head.size();
  for (const auto* tensor : plan.order) {
    const Bytes& value = tensors.values[tensor->name];
    std::copy(value.begin(), value.end(), file.begin() + static_cast<ptrdiff_t>(at));
    at += value.size();
  }
  ASSERT_EQ(SafetensorsFile::parse(file, "x").tensors().size(), 4u);
  for (const size_t piece : {1u, 3u, 8u, 100u, 5000u}) {
    Bytes data;
    SafetensorsFeed feed(
        file.size(), "x", [](const std::vector<SafeTensor>&) {},
        [&](size_t, int64_t, std::span<const std::byte> bytes) {
          data.insert(data.end(), bytes.begin(), bytes.end());
        });
    for (size_t i = 0; i < file.size(); i += piece) {
      if (i > 0) {
        EXPECT_THROW(feed.finish(), Error);
      }
      feed.feed(std::span(file).subspan(i, std::min(piece, file.size() - i)));
    }
    feed.finish();
    EXPECT_TRUE(std::equal(data.begin(), data.end(), file.begin() + static_cast<ptrdiff_t>(plan.head.size()),
                           file.end()));
    EXPECT_EQ(message_of([&] { feed.feed(std::span(file).first(1)); }, ErrorKind::kInvalidArgument),
              "[safetensors] 'x': more bytes came than the file has");
  }
}

}  // namespace
}  // namespace twinkle
