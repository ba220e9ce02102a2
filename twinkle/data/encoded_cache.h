// Encoded rows on disk, under a key of everything they depend on. A file that is cut short, of another
// version or another key, or whose checksum is wrong counts as not there.
#pragma once

#include <string>
#include <vector>

#include "twinkle/data/dataset.h"

namespace twinkle {

struct EncodedData {
  std::vector<InputFeature> features;  // without origin
  std::vector<int64_t> rows;
  std::vector<std::string> parts;
  std::vector<DroppedRow> dropped;
  std::vector<std::pair<int64_t, std::string>> dropped_at;  // index in the data set and place of each
};

bool load_encoded(const std::string& folder, const std::string& key, EncodedData* out);
/// Written whole or not at all; the folder is made.
void save_encoded(const std::string& folder, const std::string& key, const EncodedData& data);

}  // namespace twinkle
