#include "twinkle/model/shared_rows.h"

#include <algorithm>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

// The block's rows in pieces that lie together, copied one after another in front of all keys.
int64_t copy_block(SharedRows& out, std::span<const int64_t> rows) {
  const int64_t to = out.copied_keys;
  for (size_t i = 0; i < rows.size();) {
    size_t n = 1;
    while (i + n < rows.size() && rows[i + n] == rows[i] + static_cast<int64_t>(n)) ++n;
    out.key_copies.push_back(
        {.from = rows[i], .to = to + static_cast<int64_t>(i), .count = static_cast<int64_t>(n)});
    i += n;
  }
  out.copied_keys += ops::kAttentionBlock;
  return to;
}

}  // namespace

SharedRows share_rows(const PackedBatch& batch, int64_t num_sequences) {
  SharedRows out;
  const auto begin_of = [&](int64_t b) {
    return static_cast<int64_t>(batch.cu_seqlens[static_cast<size_t>(b)]);
  };
  for (int64_t b = 0; b < num_sequences; ++b) {
    const CommonPrefix& prefix = batch.prefix[static_cast<size_t>(b)];
    const int64_t begin = begin_of(b), length = begin_of(b + 1) - begin, own = out.rows();
    TW_CHECK(prefix.length == 0 || (prefix.of >= 0 && prefix.of < b && prefix.length <= length &&
                                    prefix.length <= begin_of(prefix.of + 1) - begin_of(prefix.of)),
             "a prefix is that of an earlier sequence");
    for (int64_t t = 0; t < length; ++t) {
      if (t < prefix.length) {
        out.row_of.push_back(out.row_of[static_cast<size_t>(begin_of(prefix.of) + t)]);
      } else {
        out.row_of.push_back(out.rows());
        out.first.push_back(begin + t);
      }
    }
    out.own.push_back({own, out.rows()});
    auto& blocks = out.block_rows.emplace_back();
    if (prefix.length == 0 || own == out.rows()) continue;
    const auto rows = std::span(out.row_of).subspan(static_cast<size_t>(begin));
    for (int64_t at = 0; at < length; at += ops::kAttentionBlock) {
      const auto count = static_cast<size_t>(std::min(ops::kAttentionBlock, length - at));
      const auto block = rows.subspan(static_cast<size_t>(at), count);
      // Rows of a sequence ascend. A copied block is told from a row by its sign until all are known.
      const bool together = block.back() - block.front() == static_cast<int64_t>(count) - 1;
      blocks.push_back(together ? block.front() : ~copy_block(out, block));
    }
  }
  for (auto& blocks : out.block_rows) {
    for (int64_t& row : blocks) row = row < 0 ? ~row : row + out.copied_keys;
  }
  return out;
}

}  // namespace twinkle
