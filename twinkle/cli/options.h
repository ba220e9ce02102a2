// Groups of options shared by commands, with upstream's names and defaults; what upstream has and this
// program does not need is accepted while it changes nothing and refused by name otherwise. Also: what the
// torch-free libraries need, made from parsed options.
#pragma once

#include <memory>

#include "twinkle/core/args.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/lazy_dataset.h"
#include "twinkle/data/packing.h"

namespace twinkle::cli {

ArgGroup model_args();      // model_id, tokenizer_id, dtype, init, recompute
ArgGroup lora_args();       // use_lora, lora_r, lora_alpha, ...
ArgGroup dataset_args();    // dataset_id, data_slice, preprocessor, bad_rows, eval_dataset_id, ...
ArgGroup template_args();   // template_cls, max_length, truncation_strategy, ...
ArgGroup training_args();   // max_steps, batch_size, output_dir, resume_from_checkpoint, ...
ArgGroup optimizer_args();  // optimizer_cls, learning_rate, ...
ArgGroup scheduler_args();  // scheduler_cls, num_warmup_steps, ...
ArgGroup loss_args();       // loss_cls, loss_reduction
ArgGroup sampling_args();   // max_tokens, temperature, ...
ArgGroup machine_args();    // device, isa, threads, max_tokens_per_pass
ArgGroup program_args();    // config, json: every command has these

/// Combinations that training refuses whatever the machine: LoRA options without LoRA, an evaluation interval
/// without a data set, a name for another preprocessor ...
void check_training_args(const ParsedArgs& args);

/// A folder or file given as --model-id; not_found with what is needed when it is not there.
std::string checked_model_path(const ParsedArgs& args);
/// The tokenizer of --tokenizer-id, else of --model-id.
std::shared_ptr<const Tokenizer> load_tokenizer(const ParsedArgs& args);
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);
/// `context`: positions that the model knows; rows are never longer, whatever --max-length says (0: as it
/// says).
TemplateOptions template_options(const ParsedArgs& args, int64_t context = 0);
/// --template-cls, else what the model asks for, else the general one.
std::string template_name(const ParsedArgs& args);
std::unique_ptr<Template> load_template(const ParsedArgs& args, std::shared_ptr<const Tokenizer> tokenizer,
                                        int64_t context = 0);
/// For commands that neither cut nor drop: the template cuts nothing, check_length says what is too long.
std::unique_ptr<Template> load_whole_template(const ParsedArgs& args,
                                              std::shared_ptr<const Tokenizer> tokenizer);
/// invalid_argument when `tokens` are more than --max-length; `what` is "the prompt" or the like.
void check_length(const ParsedArgs& args, const std::string& what, int64_t tokens);
/// The rows of --dataset-id with their preprocessor set, not encoded yet.
Dataset load_dataset(const ParsedArgs& args);
/// The rows of --eval-dataset-id (at most --eval-samples); nothing when it is not given.
std::unique_ptr<Dataset> load_eval_dataset(const ParsedArgs& args);
DataLoaderOptions loader_options(const ParsedArgs& args);
/// Encodes for supervised training, from --encoded-cache where it is given. Rows of several conversations
/// (preferences, embeddings) are invalid_argument.
void encode_for_training(const ParsedArgs& args, const Template& tmpl, Dataset& data);
/// The loader over encoded rows, packed as --packing says into bins of `max_length` tokens; `note` says how
/// full the bins are ("" without).
DataLoader make_loader(const ParsedArgs& args, std::vector<InputFeature> features, int64_t max_length,
                       std::string* note);
/// The loader of --lazy, which encodes rows of `data` when they are due.
DataLoader make_lazy_loader(const ParsedArgs& args, Dataset data, std::shared_ptr<const Template> tmpl);
/// What --streaming reads: the rows of --dataset-id as they come, packed as --packing says.
struct StreamingData {
  std::unique_ptr<DataLoader> loader;
  const IterableDataset* source = nullptr;  // what the loader draws from
  std::vector<std::string> notes;
};
StreamingData load_stream(const ParsedArgs& args, std::shared_ptr<const Template> tmpl,
                          std::shared_ptr<RowWriter> recorder = nullptr);
std::vector<std::string> string_list(const ParsedArgs& args, std::string_view name);
/// Applies --threads.
void apply_threads(const ParsedArgs& args);

}  // namespace twinkle::cli
