// Limits of keys, with a clock of the test's own.
#include "twinkle/serve/admission.h"

#include <gtest/gtest.h>

namespace twinkle::serve {
namespace {

HttpRequest request(int64_t bytes, const std::string& target = "/api/v1/forward") {
  HttpRequest out{.method = "POST", .target = target};
  out.headers.emplace_back("Content-Length", std::to_string(bytes));
  return out;
}

struct Rig {
  double now = 1000;
  KeyEntry key{.id = "key-1", .name = "ann", .owner = "user-1"};
  Admission admission{{.requests_per_second = 100}, 5000, [this] { return now; }};
  int status(HttpRequest& r) {
    const auto refused = admission.enter(key, r);
    return refused ? refused->status : 0;
  }
  int status(int64_t bytes) {
    HttpRequest r = request(bytes);
    return status(r);
  }
};

TEST(Admission, RequestsASecond) {
  Rig rig;
  rig.key.limits.requests_per_second = 4;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rig.status(0), 0) << i;
  EXPECT_EQ(rig.status(0), 429);
  HttpRequest heartbeat = request(0, "/api/v1/session_heartbeat");
  EXPECT_EQ(rig.status(heartbeat), 0);
  rig.now += 0.5;  // two more
  EXPECT_EQ(rig.status(0), 0);
  EXPECT_EQ(rig.status(0), 0);
  EXPECT_EQ(rig.status(0), 429);
  rig.now += 1000;  // no more than a second's worth adds up
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rig.status(0), 0) << i;
  EXPECT_EQ(rig.status(0), 429);
  const auto usage = rig.admission.usage();
  ASSERT_EQ(usage.size(), 1u);
  EXPECT_EQ(usage[0].requests, 14);
  EXPECT_EQ(usage[0].refused, 3);
}

TEST(Admission, TheServersLimitsAreForKeysWithoutTheirOwn) {
  Rig rig;
  EXPECT_EQ(rig.admission.limits_of(rig.key).requests_per_second, 100);
  rig.key.limits.requests_per_second = 0.5;
  EXPECT_EQ(rig.admission.limits_of(rig.key).requests_per_second, 0.5);
  EXPECT_EQ(rig.status(0), 0);
  EXPECT_EQ(rig.status(0), 429);
  rig.now += 2;
  EXPECT_EQ(rig.status(0), 0);
}

TEST(Admission, BytesAreHeldUntilTheReply) {
  Rig rig;
  rig.key.limits.bytes_in_flight = 1000;
  EXPECT_EQ(rig.status(1001), 413);
  HttpRequest first = request(600), second = request(600), third = request(400);
  EXPECT_EQ(rig.status(first), 0);
  EXPECT_EQ(rig.status(second), 429);
  EXPECT_EQ(rig.status(third), 0);
  first.held.reset();
  EXPECT_EQ(rig.status(second), 0);
  second.held.reset();
  third.held.reset();
  // Without a length a body may be as large as one may be.
  HttpRequest chunked{.method = "POST", .target = "/api/v1/forward"};
  chunked.headers.emplace_back("Transfer-Encoding", "chunked");
  EXPECT_EQ(rig.status(chunked), 0);
  EXPECT_EQ(rig.status(1), 429);
  chunked.held.reset();
  EXPECT_EQ(rig.status(1), 0);
}

TEST(Admission, TokensOfAMinute) {
  Rig rig;
  rig.key.limits.tokens_per_minute = 600;
  EXPECT_FALSE(rig.admission.take_tokens(rig.key, 500));
  EXPECT_FALSE(rig.admission.take_tokens(rig.key, 500));  // more than are left, and the next one waits
  const auto refused = rig.admission.take_tokens(rig.key, 1);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->retry_after, 41);  // 400 too many, ten come in a second, and one more
  rig.now += 41;
  EXPECT_FALSE(rig.admission.take_tokens(rig.key, 1));
  rig.admission.spend_tokens("user-1", 1000);  // an answer
  EXPECT_TRUE(rig.admission.take_tokens(rig.key, 1));
  rig.now += 3600;
  EXPECT_FALSE(rig.admission.take_tokens(rig.key, 600));
  EXPECT_TRUE(rig.admission.take_tokens(rig.key, 1));
}

}  // namespace
}  // namespace twinkle::serve
