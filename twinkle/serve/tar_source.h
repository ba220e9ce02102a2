// A tar archive (POSIX ustar) of files, made while it is read; and one file alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "twinkle/serve/http.h"

namespace twinkle::serve {

struct TarEntry {
  std::string name;  // within the archive, at most 99 bytes
  std::string path;  // "": an empty file
};
/// Every file is opened here, so that what is deleted later is still sent. Errors as those of files.
std::shared_ptr<BodySource> tar_source(const std::vector<TarEntry>& entries);
std::shared_ptr<BodySource> file_source(const std::string& path);

}  // namespace twinkle::serve
