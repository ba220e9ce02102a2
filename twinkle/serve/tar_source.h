// A tar archive (POSIX ustar) of files, made while it is read; and one file alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "twinkle/serve/http.h"

namespace twinkle::serve {

struct TarEntry {
  std::string name;  // within the archive, at most 99 bytes
  std::string path;  // below the root; "": an empty file
};
/// Every file is opened here, so that what is deleted later is still sent. Errors as those of files; what is
/// a link, or lies behind one, is not_found.
std::shared_ptr<BodySource> tar_source(const std::string& root, const std::vector<TarEntry>& entries);
std::shared_ptr<BodySource> file_source(const std::string& root, const std::string& path);

}  // namespace twinkle::serve
