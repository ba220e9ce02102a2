// Rows of your own, mixed, filtered and packed: what the batches of a run would hold.
//   mix_data TOKENIZER FIRST_DATA SECOND_DATA [CHAT_TEMPLATE_FILE]
// The rows of SECOND_DATA are {"ask", "reply"}, read by a function; those of FIRST_DATA by the preprocessor
// that fits.
#include <cstdio>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/packing.h"

using namespace twinkle;
int main(int argc, char** argv) try {
  if (argc < 4)
    return std::fprintf(stderr, "usage: mix_data TOKENIZER FIRST SECOND [CHAT_TEMPLATE_FILE]\n"), 2;
  const auto tmpl = make_template(template_name_for(argv[1]), Tokenizer::load(argv[1]),
                                  {.max_length = 256,
                                   .truncation_strategy = "delete",
                                   .chat_template = argc > 4 ? read_file(argv[4]) : "",
                                   .loss_scale = "last_round"});
  Dataset data({.dataset_id = argv[2]});
  const int second = data.add_dataset({.dataset_id = argv[3]});
  data.map("", nullptr, 0);
  data.map(
      [](const Row& row) {
        Trajectory out;
        out.messages.push_back({{"role", "user"}, {"content", row.at("ask")}});
        out.messages.push_back({{"role", "assistant"}, {"content", row.at("reply")}});
        return out;
      },
      second);
  data.filter([](const Row& row) { return row.at("reply") != ""; }, second);
  data.mix_dataset({.probabilities = {0.7, 0.3}, .stopping = "all_exhausted"});
  data.encode(*tmpl, BadRows::kDrop);
  for (const auto& row : data.dropped()) std::printf("left out: %s\n", row.reason.c_str());

  const auto bins = std::make_shared<PackingDataset>(data.take_features(), PackingOptions{.max_length = 256});
  std::printf("%lld rows, %lld tokens in %lld bins, %.1f %% full\n", static_cast<long long>(data.size()),
              static_cast<long long>(bins->num_tokens()), static_cast<long long>(bins->size()),
              100 * bins->fill());
  DataLoader loader(bins, {.batch_size = 2, .seed = 7, .num_workers = 2});
  const auto batch = loader.next();
  std::printf("first batch: %zu sequences, the first:\n%s\n", batch.size(),
              tmpl->decode(batch[0].input_ids, false).c_str());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
