// The wire format against bytes worked out by hand from its specification (protobuf.dev, "Encoding").
#include "twinkle/core/protobuf.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"

namespace twinkle {
namespace {

using namespace std::string_literals;

std::string error_of(const std::string& bytes) {
  return test::thrown([&] {
    for (WireReader in(bytes, "[here] Message"); in.next();) {
    }
  });
}

TEST(Protobuf, ReadsWhatTheSpecificationShows) {
  // field 1: 150; field 2: "testing"; field 3: packed 3, 270, 86942; field 4: -2; fields 5 and 6: 1.5.
  const std::string bytes =
      "\x08\x96\x01\x12\x07testing\x1a\x06\x03\x8e\x02\x9e\xa7\x05"
      "\x20\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x2d\x00\x00\xc0\x3f\x31\x00\x00\x00\x00\x00\x00\xf8\x3f"s;
  WireReader in(bytes, "[here] Message");
  ASSERT_TRUE(in.next());
  EXPECT_EQ(in.field(), 1u);
  EXPECT_EQ(in.integer(), 150);
  EXPECT_EQ(in.integer(), 150);  // again: it is still there
  ASSERT_TRUE(in.next());
  EXPECT_EQ(in.text(), "testing");
  EXPECT_EQ(test::thrown([&] { in.integer(); }), "[here] Message: field 2 has wire type 2 (byte 12)");
  ASSERT_TRUE(in.next());
  std::vector<int64_t> list = {7};
  in.integers(list);
  EXPECT_EQ(list, (std::vector<int64_t>{7, 3, 270, 86942}));
  ASSERT_TRUE(in.next());
  in.integers(list);  // one that is not packed
  EXPECT_EQ(list.back(), -2);
  ASSERT_TRUE(in.next());
  EXPECT_EQ(in.real32(), 1.5f);
  ASSERT_TRUE(in.next());
  EXPECT_EQ(in.real64(), 1.5);
  EXPECT_FALSE(in.next());
}

TEST(Protobuf, TrustsNoLength) {
  EXPECT_EQ(error_of("\x12\x7f"
                     "abc"s),
            "[here] Message: a length of 127 bytes, more than there are (byte 2)");
  EXPECT_EQ(error_of("\x08\x80"s), "[here] Message: the end within a number (byte 2)");
  EXPECT_EQ(error_of("\x09"
                     "abc"s),
            "[here] Message: the end within a number (byte 1)");
  EXPECT_EQ(error_of("\x00\x01"s), "[here] Message: a field number that is none (byte 1)");
  EXPECT_EQ(error_of("\x0b"s), "[here] Message: wire type 3 of field 1, which is not read (byte 1)");
  EXPECT_EQ(error_of("\x08"s + std::string(9, '\xff') + "\x02"s),
            "[here] Message: a number of more than 64 bits (byte 11)");
}

TEST(Protobuf, WritesWhatItReads) {
  WireWriter out;
  out.integer(1, 150);
  out.bytes(2, "testing");
  out.real64(6, 1.5);
  EXPECT_EQ(out.take(), "\x08\x96\x01\x12\x07testing\x31\x00\x00\x00\x00\x00\x00\xf8\x3f"s);
}

}  // namespace
}  // namespace twinkle
