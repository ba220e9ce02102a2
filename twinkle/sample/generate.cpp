#include "twinkle/sample/generate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {
namespace {

constexpr int64_t kPrefillChunk = 512;  // prompt tokens a pass, to bound its memory

struct Running {
  StreamDecoder decoder;
  std::string text, held;  // `held` may be the beginning of a stop string
  std::vector<int32_t> history, blocks;
  bool done = false;
};

// Where text[from..] may still grow into a stop string: the length that is safe to show.
size_t safe_length(const std::string& text, const std::vector<std::string>& stops) {
  size_t safe = text.size();
  for (const auto& stop : stops) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > 0; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        safe = std::min(safe, text.size() - n);
        break;
      }
    }
  }
  return safe;
}

size_t find_stop(const std::string& text, const std::vector<std::string>& stops) {
  size_t first = std::string::npos;
  for (const auto& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

// The model's own distribution: no temperature, penalty or cut-off between it and the draw.
bool draws_as_trained(const SamplingParams& p) {
  return (p.temperature == 0 || p.temperature == 1) && p.top_k <= 0 && p.top_p >= 1 && p.min_p == 0 &&
         p.repetition_penalty == 1;
}

// The trainer's number for a token, bit for bit.
double trained_logprob(const at::Tensor& logits_V, int32_t token) {
  ops::HeadOutputs out;
  out.logprob_S = at::empty({1}, logits_V.options());
  out.lse_S = at::empty({1}, logits_V.options());
  ops::logits_logprobs(logits_V.unsqueeze(0), at::full({1}, token, at::kInt), 1.0, out);
  return out.logprob_S.const_data_ptr<float>()[0];
}

class Batch {
 public:
  Batch(CausalLM& model, Adapter* adapter, const std::shared_ptr<const Tokenizer>& tokenizer,
        const std::vector<GenerateRequest>& requests, const std::vector<int32_t>& end_ids,
        const OnText& on_text)
      : model_(model), requests_(requests), end_ids_(end_ids), on_text_(on_text), results_(requests.size()) {
    int64_t longest = 1;
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto& request = requests[i];
      const std::string place = "[sample] request " + std::to_string(i) + ": ";
      if (request.prompt.empty()) throw invalid_argument(place + "the prompt has no tokens");
      for (const auto& stop : request.params.stop) {
        if (stop.empty()) throw invalid_argument(place + "'stop' has an empty string");
      }
      const auto length = static_cast<int64_t>(request.prompt.size());
      if (length >= model.config().max_position) {
        throw invalid_argument(place + "the prompt has " + std::to_string(length) +
                               " tokens, the model's context is " +
                               std::to_string(model.config().max_position));
      }
      const int64_t room = model.config().max_position - length;
      longest = std::max(longest, length + std::min(request.params.max_tokens, room));
      running_.push_back(
          {StreamDecoder(tokenizer), "", "", request.prompt, {}, request.params.max_tokens == 0});
      if (running_.back().done) results_[i].stop_reason = "length";
    }
    blocks_each_ = (longest + ops::kAttentionBlock - 1) / ops::kAttentionBlock;
    kv_ = model.make_kv_storage(blocks_each_ * static_cast<int64_t>(requests.size()));
    for (size_t i = 0; i < requests.size(); ++i) {
      for (int64_t j = 0; j < blocks_each_; ++j)
        running_[i].blocks.push_back(static_cast<int32_t>(static_cast<int64_t>(i) * blocks_each_ + j));
    }
    if (adapter != nullptr) binding_ = bind_adapter(model, *adapter, PackedBatch{}, false);
    has_adapter_ = adapter != nullptr;
  }

  std::vector<Generated> run() {
    for (size_t i = 0; i < requests_.size(); ++i) prefill(i);
    for (;;) {
      std::vector<CausalLM::PagedRows> rows;
      std::vector<size_t> who;
      for (size_t i = 0; i < running_.size(); ++i) {
        if (running_[i].done) continue;
        const auto& r = running_[i];
        rows.push_back({std::span(r.history).last(1), static_cast<int64_t>(r.history.size()) - 1, r.blocks});
        who.push_back(i);
      }
      if (rows.empty()) return std::move(results_);
      const at::Tensor logits = step(rows, nullptr);
      for (size_t j = 0; j < who.size(); ++j) accept(who[j], logits.select(0, static_cast<int64_t>(j)));
    }
  }

 private:
  void prefill(size_t i) {
    if (running_[i].done) return;
    const auto& prompt = requests_[i].prompt;
    const auto length = static_cast<int64_t>(prompt.size());
    for (int64_t begin = 0; begin < length; begin += kPrefillChunk) {
      const int64_t end = std::min(length, begin + kPrefillChunk);
      const int64_t last = end - begin - 1;
      const at::Tensor logits =
          step({{{prompt.begin() + begin, prompt.begin() + end}, begin, running_[i].blocks}}, &last);
      if (end == length) accept(i, logits.select(0, 0));
    }
  }

  /// Logits of every row, or of one.
  at::Tensor step(const std::vector<CausalLM::PagedRows>& rows, const int64_t* only) {
    int64_t total = 0;
    for (const auto& r : rows) total += static_cast<int64_t>(r.tokens.size());
    binding_.spans.assign(1, {0, total, 0});
    const nn::LoraBinding* lora = has_adapter_ ? &binding_ : nullptr;
    at::Tensor hidden = model_.forward_paged(arena_, kv_, rows, lora);
    if (only != nullptr) hidden = hidden.narrow(0, *only, 1);
    binding_.spans.assign(1, {0, hidden.size(0), 0});
    return model_.logits(arena_, hidden, lora).cpu();
  }

  void accept(size_t i, const at::Tensor& logits_V) {
    Running& r = running_[i];
    Generated& out = results_[i];
    const SamplingParams& params = requests_[i].params;
    const at::Tensor row = logits_V.contiguous();
    const Picked picked = pick_token({row.data_ptr<float>(), static_cast<size_t>(row.numel())}, params,
                                     r.history, requests_[i].stream, out.tokens.size());
    r.history.push_back(picked.id);
    out.tokens.push_back(picked.id);
    out.logprobs.push_back(draws_as_trained(params) ? trained_logprob(row, picked.id) : picked.logprob);
    const auto contains = [&](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), picked.id) != ids.end();
    };
    if ((!params.ignore_eos && contains(end_ids_)) || contains(params.stop_token_ids))
      return finish(i, "stop");
    r.held += r.decoder.push(picked.id);
    if (const size_t at = find_stop(r.held, params.stop); at != std::string::npos) {
      r.held.resize(at);
      return finish(i, "stop", false);
    }
    if (!show(i, safe_length(r.held, params.stop))) return finish(i, "stop", false);
    const bool full = static_cast<int64_t>(r.history.size()) >= model_.config().max_position;
    if (static_cast<int64_t>(out.tokens.size()) >= params.max_tokens || full) finish(i, "length");
  }

  bool show(size_t i, size_t length) {
    Running& r = running_[i];
    if (length == 0) return true;
    const std::string piece = r.held.substr(0, length);
    r.held.erase(0, length);
    r.text += piece;
    return !on_text_ || on_text_(i, piece);
  }

  void finish(size_t i, const std::string& reason, bool flush = true) {
    Running& r = running_[i];
    if (flush) r.held += r.decoder.finish();
    show(i, r.held.size());
    results_[i].text = r.text;
    results_[i].stop_reason = reason;
    r.done = true;
  }

  CausalLM& model_;
  const std::vector<GenerateRequest>& requests_;
  const std::vector<int32_t>& end_ids_;
  const OnText& on_text_;
  std::vector<Generated> results_;
  std::vector<Running> running_;
  nn::Arena arena_{model_.device()};
  CausalLM::KvStorage kv_;
  int64_t blocks_each_ = 0;
  nn::LoraBinding binding_;
  bool has_adapter_ = false;
};

}  // namespace

std::vector<Generated> generate(CausalLM& model, Adapter* adapter,
                                const std::shared_ptr<const Tokenizer>& tokenizer,
                                const std::vector<GenerateRequest>& requests,
                                const std::vector<int32_t>& end_ids, const OnText& on_text) {
  if (requests.empty()) return {};
  return Batch(model, adapter, tokenizer, requests, end_ids, on_text).run();
}

}  // namespace twinkle
