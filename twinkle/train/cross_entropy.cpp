#include "twinkle/train/cross_entropy.h"

#include <ATen/ATen.h>

#include <cmath>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

// Sum of the weights of each sequence. A mean needs them not to be negative; a plain sum takes any.
std::vector<double> weight_sums(const LossInput& in, bool refuse_negative) {
  const float* w = in.weights_S.const_data_ptr<float>();
  std::vector<double> sums(static_cast<size_t>(in.num_sequences()));
  for (size_t b = 0; b < sums.size(); ++b) {
    for (int64_t s = in.cu_scored[b]; s < in.cu_scored[b + 1]; ++s) {
      if (refuse_negative && w[s] < 0) {
        throw invalid_argument("[CrossEntropyLoss] sequence " + std::to_string(b) + ": weight " +
                               std::to_string(w[s]) +
                               " is negative; a mean needs weights >= 0 (use reduction 'sum')");
      }
      sums[b] += w[s];
    }
  }
  return sums;
}

// -w, or -w over its sequence's sum for sequence_mean, rounded once to fp32.
float coefficient(float w, double weight_sum, Reduction reduction) {
  if (reduction != Reduction::kSequenceMean) return -w;
  return weight_sum > 0 ? static_cast<float>(-static_cast<double>(w) / weight_sum) : 0.0f;
}

Reduction reduction_from(const std::string& name) {
  if (name == "sum") return Reduction::kSum;
  return name == "sequence_mean" ? Reduction::kSequenceMean : Reduction::kTokenMean;
}

const Registry<Loss>::Add cross_entropy{
    {.name = "CrossEntropyLoss",
     .help = "Cross-entropy of the labels. Default for SFT and pre-training.",
     .params =
         {{.name = "reduction",
           .type = ParamType::kString,
           .default_value = "token_mean",
           .help = "sum; token_mean over the whole accumulated batch ('mean' is the same); sequence_mean",
           .choices = {"token_mean", "mean", "sequence_mean", "sum"}},
          {.name = "dft",
           .type = ParamType::kBool,
           .default_value = false,
           .help = "weigh each token by its own probability (dynamic fine-tuning)"},
          {.name = "label_smoothing",
           .type = ParamType::kFloat,
           .default_value = 0.0,
           .help = "only 0: smoothing needs the mean log-probability over the vocabulary"},
          {.name = "ignore_index", .type = ParamType::kInt, .default_value = -100, .help = "only -100"}},
     .aliases = {"cross_entropy"}},
    [](const Options& o) -> std::unique_ptr<Loss> {
      if (o.get_float("label_smoothing") != 0.0) {
        throw invalid_argument(
            "[CrossEntropyLoss] 'label_smoothing': only 0 is supported: smoothing spreads the target over "
            "the whole "
            "vocabulary, and the head gives the loss the log-probability of the target alone");
      }
      if (o.get_int("ignore_index") != -100) {
        throw invalid_argument("[CrossEntropyLoss] 'ignore_index': only -100 is supported, got " +
                               std::to_string(o.get_int("ignore_index")) + "; mask labels with -100");
      }
      return std::make_unique<CrossEntropyLoss>(reduction_from(o.get_string("reduction")), o.get_bool("dft"));
    }};

}  // namespace

at::Tensor CrossEntropyLoss::known_dlogprob(const LossInput& in) const {
  if (dft_) return {};
  const auto sums = weight_sums(in, divides());
  at::Tensor coefficients = at::empty({in.num_scored()}, at::kFloat);
  const float* w = in.weights_S.const_data_ptr<float>();
  float* c = coefficients.mutable_data_ptr<float>();
  for (size_t b = 0; b < sums.size(); ++b) {
    for (int64_t s = in.cu_scored[b]; s < in.cu_scored[b + 1]; ++s)
      c[s] = coefficient(w[s], sums[b], reduction_);
  }
  return coefficients;
}

LossOutput CrossEntropyLoss::operator()(const LossInput& in) const {
  const auto sums = weight_sums(in, divides());
  LossOutput out;
  out.sum_B.assign(sums.size(), 0.0);
  out.denominator_B = sums;
  out.dlogprob_S = at::empty({in.num_scored()}, at::kFloat);
  const float* w = in.weights_S.const_data_ptr<float>();
  const float* lp = in.logprob_S.const_data_ptr<float>();
  float* d = out.dlogprob_S.mutable_data_ptr<float>();
  for (size_t b = 0; b < sums.size(); ++b) {
    double sum = 0;
    for (int64_t s = in.cu_scored[b]; s < in.cu_scored[b + 1]; ++s) {
      d[s] = coefficient(w[s], sums[b], reduction_);
      if (w[s] == 0) continue;  // an unweighted target adds nothing, even when its log-probability is -inf
      const double x = lp[s];
      const double p = dft_ ? std::exp(x) : 1.0;
      sum += -static_cast<double>(w[s]) * p * x;
      if (dft_) d[s] = static_cast<float>(d[s] * p * (1.0 + x));
    }
    const bool per_sequence = reduction_ == Reduction::kSequenceMean;
    out.sum_B[b] = per_sequence ? mean_or_zero(sum, sums[b]) : sum;
    if (per_sequence) out.denominator_B[b] = sums[b] > 0 ? 1.0 : 0.0;
  }
  return out;
}

}  // namespace twinkle
