// LocalModel: a model on this machine as the scorer of a data set's answers.
#include "twinkle/data/score_filter.h"
#include "twinkle/sample/score.h"

namespace twinkle {
namespace {

class LocalModel : public TokenScorer {
 public:
  explicit LocalModel(const Options& o) : model_(CausalLM::load(o.get_string("model_id"))) {
    if (o.has("adapter")) adapter_ = Adapter::load(*model_, o.get_string("adapter"));
  }
  std::vector<std::vector<float>> score(const std::vector<std::vector<int32_t>>& sequences) override {
    return score_sequences(*model_, adapter_.get(), sequences);
  }
  int64_t context() const override { return model_->config().max_position; }

 private:
  std::unique_ptr<CausalLM> model_;
  std::unique_ptr<Adapter> adapter_;
};

const Registry<TokenScorer>::Add kLocal{
    {.name = "LocalModel",
     .help = "A model of this machine, run by the engine.",
     .params = {{.name = "model_id", .help = "Its folder or .gguf file.", .required = true},
                {.name = "adapter", .help = "Folder of a PEFT adapter on top of it."}}},
    [](const Options& options) { return std::make_unique<LocalModel>(options); }};

}  // namespace
}  // namespace twinkle
