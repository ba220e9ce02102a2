// A LoRA adapter: PEFT's semantics for rank, alpha, targets, rslora and initialisation, its tensors and
// gradients, and its files (adapter_config.json + adapter_model.safetensors, as PEFT writes them).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/core/safetensors.h"
#include "twinkle/lora/gradient_memory.h"
#include "twinkle/model/causal_lm.h"

namespace twinkle {

struct LoraConfig {
  int64_t r = 8;
  double lora_alpha = 8;  // PEFT's default; the command line's is 32
  double lora_dropout = 0.0;
  bool use_rslora = false;                  // scale alpha/sqrt(r) instead of alpha/r
  std::vector<std::string> target_modules;  // names (suffix match as PEFT), or one regex / "all-linear";
                                            // empty: q_proj and v_proj, PEFT's choice for every family here
  bool target_is_pattern = false;           // target_modules[0] is a regex (full match) or "all-linear"
  std::vector<std::string> exclude_modules;
  bool exclude_is_pattern = false;  // exclude_modules[0] is a regex (full match)
  std::vector<int64_t> layers_to_transform;
  // In their order: the first that matches counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;
  std::string base_model_name_or_path;
  uint64_t seed = 42;  // of A's initial values and of dropout; not a PEFT key
  double scale_of(int64_t rank, double alpha) const;
};

/// Ranges of the numbers: invalid_argument "[lora] ..." for r < 1, alpha <= 0, dropout outside [0, 1) and the
/// like.
void check_lora_config(const LoraConfig& config);

/// Reads an adapter_config.json; DoRA, other PEFT methods and options we lack are refused by name.
LoraConfig lora_config_from_json(const Json& raw, std::string_view where);
/// The value PEFT would write.
Json lora_config_to_json(const LoraConfig& config);

/// One adapted module.
struct LoraModule {
  std::string name;     // "model.layers.0.self_attn.q_proj", "model.embed_tokens", "lm_head"
  int64_t linear = -1;  // index in CausalLM::linears(), -1 for the embedding
  ops::LoraSlot slot;   // tensors (for the embedding a_rK is [r, vocab], b_Nr is [hidden, r], as PEFT)
};

class Adapter {
 public:
  /// A fresh adapter for the model: A by kaiming_uniform(a=sqrt 5) from the seed, B zero (embedding: A zero,
  /// B normal). invalid_argument when no module matches a target, naming it and near names.
  static std::unique_ptr<Adapter> create(const CausalLM& model, const LoraConfig& config);
  /// Reads PEFT files. Tensors missing, unexpected, of the wrong shape for this base or not finite are
  /// invalid_argument by name, as are files of a checkpoint that are not what was written.
  static std::unique_ptr<Adapter> load(const CausalLM& model, const std::string& directory);
  /// The same of what such files hold; `where` names them in errors.
  static std::unique_ptr<Adapter> read(const CausalLM& model, const Json& config, const SafetensorsFile& file,
                                       const std::string& where);
  /// Writes PEFT files into an existing directory (not atomic by itself: see write_checkpoint).
  void save(const std::string& directory) const;
  /// The tensors of the file, which follow the adapter's values while they are on the CPU.
  std::vector<TensorToWrite> to_write() const;

  const LoraConfig& config() const { return config_; }
  /// Of the dropout; PEFT's files hold none.
  void set_seed(uint64_t seed) { config_.seed = seed; }
  std::vector<LoraModule>& modules() { return modules_; }
  const std::vector<LoraModule>& modules() const { return modules_; }
  /// Whole copies of modules that are trained in full (modules_to_save), by module name.
  std::map<std::string, Parameter>& saved_modules() { return saved_modules_; }
  const std::map<std::string, Parameter>& saved_modules() const { return saved_modules_; }
  int64_t num_parameters() const;
  void make_trainable();  // allocates zeroed gradients
  /// Where make_trainable() takes gradients on the CPU from; null: from the system.
  void set_gradient_memory(std::shared_ptr<GradientMemory> memory) { gradient_memory_ = std::move(memory); }
  void zero_grad();

  /// All pairs lie in one flat fp32 tensor, each on a 64-byte boundary, and their gradients in another of the
  /// same layout (undefined while there are none). Whole copies (saved_modules) are apart.
  const at::Tensor& values() const { return values_; }
  const at::Tensor& gradients() const { return gradients_; }
  int64_t flat_elements() const { return flat_elements_; }
  /// Puts the pairs onto another flat tensor; an undefined one lets go of the memory, and the adapter can not
  /// be used until values are there again.
  void set_values(at::Tensor flat);
  void set_gradients(at::Tensor flat);
  /// (name, value, gradient) of every trained tensor, in file order; names as in the PEFT file.
  struct Trained {
    std::string name;
    at::Tensor value, grad;
  };
  std::vector<Trained> trained();

 private:
  /// Where a module's pair lies, in elements of the flat tensors.
  struct Place {
    int64_t a = 0, b = 0, rank = 0, in = 0, out = 0;
  };
  void lay_out(const CausalLM& model, bool every_entry);
  void save_whole(const CausalLM& model);

  LoraConfig config_;
  std::vector<LoraModule> modules_;
  std::vector<Place> places_;
  int64_t flat_elements_ = 0;
  at::Tensor values_, gradients_;
  std::shared_ptr<GradientMemory> gradient_memory_;
  /// What trained() lists: names, and numbers of A and B of each module in turn, then of the saved modules.
  std::vector<std::pair<std::string, size_t>> file_order_;
  std::map<std::string, Parameter> saved_modules_;
};

/// invalid_argument when an adapter can be used but not trained as it is: lora_dropout with an adapter on
/// lm_head.
void check_trainable(const Adapter& adapter);

/// One adapter as a pass uses it: views, kept alive by whoever owns them.
struct AdapterUse {
  const std::vector<LoraModule>* modules = nullptr;
  const std::map<std::string, Parameter>* saved_modules = nullptr;  // only with one adapter in the pass
  bool gradients = false;                                           // backward adds to the slots' gradients
  double dropout = 0.0;
  uint64_t dropout_seed = 0;
};
/// As a model in training uses `adapter` (with dropout), or as one in evaluation.
AdapterUse use_of(const Adapter& adapter, bool training, bool gradients);

/// A binding of several adapters: span.slot is the place in `adapters`. Spans are one a sequence, in
/// reduction order. invalid_argument when an adapter with whole copies shares the pass with another.
nn::LoraBinding bind_adapters(const CausalLM& model, std::span<const AdapterUse> adapters,
                              std::vector<ops::LoraSpan> spans);

/// A binding for a batch whose sequences all use `adapter` (training: with its dropout).
nn::LoraBinding bind_adapter(const CausalLM& model, Adapter& adapter, const PackedBatch& batch,
                             bool training);

/// invalid_argument when the adapter changes an embedding that is the head as well.
void check_mergeable(const CausalLM& model, const Adapter& adapter);
/// A weight of the model as it is with the adapter merged into it; the weight itself, shared, where the
/// adapter does not touch it.
Parameter merged_weight(const Adapter& adapter, const Parameter& weight);

/// W += scale B A for every module, and back. Merging into bf16/fp16 storage rounds; unmerge restores the
/// very bits from the kept originals. invalid_argument when the adapter changes a tied embedding or head.
class MergedAdapter {
 public:
  MergedAdapter(CausalLM& model, const Adapter& adapter);
  ~MergedAdapter();
  void unmerge();
  /// Keeps the merge for good (the originals are dropped).
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinkle
