// Whose a credential is: a key, or a token that a key was exchanged for. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "twinkle/serve/store.h"
#include "twinkle/serve/token.h"

namespace twinkle::serve {

class Credentials {
 public:
  explicit Credentials(Store& store) : store_(store), signer_(store.secret()) {}

  struct Found {
    std::optional<std::string> owner;
    bool stale = false;  // it was a token of ours: another exchange of the key helps
  };
  Found find(std::string_view credential, double now) const;
  /// The owner of a credential that came beside the request's own; nothing when it is none of ours.
  std::optional<std::string> reader(std::string_view credential, double now) const {
    return find(credential, now).owner;
  }
  /// A token that stands for `owner` for so long, as long as the owner has a key.
  std::string token_for(const std::string& owner, double now, double seconds) const;
  const TokenSigner& signer() const { return signer_; }

 private:
  Store& store_;
  TokenSigner signer_;
};

}  // namespace twinkle::serve
