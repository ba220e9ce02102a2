#include "twinkle/text/tokenizer_batch.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel_errors.h"

namespace twinkle {
namespace {

bool left_side(std::string side, const Tokenizer& tokenizer, const char* key) {
  if (side.empty()) {
    const auto it = tokenizer.config().find(key);
    side = it != tokenizer.config().end() && it->is_string() ? it->get<std::string>() : "right";
  }
  if (side != "left" && side != "right")
    throw invalid_argument(std::string("[tokenizer] ") + key + ": needs left or right, got \"" + side + "\"");
  return side == "left";
}

}  // namespace

std::vector<std::vector<int32_t>> encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                               const EncodeOptions& options) {
  std::vector<std::vector<int32_t>> rows(texts.size());
  const auto bad = errors_of_items(static_cast<int64_t>(texts.size()), 8, BadItems::kFirst, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    rows[at] = tokenizer.encode(texts[at], options);
  });
  if (!bad.empty()) {
    const auto& [i, error] = *bad.begin();
    throw Error(error.kind(), "[tokenizer] text " + std::to_string(i) + ": " + error.what());
  }
  return rows;
}

PaddedBatch pad_batch(const Tokenizer& tokenizer, std::vector<std::vector<int32_t>> rows,
                      const PadOptions& options) {
  const bool left = left_side(options.side, tokenizer, "padding_side");
  if (options.multiple_of < 1 || options.length < 0)
    throw invalid_argument("[tokenizer] padding: length needs 0 or more, multiple_of 1 or more");
  PaddedBatch batch;
  for (const auto& row : rows) batch.length = std::max(batch.length, static_cast<int64_t>(row.size()));
  if (options.length > 0 && batch.length > options.length) {
    throw invalid_argument("[tokenizer] padding: a row of " + std::to_string(batch.length) +
                           " ids, but length is " + std::to_string(options.length));
  }
  batch.length = std::max(batch.length, options.length);
  batch.length = (batch.length + options.multiple_of - 1) / options.multiple_of * options.multiple_of;
  const int32_t pad = tokenizer.pad_id();
  for (auto& row : rows) {
    const auto missing = static_cast<size_t>(batch.length) - row.size();
    if (missing > 0 && pad < 0)
      throw invalid_argument("[tokenizer] padding: the tokenizer has no pad token (pad_token)");
    std::vector<uint8_t> mask(row.size(), 1);
    row.insert(left ? row.begin() : row.end(), missing, pad);
    mask.insert(left ? mask.begin() : mask.end(), missing, 0);
    batch.attention_mask.push_back(std::move(mask));
    batch.ids.push_back(std::move(row));
  }
  return batch;
}

bool truncates_left(const Tokenizer& tokenizer) { return left_side("", tokenizer, "truncation_side"); }

}  // namespace twinkle
