// JSON Web Tokens that this server makes and only it reads: HMAC-SHA-256 under the secret of the data folder.
// A token says what it is for, so that one for a file opens nothing else. Free of state but the secret;
// thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "twinkle/core/json.h"

namespace twinkle::serve {

class TokenSigner {
 public:
  explicit TokenSigner(std::string secret) : secret_(std::move(secret)) {}

  /// `claims` with "use", "iat" and "exp" (RFC 7519; whole seconds), signed.
  std::string sign(std::string_view use, Json claims, double now, double seconds) const;

  struct Read {
    Json claims;
    bool expired = false;
  };
  /// Nothing unless it is one of ours for this use, to the bit.
  std::optional<Read> read(std::string_view use, std::string_view token, double now) const;

 private:
  std::string signature(std::string_view text) const;

  std::string secret_;
};

/// Whether a credential has the form of a token rather than of a key.
bool looks_like_token(std::string_view credential);

}  // namespace twinkle::serve
