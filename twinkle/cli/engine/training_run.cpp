#include "twinkle/cli/engine/training_run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "twinkle/cli/engine/counted_samples.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/engine/run_plan.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/clock.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/left_overs.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/train/manifest.h"
#include "twinkle/train/planner.h"
#include "twinkle/train/progress.h"

namespace twinkle::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C ends the run after the step under way; a second one ends the process as usual.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action{};
    action.sa_handler = [](int) {
      interrupted = 1;
      std::signal(SIGINT, SIG_DFL);
      std::signal(SIGTERM, SIG_DFL);
    };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~InterruptGuard() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction old_int_{}, old_term_{};
};

struct Schedule {
  int64_t steps = 0;         // optimizer steps of the whole run
  int64_t last_batches = 0;  // batches of the last step, when it is a short one; 0: a full one
};

// Numbers of any size may be asked for: what nobody will see the end of counts as kAnySteps.
Schedule schedule_of(const ParsedArgs& args, int64_t batches_per_epoch) {
  const int64_t accumulation = args.get_int("gradient_accumulation_steps");
  const auto of_batches = [&](int64_t batches) {
    batches = std::clamp<int64_t>(batches, 1, kAnySteps);
    return Schedule{.steps = (batches - 1) / accumulation + 1, .last_batches = batches % accumulation};
  };
  Schedule out{.steps = args.get_int("max_steps")};
  if (args.has("num_train_epochs")) {
    const double batches =
        std::ceil(args.get_float("num_train_epochs") * static_cast<double>(batches_per_epoch));
    const Schedule epochs =
        of_batches(static_cast<int64_t>(std::min(batches, static_cast<double>(kAnySteps))));
    if (!args.given("max_steps") || epochs.steps <= out.steps) out = epochs;
  }
  if (args.has("train_samples")) {
    const Schedule rows = of_batches((args.get_int("train_samples") - 1) / args.get_int("batch_size") + 1);
    if (!args.given("max_steps") || rows.steps <= out.steps) out = rows;
  }
  return out;
}

class Run {
 public:
  Run(const ParsedArgs& args, const TrainingRunOptions& options)
      : args_(args), options_(options), output_dir_(args.get_string("output_dir")) {}

  TrainingRunResult run();

 private:
  void check_folder() const;
  bool continues_in_place() const;
  void check_model();
  void load_data();
  void tell_dropped_rows();
  void check_recorder() const;
  void load_model();
  void resume();
  void record_resume(const ResumeInfo& info);
  void write_manifest();
  void loop();
  bool one_step();
  void evaluate();
  void save(bool last);
  void announce_saved();
  bool only_the_end_is_missing();
  bool evaluation_is_reported();
  int64_t run_step() { return model_->cur_step() + result_.skipped_steps; }
  void note(const std::string& line) {
    if (!options_.quiet) progress_.note(line);
  }

  const ParsedArgs& args_;
  TrainingRunOptions options_;
  std::string output_dir_;
  Clock::time_point start_ = Clock::now();
  std::string dataset_hash_, eval_hash_;
  Json samples_;  // see samples_of_run
  std::unique_ptr<FolderLock> lock_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const Template> template_;
  std::unique_ptr<DataLoader> loader_;
  std::shared_ptr<RowWriter> recorder_;      // of --save-rows
  const IterableDataset* stream_ = nullptr;  // what the loader draws from with --streaming
  int64_t batches_per_epoch_ = 0;            // 0: not known
  std::vector<InputFeature> eval_features_;
  std::unique_ptr<TransformersModel> model_;
  at::Device device_ = at::kCPU;
  PlanInput plan_;
  Json resumed_from_ = nullptr;  // of the manifest
  std::string being_saved_;      // announced once it is on the disk
  Schedule schedule_;
  RunManifest manifest_;
  ProgressLine progress_{stderr};
  bool live_ = isatty(STDERR_FILENO) == 1;
  std::unique_ptr<JsonlWriter> metrics_;
  std::unique_ptr<DigestWriter> digest_;
  TrainingRunResult result_;
  int64_t saved_step_ = -1;
  bool stopped_early_ = false;
};

