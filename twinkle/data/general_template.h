// The general template, and what families of models change in it. Immutable: safe from many threads.
#pragma once

#include <optional>

#include "twinkle/data/loss_scale.h"
#include "twinkle/data/template.h"
#include "twinkle/data/template_labels.h"
#include "twinkle/data/template_tokens.h"
#include "twinkle/text/chat_template.h"

namespace twinkle {

class GeneralTemplate : public Template {
 public:
  /// `own_source`: chat template of the family, where the options give none and the tokenizer's is not
  /// wanted.
  GeneralTemplate(std::shared_ptr<const Tokenizer> tokenizer, const TemplateOptions& options,
                  std::string_view own_source = "");

  std::vector<InputFeature> encode(const Trajectory& trajectory) const override;
  InputFeature encode_prompt(const Trajectory& trajectory) const override;
  std::string render(const Trajectory& trajectory, bool add_generation_prompt) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    return tokenizer_->decode(ids, skip_special_tokens);
  }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const TemplateOptions& options() const override { return options_; }
  std::vector<int32_t> stop_ids() const override { return stop_ids_; }
  std::vector<InputFeature> truncate(InputFeature whole) const override;
  std::string chat_template_source() const override { return chat_ ? chat_->source() : ""; }
  bool has_read_clock() const override { return chat_ && chat_->has_read_clock(); }

 protected:
  /// Changes prepared messages before they are rendered; their number stays, and a weight moves with its
  /// message.
  virtual void adjust(Json* messages, std::vector<float>* weights) const {
    static_cast<void>(messages), static_cast<void>(weights);
  }

 private:
  struct Prepared {
    Json messages;
    std::vector<float> weights;  // of each message
    int64_t inserted = 0;        // messages put first
  };
  ChatRenderOptions render_options(bool add_generation_prompt) const;
  void find_stop_ids();
  std::string plain_text(const Trajectory& trajectory) const;
  Prepared prepare(const Trajectory& trajectory) const;
  Json prepare_message(const Json& given, size_t index) const;
  /// The messages before `end`, of which those from `begin` on are trained on.
  InputFeature encode_chat(const Trajectory& trajectory, const Prepared& prepared, size_t begin,
                           size_t end) const;
  std::vector<InputFeature> encode_rounds(const Trajectory& trajectory, const Prepared& prepared) const;
  InputFeature encode_text(const Trajectory& trajectory) const;
  [[noreturn]] void too_long(int64_t size, bool is_prompt) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  TemplateOptions options_;
  RenderedEncoder encoder_;
  std::unique_ptr<ChatTemplate> chat_;
  std::shared_ptr<const LossScale> loss_scale_;
  std::vector<int32_t> stop_ids_;
};

}  // namespace twinkle
