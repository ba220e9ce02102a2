// deps: sample
// One GRPO step as bench/compare grpo runs it beside TRL: answers to random prompts are sampled with the
// adapter that is trained, get random rewards, and train it.
//   grpo_bench MODEL [--prompts 8] [--answers 8] [--prompt-tokens 512] [--answer-tokens 64]
//              [--sharing off,exact,groups] [--max-tokens-per-pass 4608] [--dtype auto]
// The same answers train a fresh adapter for each way of sharing the prompts. Prints one JSON object: seconds
// of the sampling and of each training part, its rows, loss and gradient norm, and the machine's own limit.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "bench/timing.h"
#include "twinkle/core/rng.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/sample/generate.h"
#include "twinkle/train/multi_lora_transformers_model.h"

using namespace twinkle;
using twinkle::bench::Clock;
using twinkle::bench::seconds_since;

namespace {

std::unique_ptr<MultiLoraTransformersModel> model_of(const std::string& path, const std::string& dtype,
                                                     PrefixSharing sharing, int64_t pass_tokens) {
  auto model = std::make_unique<MultiLoraTransformersModel>(
      path, MultiLoraOptions{
                .model = {.dtype = dtype, .micro_batch_tokens = pass_tokens, .share_prefix = sharing}});
  model->add_adapter_to_model(
      "policy",
      LoraConfig{.r = 8, .lora_alpha = 32, .target_modules = {"all-linear"}, .target_is_pattern = true});
  model->set_loss("GRPOLoss", {}, "policy");
  model->set_optimizer("AdamW", {{"lr", 1e-5}, {"weight_decay", 0.0}}, "policy");
  return model;
}

struct Batch {
  std::vector<InputFeature> features;
  ForwardArgs args;
};

// Random rewards; an answer's advantage is its reward's distance from the mean of its group, in deviations.
Batch batch_of(const std::vector<std::vector<int32_t>>& prompts,
               const std::vector<std::vector<std::vector<int32_t>>>& answers) {
  Batch batch;
  CounterRng rng(5, 5);
  for (size_t p = 0; p < prompts.size(); ++p) {
    std::vector<double> rewards;
    double mean = 0, squares = 0;
    for (size_t a = 0; a < answers[p].size(); ++a) {
      rewards.push_back(static_cast<double>(rng.next_below(1000)) / 1000);
      mean += rewards.back() / static_cast<double>(answers[p].size());
    }
    for (const double r : rewards) squares += (r - mean) * (r - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(rewards.size() - 1)) + 1e-4;
    for (size_t a = 0; a < answers[p].size(); ++a) {
      InputFeature f{.input_ids = prompts[p]};
      f.input_ids.insert(f.input_ids.end(), answers[p][a].begin(), answers[p][a].end());
      f.labels.assign(f.input_ids.size(), kIgnoreIndex);
      for (size_t t = prompts[p].size() - 1; t + 1 < f.input_ids.size(); ++t)
        f.labels[t] = f.input_ids[t + 1];
      batch.features.push_back(std::move(f));
      batch.args.extras["advantages"].push_back({static_cast<float>((rewards[a] - mean) / deviation)});
    }
  }
  return batch;
}

PrefixSharing sharing_of(const std::string& name) {
  if (name == "off") return PrefixSharing::kOff;
  if (name == "exact") return PrefixSharing::kExact;
  if (name == "groups") return PrefixSharing::kGroups;
  throw invalid_argument("[grpo_bench] --sharing: off, exact or groups, got '" + name + "'");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: grpo_bench MODEL [options]\n"), 2;
  int64_t num_prompts = 8, num_answers = 8, prompt_tokens = 512, answer_tokens = 64, pass_tokens = 4608;
  std::string ways = "off,exact,groups", dtype = "auto";
  for (int i = 2; i + 1 < argc; i += 2) {
    const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0; };
    int64_t* number = is("--prompts")               ? &num_prompts
                      : is("--answers")             ? &num_answers
                      : is("--prompt-tokens")       ? &prompt_tokens
                      : is("--answer-tokens")       ? &answer_tokens
                      : is("--max-tokens-per-pass") ? &pass_tokens
                                                    : nullptr;
    if (number != nullptr)
      *number = std::atoll(argv[i + 1]);
    else if (is("--sharing"))
      ways = argv[i + 1];
    else if (is("--dtype"))
      dtype = argv[i + 1];
    else
      return std::fprintf(stderr, "grpo_bench: unknown option %s\n", argv[i]), 2;
  }
  auto model = model_of(argv[1], dtype, PrefixSharing::kExact, pass_tokens);
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(num_prompts));
  std::vector<SampleRequest> requests;
  CounterRng rng(7, 7);
  for (auto& prompt : prompts) {
    for (int64_t t = 0; t < prompt_tokens; ++t)
      prompt.push_back(static_cast<int32_t>(
          10 + rng.next_below(static_cast<uint64_t>(model->model().config().vocab_size) - 10)));
    SampleRequest request{.prompt = prompt, .version = "policy"};
    request.params.max_tokens = answer_tokens;
    request.params.num_samples = num_answers;
    request.params.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<std::vector<int32_t>>> answers;
  double sampling = 0;
  {
    SampleEngine engine(model->model(), nullptr, {.own_thread = false});
    engine.add_version("policy", model->snapshot("policy"));
    const auto start = Clock::now();
    for (const SampleResult& result : generate(engine, requests)) {
      auto& of_prompt = answers.emplace_back();
      for (const auto& sequence : result.sequences) of_prompt.push_back(sequence.tokens);
    }
    sampling = seconds_since(start);
  }
  const Batch batch = batch_of(prompts, answers);
  int64_t tokens = 0;
  for (const auto& f : batch.features) tokens += static_cast<int64_t>(f.input_ids.size());

  Json training = Json::object();
  for (size_t at = 0; at < ways.size();) {
    const size_t comma = std::min(ways.find(',', at), ways.size());
    const std::string way = ways.substr(at, comma - at);
    at = comma + 1;
    model.reset();
    model = model_of(argv[1], dtype, sharing_of(way), pass_tokens);
    const std::vector<TenantRequest> step = {
        {.adapter_name = "policy", .features = batch.features, .args = batch.args},
        {.adapter_name = "policy", .kind = WorkKind::kStep, .max_grad_norm = 1.0}};
    // A step outside the clock, which touches the memory, over answers to one prompt.
    Batch first = batch_of({prompts[0]}, {answers[0]});
    model->run({{.adapter_name = "policy", .features = first.features, .args = first.args},
                {.adapter_name = "policy", .kind = WorkKind::kStep, .optim_params = {.lr = 0.0}}});
    const int64_t rows_before = model->num_computed_rows();
    const auto start = Clock::now();
    const auto results = model->run(step);
    const double seconds = seconds_since(start);
    for (const auto& result : results)
      if (!result.ok()) throw *result.error;
    training[way] = {{"seconds", seconds},
                     {"rows", model->num_computed_rows() - rows_before},
                     {"tokens_per_s", static_cast<double>(tokens) / seconds},
                     {"loss", *results[0].output.loss},
                     {"grad_norm", results[1].step.grad_norm.value_or(0)}};
  }
  const Json out = {{"program", "twinkle"},
                    {"isa", std::string(isa_name(active_isa()))},
                    {"prompt_tokens", num_prompts * prompt_tokens},
                    {"answer_tokens", num_prompts * num_answers * answer_tokens},
                    {"tokens", tokens},
                    {"sampling_s", sampling},
                    {"training", training},
                    {"limit_gflops", measure_limit_gflops(model->model().holds_bf16())},
                    {"peak_rss_mb", static_cast<double>(peak_resident_bytes()) / (1 << 20)}};
  std::printf("%s\n", out.dump().c_str());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