// Whether the run goes on in the folder of the checkpoint that it resumes, with that run's own steps.
bool Run::continues_in_place() const {
  if (!args_.has("resume_from_checkpoint") || args_.get_bool("resume_only_model")) return false;
  const std::filesystem::path checkpoint = args_.get_string("resume_from_checkpoint");
  return std::filesystem::weakly_canonical(checkpoint).parent_path() ==
         std::filesystem::weakly_canonical(output_dir_);
}

// Checkpoints of two runs in one folder would be told apart by nothing.
void Run::check_folder() const {
  if (!options_.checkpoints || continues_in_place()) return;
  const auto others = list_checkpoints(output_dir_);
  if (others.empty()) return;
  const std::string where = "[" + args_.source("output_dir") + "] 'output_dir': '" + output_dir_ + "' ";
  if (!args_.get_bool("overwrite_output_dir")) {
    throw conflict(where + "holds checkpoints of another run (" + others.back() +
                   "); give another folder, go on with --resume-from-checkpoint, or remove them with "
                   "--overwrite-output-dir");
  }
  for (const auto& other : others) {
    std::error_code ignored;
    if (args_.has("resume_from_checkpoint") &&
        std::filesystem::equivalent(other, args_.get_string("resume_from_checkpoint"), ignored)) {
      throw conflict(where + "holds the checkpoint that this run starts from, which " +
                     "--overwrite-output-dir would remove; give another folder");
    }
  }
}

// What is wrong with the model shows in milliseconds, before rows are read.
void Run::check_model() {
  check_components(args_, kAnySteps);
  const std::string path = checked_model_path(args_);
  const ModelFiles files = open_model_files(path);
  model_config_from_json(files.config, path);
  if (!files.weights && args_.get_string("init") == "pretrained") {
    throw not_found("[model] '" + path +
                    "' has a config but no weights; --init random starts from fresh ones");
  }
  plan_ = plan_input(args_, files);
  const int64_t context = plan_.config.max_position, length = args_.get_int("max_length");
  if (length > context) {
    note("note: --max-length " + with_commas(length) +
         " is more than the model's context; rows longer than " + with_commas(context) +
         " tokens count as too long");
  }
}

void Run::load_data() {
  tokenizer_ = load_tokenizer(args_);
  template_ = std::shared_ptr<const Template>(load_template(args_, tokenizer_, plan_.config.max_position));
  if (args_.has("save_rows") && options_.checkpoints)
    recorder_ = std::make_shared<RowWriter>(args_.get_string("save_rows"), SaveRowsOptions{});
  const bool logs_dropped = args_.has("dropped_log") && options_.checkpoints;
  std::string dropped_log;
  const auto encode = [&](Dataset& data, std::string& hash) {
    encode_for_training(args_, *template_, data);
    for (const auto& line : data.notes()) note("note: " + line);
    int64_t dropped = 0;
    for (const auto& row : data.dropped()) dropped += row.partial ? 0 : 1;
    if (dropped > 0) {
      note("dropped " + with_commas(dropped) + " rows of " + data.name() +
           "; the first: " + data.dropped().front().reason);
    }
    hash = data.content_hash();
    if (logs_dropped) dropped_log += data.dropped_log();
    return data.take_features();
  };
  if (args_.get_bool("streaming")) {
    StreamingData data = load_stream(args_, template_, recorder_);
    for (const auto& line : data.notes) note("note: " + line);
    stream_ = data.source;
    dataset_hash_ = stream_->content_hash();
    loader_ = std::move(data.loader);
  } else {
    Dataset data = load_dataset(args_);
    if (recorder_) data.record_to(recorder_);
    if (args_.get_bool("lazy")) {
      for (const auto& line : data.notes()) note("note: " + line);
      dataset_hash_ = data.content_hash();
      if (logs_dropped) dropped_log += data.dropped_log();
      loader_ = std::make_unique<DataLoader>(make_lazy_loader(args_, std::move(data), template_));
    } else {
      auto features = encode(data, dataset_hash_);
      if (device_.is_cpu()) check_run_fits(args_, plan_, features);
      std::string packed;
      loader_ = std::make_unique<DataLoader>(
          make_loader(args_, std::move(features), template_->options().max_length, &packed));
      if (!packed.empty()) note(packed);
    }
    batches_per_epoch_ = loader_->batches_per_epoch();
  }
  std::optional<int64_t> num_samples;
  if (stream_ == nullptr) num_samples = loader_->num_features();
  samples_ = samples_of_run(args_, *template_, num_samples);
  if (options_.repeats) check_repeated_samples(*options_.repeats, args_, dataset_hash_, samples_);
  check_recorder();
  if (const auto eval = load_eval_dataset(args_)) eval_features_ = encode(*eval, eval_hash_);
  if (logs_dropped) write_file_atomic(args_.get_string("dropped_log"), dropped_log);
  schedule_ = schedule_of(args_, batches_per_epoch_);
  check_components(args_, schedule_.steps);
  stopped_early_ = options_.stop_after && *options_.stop_after < schedule_.steps;
  if (stopped_early_) schedule_ = {.steps = *options_.stop_after};
}

// Nothing is replaced: neither the rows of an earlier run nor what this one reads.
void Run::check_recorder() const {
  if (!recorder_) return;
  const std::string where = "[" + args_.source("save_rows") + "] 'save_rows': '";
  std::vector<std::string> others;
  for (const char* name : {"manifest.json", "metrics.jsonl", "digest.jsonl", "summary.json"})
    others.push_back(output_dir_ + "/" + name);
  if (args_.has("dropped_log")) others.push_back(args_.get_string("dropped_log"));
  for (const std::string& path : {recorder_->path(), recorder_->growing_path()}) {
    for (const std::string& other : others) {
      if (std::filesystem::weakly_canonical(other) == std::filesystem::weakly_canonical(path))
        throw conflict(where + path + "' is another file of this run");
    }
    if (file_exists(path))
      throw conflict(where + path + "' is there already; give another file, or remove it");
  }
}

void Run::load_model() {
  model_ =
      std::make_unique<TransformersModel>(checked_model_path(args_), transformers_options(args_, device_));
  model_->set_template(template_);
  if (args_.get_bool("use_lora")) {
    if (args_.has("lora_path")) {
      model_->add_adapter_to_model("default", args_.get_string("lora_path"),
                                   static_cast<uint64_t>(args_.get_int("seed")));
    } else {
      model_->add_adapter_to_model("default", lora_config(args_));
    }
  }
  model_->set_loss(args_.get_string("loss_cls"), loss_options(args_));
  model_->set_optimizer(args_.get_string("optimizer_cls"), optimizer_options(args_));
  // The length of the schedule is that of the whole run, wherever this process stops.
  const int64_t whole = schedule_of(args_, batches_per_epoch_).steps;
  model_->set_lr_scheduler(args_.get_string("scheduler_cls"), scheduler_options(args_, whole));
}

void Run::resume() {
  if (!args_.has("resume_from_checkpoint")) return;
  const bool only_model = args_.get_bool("resume_only_model");
  const ResumeInfo info =
      model_->resume_from_checkpoint(args_.get_string("resume_from_checkpoint"), only_model);
  for (const auto& line : info.notes) note("note: " + line);
  if (!only_model) result_.skipped_steps = info.skipped_steps;
  record_resume(info);
  // The options of this run decide, not those of the run before.
  model_->set_gradient_accumulation_steps(args_.get_int("gradient_accumulation_steps"));
  if (!only_model && !args_.get_bool("ignore_data_skip")) {
    const std::string path = args_.get_string("resume_from_checkpoint");
    if (info.manifest.is_object()) {  // else it was written by a program without one
      const auto recorded = RunManifest::from_json(info.manifest, path + "/trainer_state.json");
      const std::string changed = check_same_samples(recorded, args_, dataset_hash_, samples_, path);
      if (!changed.empty()) note("note: " + changed);
    }
    if (stream_ != nullptr && info.data_state.is_object()) {
      loader_->restore_state(info.data_state);
    } else {
      loader_->resume_from_checkpoint(info.consumed_train_samples);
    }
  }
  if (!only_model)
    note("resumed at step " + with_commas(run_step()) + " from " +
         args_.get_string("resume_from_checkpoint"));
}

