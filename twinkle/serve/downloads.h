// Files of checkpoints by addresses that open themselves for a while: the address has a signed token that
// names the folder, the file and the end of its time, so that plain tools can fetch it without a key.
//
// A file is sent as it is; a folder as a tar archive that is made while it is sent. Either takes a piece of
// memory, however large the file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "twinkle/serve/http.h"
#include "twinkle/serve/token.h"

namespace twinkle::serve {

class Downloads {
 public:
  static constexpr std::string_view kPrefix = "/api/v1/download/";

  Downloads(const TokenSigner& signer, std::string data_dir)
      : signer_(signer), data_dir_(std::move(data_dir)) {}

  /// Names of the files of a checkpoint that others can use: the adapter as PEFT has it.
  std::vector<std::string> files_of(const std::string& folder) const;
  /// The path of an address. `file` "": the archive of all files.
  std::string path_of(const std::string& folder, const std::string& file, double now, double seconds) const;

  static bool has(std::string_view path) { return path.starts_with(kPrefix); }
  /// 403 when the address was changed or its time is over, 404 when the checkpoint is gone.
  HttpReply reply(std::string_view path, double now) const;

 private:
  const TokenSigner& signer_;
  std::string data_dir_;
};

}  // namespace twinkle::serve
