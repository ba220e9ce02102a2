// A request to the engine and what becomes of it. Every method may be called from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/sample/sampling_params.h"

namespace twinkle {

/// A token whose log-probability is asked for at a place of the prompt, given those before it.
struct PromptTarget {
  int64_t place = 0;  // from 1
  int32_t id = 0;
};

struct SampleRequest {
  std::vector<int32_t> prompt;
  SamplingParams params;
  std::string version;           // weights, by the name given to add_version; "": the base model
  std::string tenant;            // requests take turns by tenant, and each has cached prefixes of its own
  std::vector<int32_t> end_ids;  // end an answer unless ignore_eos
  uint64_t stream = 0;           // answer i draws from random stream `stream` + i under the seed
  bool pieces = false;           // give text while it is made, see SampleJob::next
  std::vector<PromptTarget> prompt_targets = {};  // by ascending place
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

struct SampledSequence {
  std::vector<int32_t> tokens;          // a token that ended it is the last one
  std::vector<float> logprobs;          // the model's own, at temperature 1, before penalties and cut-offs:
                                        // the bits of the trainer's forward pass
  std::vector<float> sampled_logprobs;  // of the distribution each token was drawn from; greedy: 0
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // the likeliest at each place, as `logprobs`
  std::vector<std::vector<TokenLogprob>>
      top_sampled;          // as `sampled_logprobs`; fewer where cut-offs left fewer
  std::string text;         // decoded, without special tokens, cut before a stop string; "" when the engine
                            // has no tokenizer
  std::string stop_reason;  // "stop" | "length" | "abort" (cancelled)
};

struct SampleResult {
  std::vector<SampledSequence> sequences;
  std::vector<std::optional<float>> prompt_logprobs;  // of each token given those before it; the first: none
  std::vector<std::vector<TokenLogprob>> topk_prompt_logprobs;
  std::vector<float> prompt_target_logprobs;  // of SampleRequest::prompt_targets
  std::vector<std::vector<TokenLogprob>>
      prompt_draws;           // of place 1, 2 ...; the model's own log-probabilities
  std::string version;        // whose weights answered
  int64_t model_version = 0;  // how often the model's own weights had been changed when it ended
  int64_t prompt_tokens = 0, cached_tokens = 0;  // cached: found in the prefix cache (first answer)
};

/// Text of one answer as it is made.
struct SamplePiece {
  size_t sequence = 0;
  std::string text;
  std::vector<int32_t> tokens;
  std::string stop_reason;  // "" until its end
};

class SampleJob : public std::enable_shared_from_this<SampleJob> {
 public:
  /// The next piece, waiting for it; nothing at the end. Only for requests that asked for pieces.
  std::optional<SamplePiece> next();
  /// A piece that is there already.
  std::optional<SamplePiece> poll();
  /// Waits for the end. Rethrows the request's error. A cancelled request gives what it had, with stop_reason
  /// "abort".
  SampleResult wait();
  bool done() const;
  /// Ends it; what it holds is free before the engine's next pass.
  void cancel();

 private:
  friend struct Answer;
  friend struct EngineState;

  SampleRequest request_;
  SampleResult result_;                                  // the engine's until done_
  std::vector<std::shared_ptr<struct Answer>> answers_;  // until its end; the engine's
  int64_t unfinished_ = 0;                               // of them
  std::function<void(std::shared_ptr<SampleJob>)> on_cancel_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SamplePiece> pieces_;
  std::exception_ptr error_;
  bool done_ = false;
};

}  // namespace twinkle