// Options that change no bit of what is trained, and those that a resumed run has by being one.
Json options_of_the_bits(Json options) {
  for (const char* name : {"output_dir",
                           "overwrite_output_dir",
                           "resume_from_checkpoint",
                           "resume_only_model",
                           "ignore_data_skip",
                           "save_steps",
                           "save_total_limit",
                           "log_interval",
                           "eval_dataset_id",
                           "eval_interval",
                           "eval_samples",
                           "threads",
                           "device",
                           "max_tokens_per_pass",
                           "recompute",
                           "config",
                           "encoded_cache",
                           "dropped_log",
                           "save_rows",
                           "json"}) {
    options.erase(name);
  }
  return options;
}

// What a replay needs to know: where the run went on, and whether from there or from the very start.
void Run::record_resume(const ResumeInfo& info) {
  const std::string path = args_.get_string("resume_from_checkpoint");
  const bool only_model = args_.get_bool("resume_only_model");
  bool from_start = !only_model && !args_.get_bool("ignore_data_skip") && info.manifest.is_object();
  if (from_start) {
    const Json before = info.manifest.value("config", Json::object());
    const Json earlier = before.value("resumed_from", Json());
    from_start =
        options_of_the_bits(before.value("options", Json::object())) == options_of_the_bits(args_.values()) &&
        before.value("samples", samples_) == samples_ &&
        (earlier.is_null() || earlier.value("from_start", false));
  }
  resumed_from_ = {{"checkpoint", path},
                   {"state_sha256", sha256_hex(read_file(path + "/trainer_state.json"))},
                   {"step", only_model ? 0 : run_step()},
                   {"from_start", from_start}};
}

void Run::write_manifest() {
  manifest_ = RunManifest::of_this_program();
  manifest_.command = options_.command;
  Json given = Json::array();
  for (const auto& [name, value] : args_.values().items()) {
    if (args_.given(name)) given.push_back(name);
  }
  manifest_.config = {
      {"options", args_.values()}, {"given", given}, {"samples", samples_}, {"resumed_from", resumed_from_}};
  manifest_.model_id = args_.get_string("model_id");
  manifest_.model_hash = model_files_hash(checked_model_path(args_));
  manifest_.data_hashes[args_.get_string("dataset_id")] = dataset_hash_;
  manifest_.eval_data_hashes.emplace();
  if (args_.has("eval_dataset_id"))
    (*manifest_.eval_data_hashes)[args_.get_string("eval_dataset_id")] = eval_hash_;
  const auto seed = static_cast<uint64_t>(args_.get_int("seed"));
  manifest_.seeds = {{"data", seed}, {"lora", seed}, {"weights", seed}};
  const Json value = manifest_.to_json();
  model_->set_manifest(value);
  make_directories(output_dir_);
  lock_ = std::make_unique<FolderLock>(output_dir_);
  if (recorder_) recorder_->start();  // where it can not, the run of before keeps its files
  remove_left_over_files(output_dir_);
  if (options_.checkpoints && args_.get_bool("overwrite_output_dir") && !continues_in_place()) {
    for (const auto& other : list_checkpoints(output_dir_)) remove_checkpoint(other);
  }
  write_file_atomic(output_dir_ + "/manifest.json", value.dump(2) + "\n");
}

void Run::evaluate() {
  if (eval_features_.empty()) return;
  const int64_t batch = args_.get_int("batch_size");
  for (size_t begin = 0; begin < eval_features_.size(); begin += static_cast<size_t>(batch)) {
    const size_t end = std::min(eval_features_.size(), begin + static_cast<size_t>(batch));
    model_->forward_only(
        std::vector<InputFeature>(eval_features_.begin() + static_cast<std::ptrdiff_t>(begin),
                                  eval_features_.begin() + static_cast<std::ptrdiff_t>(end)));
    model_->calculate_loss();
  }
  const Json numbers = model_->calculate_metric(false);
  Json line = {{"step", run_step()}};
  for (const auto& [key, value] : numbers.items()) line["eval_" + key] = value;
  metrics_->write(line);
  for (const char* key : {"eval_loss", "eval_loss_sum"}) {
    if (line.contains(key) && line[key].is_number()) {
      result_.last_eval_loss = line[key].get<double>();
      char text[96];
      std::snprintf(text, sizeof(text), "step %lld: evaluation loss %.4f",
                    static_cast<long long>(model_->cur_step()), *result_.last_eval_loss);
      note(text);
    }
  }
}

