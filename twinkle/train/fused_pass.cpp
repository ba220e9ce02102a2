#include "twinkle/train/fused_pass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

int64_t rank_of(const Adapter* adapter) {
  int64_t rank = 0;
  if (adapter == nullptr) return rank;
  for (const auto& module : adapter->modules()) rank = std::max(rank, module.slot.a_rK.size(0));
  return rank;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

// One batch of all parts: backward first, then by rank, the rows of an adapter together.
void FusedPass::lay_out(std::span<PassPart* const> parts) {
  parts_.assign(parts.begin(), parts.end());
  std::erase_if(parts_, [](const PassPart* part) { return part->micro->rows.empty(); });
  const std::vector<PassPart*> given = parts_;
  std::map<const Adapter*, std::pair<int64_t, size_t>> place;  // largest rank first, then the first seen
  for (const PassPart* part : given) place.try_emplace(part->adapter, -rank_of(part->adapter), place.size());
  std::stable_sort(parts_.begin(), parts_.end(), [&](const PassPart* a, const PassPart* b) {
    const auto key = [&](const PassPart* x) {
      return std::make_tuple(!x->backward, place.at(x->adapter), x->training);
    };
    return key(a) < key(b);
  });

  batch_ = PackedBatch{};
  batch_.cu_seqlens = {0};
  first_row_.clear();
  backward_rows_ = 0;
  for (const PassPart* part : parts_) {
    const PackedBatch& own = part->micro->batch;
    const int32_t first = static_cast<int32_t>(batch_.num_tokens());
    first_row_.push_back(first);
    append(batch_.tokens, own.tokens);
    append(batch_.positions, own.positions);
    append(batch_.targets, own.targets);
    append(batch_.weights, own.weights);
    append(batch_.adapter, own.adapter);
    append(batch_.order, own.order);
    append(batch_.sequence_key, own.sequence_key);
    for (size_t b = 1; b < own.cu_seqlens.size(); ++b) batch_.cu_seqlens.push_back(first + own.cu_seqlens[b]);
    if (part->backward) backward_rows_ = batch_.num_tokens();
  }
  if (parts_.size() == 1) return;
  // Sums run over the parts as they were given, within a part in its own order.
  int64_t next = 0;
  for (const PassPart* part : given) {
    const auto at = std::find(parts_.begin(), parts_.end(), part) - parts_.begin();
    size_t first = 0;
    for (std::ptrdiff_t i = 0; i < at; ++i)
      first += static_cast<size_t>(parts_[static_cast<size_t>(i)]->micro->batch.num_sequences());
    for (const int64_t b : part->micro->batch.reduction_order())
      batch_.order[first + static_cast<size_t>(b)] = next++;
  }
}

// Which sequences take rows from an earlier one: those with the same adapter, or none. One that drops inputs
// draws for each sequence on its own.
void FusedPass::share_prefixes(PrefixSharing sharing) {
  computed_rows_ = batch_.num_tokens();
  if (sharing == PrefixSharing::kOff) return;
  std::vector<int64_t> family;
  std::map<const Adapter*, int64_t> known;
  int64_t backward_sequences = 0;
  for (const PassPart* part : parts_) {
    const bool drops = part->adapter != nullptr && part->training && part->adapter->config().lora_dropout > 0;
    const auto number = known.try_emplace(part->adapter, static_cast<int64_t>(known.size())).first->second;
    const int64_t sequences = part->micro->batch.num_sequences();
    family.insert(family.end(), static_cast<size_t>(sequences), drops ? -1 : number);
    if (part->backward) backward_sequences += sequences;
  }
  auto prefix = common_prefixes(batch_, family, model_.max_shared_length());
  const auto of_backward = std::span(prefix).first(static_cast<size_t>(backward_sequences));
  if (sharing == PrefixSharing::kGroups) {
    share_groups(of_backward, family);
  } else {
    // Spreading the rows out again before backward costs something too.
    int64_t saved = 0;
    for (const CommonPrefix& one : of_backward) saved += one.length;
    if (8 * saved < backward_rows_) std::fill(of_backward.begin(), of_backward.end(), CommonPrefix{});
  }
  for (const CommonPrefix& one : prefix) computed_rows_ -= one.length;
  if (computed_rows_ < batch_.num_tokens()) batch_.prefix = std::move(prefix);
}

// As the micro-batches say.
void FusedPass::share_groups(std::span<CommonPrefix> prefix, std::span<const int64_t> family) const {
  std::fill(prefix.begin(), prefix.end(), CommonPrefix{});
  const int64_t longest = model_.max_shared_length();
  size_t begin = 0;
  for (const PassPart* part : parts_) {
    const PackedBatch& own = part->micro->batch;
    const auto length = [&](size_t b) { return own.cu_seqlens[b + 1] - own.cu_seqlens[b]; };
    for (size_t b = 0; part->backward && b < own.prefix.size(); ++b) {
      size_t end = b + 1;  // of the sequences that begin with b's prompt
      while (end < own.prefix.size() && own.prefix[end].length > 0) ++end;
      bool can = family[begin + b] >= 0;
      for (size_t i = b; i < end; ++i) can &= length(i) <= longest;
      for (size_t i = b + 1; can && i < end; ++i)
        prefix[begin + i] = {static_cast<int32_t>(begin + b), own.prefix[i].length};
      b = end - 1;
    }
    begin += static_cast<size_t>(own.num_sequences());
  }
}

// Slots of the adapters and the spans of their sequences; a second binding for the rows that go backward.
void FusedPass::bind() {
  std::vector<AdapterUse> uses, backward_uses;
  std::vector<int32_t> slot_of_sequence, backward_slot_of_sequence;
  std::map<std::pair<const Adapter*, bool>, int32_t> slots, backward_slots;
  for (const PassPart* part : parts_) {
    int32_t slot = -1, backward_slot = -1;
    const auto slot_in = [&](auto& known, std::vector<AdapterUse>& list) {
      const auto [found, fresh] =
          known.try_emplace({part->adapter, part->training}, static_cast<int32_t>(list.size()));
      if (fresh) list.push_back(use_of(*part->adapter, part->training, part->backward));
      list[static_cast<size_t>(found->second)].gradients |= part->backward;
      return found->second;
    };
    if (part->adapter != nullptr) {
      slot = slot_in(slots, uses);
      if (part->backward) backward_slot = slot_in(backward_slots, backward_uses);
    }
    const auto sequences = static_cast<size_t>(part->micro->batch.num_sequences());
    slot_of_sequence.insert(slot_of_sequence.end(), sequences, slot);
    backward_slot_of_sequence.insert(backward_slot_of_sequence.end(), sequences, backward_slot);
  }
  const auto order = batch_.reduction_order();
  const auto spans_of = [&](const std::vector<int32_t>& slot_of) {
    std::vector<ops::LoraSpan> spans;
    for (const int64_t b : order) {
      const auto i = static_cast<size_t>(b);
      if (slot_of[i] >= 0) spans.push_back({batch_.cu_seqlens[i], batch_.cu_seqlens[i + 1], slot_of[i]});
    }
    return spans;
  };
  binding_ = bind_adapters(model_, uses, spans_of(slot_of_sequence));
  backward_binding_ = {};
  if (backward_rows_ > 0 && backward_rows_ < batch_.num_tokens())
    backward_binding_ = bind_adapters(model_, backward_uses, spans_of(backward_slot_of_sequence));
}

void FusedPass::make_groups() {
  std::map<std::tuple<double, bool, bool, bool>, size_t> known;
  groups_.clear();
  for (size_t i = 0; i < parts_.size(); ++i) {
    PassPart& part = *parts_[i];
    const bool coefficients = part.backward && part.known_dlogprob_S.defined();
    const auto [found, fresh] =
        known.try_emplace({part.temperature, part.backward, coefficients, part.want_entropy}, groups_.size());
    if (fresh) groups_.emplace_back();
    Group& group = groups_[found->second];
    group.score.inv_temperature = 1.0 / part.temperature;
    group.score.for_backward = part.backward;
    group.parts.push_back(&part);
    group.begins.push_back(static_cast<int64_t>(group.score.rows.size()));
    for (const int32_t row : part.micro->rows)
      group.score.rows.push_back(static_cast<int32_t>(first_row_[i]) + row);
    append(group.score.targets, part.micro->targets);
  }
  for (Group& group : groups_) {
    const auto S = static_cast<int64_t>(group.score.rows.size());
    const auto take = [&](at::ScalarType type) {
      return at::empty({S}, at::TensorOptions().dtype(type).device(model_.device()));
    };
    ops::HeadOutputs& out = group.score.out;
    out.logprob_S = take(at::kFloat);
    out.lse_S = take(at::kFloat);
    if (group.parts[0]->want_entropy) out.entropy_S = take(at::kFloat);
    const auto wants = [](const PassPart* part) { return part->want_argmax; };
    if (std::any_of(group.parts.begin(), group.parts.end(), wants)) out.argmax_S = take(at::kInt);
    if (!group.parts[0]->backward || !group.parts[0]->known_dlogprob_S.defined()) continue;
    std::vector<at::Tensor> coefficients;
    for (const PassPart* part : group.parts)
      coefficients.push_back(to_row_order(*part->micro, part->known_dlogprob_S));
    group.score.known_dlogprob_S =
        (coefficients.size() == 1 ? coefficients[0] : at::cat(coefficients)).to(model_.device());
  }
}

void FusedPass::forward(std::span<PassPart* const> parts, const FusedPassOptions& options) {
  for (PassPart* part : parts) {
    part->logprob_S = at::empty({0}, at::kFloat);
    part->entropy_S = part->want_entropy ? at::empty({0}, at::kFloat) : at::Tensor();
    part->argmax_S = part->want_argmax ? at::empty({0}, at::kInt) : at::Tensor();
  }
  lay_out(parts);
  share_prefixes(options.sharing);
  if (parts_.empty()) return finish();
  bind();
  make_groups();
  model_.forward(batch_, binding_.spans.empty() ? nullptr : &binding_,
                 {.for_backward = backward_rows_ > 0,
                  .recompute = options.recompute,
                  .share_backward = options.sharing == PrefixSharing::kGroups});
  std::vector<CausalLM::ScorePart> score;
  for (const Group& group : groups_) score.push_back(group.score);
  model_.score(score);
  for (const Group& group : groups_) {
    const ops::HeadOutputs& out = group.score.out;
    for (size_t i = 0; i < group.parts.size(); ++i) {
      PassPart& part = *group.parts[i];
      const auto own = [&](const at::Tensor& x) {
        if (!x.defined()) return x;
        return to_call_order(*part.micro,
                             x.narrow(0, group.begins[i], static_cast<int64_t>(part.micro->rows.size())));
      };
      part.logprob_S = own(out.logprob_S);
      part.entropy_S = own(out.entropy_S);
      if (part.want_argmax) part.argmax_S = own(out.argmax_S);
    }
  }
}

void FusedPass::backward() {
  if (parts_.empty() || backward_rows_ == 0) return;
  if (backward_rows_ < batch_.num_tokens())
    model_.keep_rows(backward_rows_, backward_binding_.spans.empty() ? nullptr : &backward_binding_);
  std::vector<CausalLM::ScoreGradient> gradients(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (!group.score.for_backward || group.score.known_dlogprob_S.defined()) continue;
    const auto joined = [&](auto&& get) {
      std::vector<at::Tensor> list;
      for (const PassPart* part : group.parts) {
        const at::Tensor& x = get(*part);
        list.push_back(x.defined() ? to_row_order(*part->micro, x)
                                   : at::zeros({static_cast<int64_t>(part->micro->rows.size())}, at::kFloat));
      }
      return (list.size() == 1 ? list[0] : at::cat(list)).to(model_.device());
    };
    gradients[g].dlogprob_S =
        joined([](const PassPart& part) -> const at::Tensor& { return part.dlogprob_S; });
    const auto has_entropy = [](const PassPart* part) { return part->dentropy_S.defined(); };
    if (std::any_of(group.parts.begin(), group.parts.end(), has_entropy)) {
      gradients[g].dentropy_S =
          joined([](const PassPart& part) -> const at::Tensor& { return part.dentropy_S; });
    }
  }
  model_.backward(gradients);
  finish();
}

void FusedPass::finish() {
  model_.finish();
  parts_.clear();
  groups_.clear();
  binding_ = {};
  backward_binding_ = {};
}

}  // namespace twinkle
