#include "twinkle/serve/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cmath>

#include "twinkle/core/error.h"

namespace twinkle::serve {
namespace {

constexpr size_t kMostTokenBytes = 4096;
constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// RFC 4648 §5, without padding.
std::string to_base64url(std::string_view bytes) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) out.push_back(kLetters[bits >> (count - 6) & 63]);
  }
  if (count > 0) out.push_back(kLetters[bits << (6 - count) & 63]);
  return out;
}

std::optional<std::string> from_base64url(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t value = kLetters.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count));
  }
  return out;
}

}  // namespace

std::string TokenSigner::signature(std::string_view text) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac;
  unsigned int size = 0;
  if (::HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size) == nullptr)
    throw internal_error("[token] cannot sign");
  return to_base64url({reinterpret_cast<const char*>(mac.data()), size});
}

std::string TokenSigner::sign(std::string_view use, Json claims, double now, double seconds) const {
  claims["use"] = use;
  claims["iat"] = static_cast<int64_t>(now);
  claims["exp"] = static_cast<int64_t>(std::ceil(now + seconds));
  const std::string text = to_base64url(R"({"alg":"HS256","typ":"JWT"})") + "." + to_base64url(claims.dump());
  return text + "." + signature(text);
}

std::optional<TokenSigner::Read> TokenSigner::read(std::string_view use, std::string_view token,
                                                   double now) const {
  if (token.size() > kMostTokenBytes) return std::nullopt;
  const size_t first = token.find('.'), last = token.rfind('.');
  if (first == std::string_view::npos || first == last) return std::nullopt;
  const std::string expected = signature(token.substr(0, last));
  const std::string_view got = token.substr(last + 1);
  if (got.size() != expected.size() || CRYPTO_memcmp(got.data(), expected.data(), got.size()) != 0)
    return std::nullopt;
  const auto payload = from_base64url(token.substr(first + 1, last - first - 1));
  if (!payload) return std::nullopt;
  Read out{.claims = parse_json(*payload, "token")};  // ours: whatever it is, we wrote it
  if (out.claims.value("use", "") != use) return std::nullopt;
  out.expired = out.claims.at("exp").get<double>() <= now;
  return out;
}

bool looks_like_token(std::string_view credential) { return credential.starts_with("eyJ"); }

}  // namespace twinkle::serve