void Run::save(bool last) {
  if (!options_.checkpoints || saved_step_ == model_->cur_step()) return;
  CheckpointOptions options;
  options.output_dir = output_dir_;
  options.consumed_train_samples = loader_->consumed_train_samples();
  if (stream_ != nullptr) options.data_state = loader_->get_state();
  options.save_total_limit = args_.has("save_total_limit") ? args_.get_int("save_total_limit") : 0;
  options.background = !last;
  if (const auto path = model_->save(options)) {
    result_.checkpoint = *path;
    saved_step_ = model_->cur_step();
    if (!being_saved_.empty()) note("saved " + being_saved_);
    being_saved_ = *path;
    announce_saved();
  }
}

// An adapter is written beside the loop: it is announced when it is there.
void Run::announce_saved() {
  if (being_saved_.empty() || !model_->save_finished()) return;
  note("saved " + being_saved_);
  being_saved_.clear();
}

// What was left out while the rows were read.
void Run::tell_dropped_rows() {
  const int64_t count =
      stream_ != nullptr ? stream_->num_dropped() : static_cast<int64_t>(loader_->failures().size());
  if (count == 0) return;
  note("dropped " + with_commas(count) + " rows of " + args_.get_string("dataset_id") +
       "; the first: " + (stream_ != nullptr ? stream_->dropped().front() : loader_->failures().front()));
}

// One optimizer step; false when the interruption came before it was complete.
bool Run::one_step() {
  const int64_t step = run_step() + 1;
  const bool short_step = step == schedule_.steps && schedule_.last_batches > 0;
  const int64_t batches = short_step ? schedule_.last_batches : args_.get_int("gradient_accumulation_steps");
  int64_t tokens = 0;
  for (int64_t i = 0; i < batches; ++i) {
    if (interrupted) return false;
    tokens += model_->forward_backward(loader_->next()).num_tokens;
  }
  if (short_step) model_->flush_accumulation();
  const StepResult done = model_->clip_grad_and_step(args_.get_float("max_grad_norm"));
  result_.tokens += tokens;
  const double epoch = stream_ != nullptr ? static_cast<double>(loader_->epoch())
                                          : static_cast<double>(loader_->consumed_train_samples()) /
                                                static_cast<double>(loader_->num_features());
  Json line = {{"step", step}, {"epoch", epoch}};
  line.update(model_->calculate_metric(true));
  // Of the whole accumulated batch: its mean, or its sum for a sum loss.
  const std::string key = line.contains("loss") ? "loss" : "loss_sum";
  const double loss = line.contains(key) && line[key].is_number() ? line[key].get<double>() : NAN;
  result_.losses.push_back(loss);
  if (std::isfinite(loss)) result_.last_loss = loss;
  digest_->step(step, loss, done.grad_norm);
  if (done.skipped) {
    ++result_.skipped_steps;
    line["skipped"] = done.reason;
    note("step " + std::to_string(step) + " skipped: " + done.reason);
  }
  metrics_->write(line);
  // A terminal has one line that moves; a log gets a line now and then.
  const bool shown =
      live_ || step == 1 || step == schedule_.steps || step % args_.get_int("log_interval") == 0;
  if (!options_.quiet && shown) progress_.update(step, schedule_.steps, line);
  return true;
}

void Run::loop() {
  const InterruptGuard guard;
  const int64_t save_steps = args_.get_int("save_steps");
  const int64_t eval_interval = args_.has("eval_interval") ? args_.get_int("eval_interval") : 0;
  const auto begin = Clock::now();
  while (run_step() < schedule_.steps && !interrupted) {
    const int64_t before = model_->cur_step();
    if (!one_step()) break;
    announce_saved();
    const int64_t step = model_->cur_step();
    if (step == before) continue;  // skipped
    if (eval_interval > 0 && step % eval_interval == 0 && step < schedule_.steps) evaluate();
    if (save_steps > 0 && step % save_steps == 0) save(false);
  }
  result_.train_seconds = seconds_since(begin);
  result_.interrupted = interrupted != 0;
}

