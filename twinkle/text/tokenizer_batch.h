// Many texts at once: encoded on all cores, and padded to one length for those who need a rectangle (training
// here never pads). Results do not depend on the number of threads. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "twinkle/text/tokenizer.h"

namespace twinkle {

/// encode() of every text, in order. The first text that fails throws, with its index in the message.
std::vector<std::vector<int32_t>> encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                               const EncodeOptions& options = {});

struct PadOptions {
  std::string side;         // "left" or "right"; "": padding_side of the tokenizer's config, else right
  int64_t length = 0;       // of every row; 0: that of the longest
  int64_t multiple_of = 1;  // the length is rounded up to a multiple of this
};

struct PaddedBatch {
  int64_t length = 0;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<uint8_t>> attention_mask;  // 1: an id of the text
};

/// Rows of one length. Without a pad token, or with a row longer than `length`: invalid_argument.
PaddedBatch pad_batch(const Tokenizer& tokenizer, std::vector<std::vector<int32_t>> rows,
                      const PadOptions& options = {});

/// The config's truncation_side as EncodeOptions::truncate_left takes it; right when it says nothing.
bool truncates_left(const Tokenizer& tokenizer);

}  // namespace twinkle