// A run that was killed between its last step and the lines that close it.
bool Run::only_the_end_is_missing() {
  const std::string path = output_dir_ + "/digest.jsonl";
  if (!continues_in_place() || run_step() != schedule_.steps || !file_exists(path)) return false;
  const Digest digest = read_digest(path);
  return digest.last_step() == run_step() &&
         (digest.closing.is_null() || !file_exists(output_dir_ + "/summary.json"));
}

// Whether the last line of the metrics is that of the evaluation at the end; the summary takes its loss.
bool Run::evaluation_is_reported() {
  const std::string text = read_file(output_dir_ + "/metrics.jsonl");
  const size_t begin = text.size() < 2 ? 0 : text.rfind('\n', text.size() - 2) + 1;
  const Json line = Json::parse(text.substr(begin), nullptr, false);
  if (!line.is_object() || line.value("step", int64_t{0}) != run_step()) return false;
  for (const char* key : {"eval_loss", "eval_loss_sum"}) {
    if (!line.contains(key)) continue;
    if (line[key].is_number()) result_.last_eval_loss = line[key].get<double>();
    return true;
  }
  return false;
}

TrainingRunResult Run::run() {
  device_ = apply_machine(args_);
  check_folder();
  check_model();
  load_data();
  load_model();
  resume();
  const bool ends_only = only_the_end_is_missing();
  if (run_step() >= schedule_.steps && !ends_only) {
    throw invalid_argument("[training] the checkpoint is at step " + std::to_string(run_step()) +
                           " and the run ends at step " + std::to_string(schedule_.steps) +
                           "; raise --max-steps or --num-train-epochs");
  }
  write_manifest();
  // Reports of the run that this one goes on with are kept, those of any other are not.
  const int64_t resumed_at = continues_in_place() ? run_step() : 0;
  metrics_ = std::make_unique<JsonlWriter>(output_dir_ + "/metrics.jsonl", resumed_at);
  digest_ = std::make_unique<DigestWriter>(output_dir_ + "/digest.jsonl", resumed_at);
  if (ends_only) {
    note("the last step was taken already; only the end of the run is written");
    result_.checkpoint = args_.get_string("resume_from_checkpoint");
    saved_step_ = model_->cur_step();
  }
  loop();
  if (!result_.interrupted) {
    if (!ends_only || !evaluation_is_reported()) evaluate();
    save(true);
    result_.weights_sha256 = weights_hash(model_->group().trained());
    if (!stopped_early_) digest_->finish(model_->cur_step(), result_.weights_sha256);
  } else if (model_->group().pending_calls() == 0) {
    save(true);
  }
  model_->wait_for_save();
  if (!being_saved_.empty()) note("saved " + being_saved_);
  tell_dropped_rows();
  if (!options_.quiet) progress_.finish();
  result_.steps = model_->cur_step();
  result_.seconds = seconds_since(start_);
  result_.tokens_per_s =
      result_.train_seconds > 0 ? static_cast<double>(result_.tokens) / result_.train_seconds : 0;
  result_.peak_rss_mb = static_cast<double>(peak_resident_bytes()) / 1e6;
  write_file_atomic(output_dir_ + "/summary.json", result_.to_json().dump() + "\n");
  if (recorder_) {  // last: whatever is wrong with the rows, the run is whole
    recorder_->finish();
    note("wrote " + with_commas(recorder_->num_rows()) + " rows to " + recorder_->path());
  }
  return result_;
}

}  // namespace

Json TrainingRunResult::to_json() const {
  const auto number = [](const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); };
  return {{"steps", steps},
          {"skipped_steps", skipped_steps},
          {"interrupted", interrupted},
          {"loss", number(last_loss)},
          {"eval_loss", number(last_eval_loss)},
          {"losses", losses},
          {"checkpoint", checkpoint.empty() ? Json(nullptr) : Json(checkpoint)},
          {"weights_sha256", weights_sha256},
          {"tokens", tokens},
          {"seconds", seconds},
          {"train_seconds", train_seconds},
          {"tokens_per_s", tokens_per_s},
          {"peak_rss_mb", peak_rss_mb},
          {"isa", std::string(isa_name(active_isa()))}};
}

TrainingRunResult run_training(const ParsedArgs& args, const TrainingRunOptions& options) {
  return Run(args, options).run();
}

}  // namespace twinkle::cli
