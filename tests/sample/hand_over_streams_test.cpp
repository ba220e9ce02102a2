// Streams of weights that are not what they should be: the sampler goes on with what it had, and says why.
#include "tests/sample/hand_over_testing.h"
#include "tests/temp_dir.h"
#include "twinkle/core/local_socket.h"
#include "twinkle/core/tensor_stream.h"
#include "twinkle/model/weights_id.h"
#include "twinkle/sample/checkpoint_engine.h"

namespace twinkle::test {
namespace {

struct RawStream {
  std::vector<std::byte> bytes;
  FrameWriter writer{[this](std::span<const std::byte> b) { bytes.insert(bytes.end(), b.begin(), b.end()); }};
};

struct Target {
  Target() {
    write_model(folder / "model", 3);
    sampler = std::make_unique<vLLMSampler>(folder / "model", kEngine);
    sampler->receive_weights(folder / "s", {.most_rank = 8, .silence_s = 2});
    other = CausalLM::load(folder / "model");
    for (auto& parameter : other->parameters()) {
      if (!parameter.is_matrix()) parameter.vector.mul_(1.5f);
    }
    before = sampler->sample(prompts(), kParams);
  }
  // The whole of what a trainer with other weights would send.
  RawStream stream(
      const std::function<void(Json&)>& change = [](Json&) {},
      const std::function<void(std::vector<TensorToWrite>&)>& change_tensors =
          [](std::vector<TensorToWrite>&) {},
      const std::string& id = "") const {
    RawStream out;
    std::vector<TensorToWrite> tensors;
    for (const auto& parameter : other->parameters()) tensors.push_back(weight_to_write(parameter));
    change_tensors(tensors);
    const auto plan = plan_safetensors(tensors, {});
    Json about = {{"protocol", 1},
                  {"what", "model"},
                  {"facts", model_facts(other->config())},
                  {"file_bytes", plan.total_bytes},
                  {"bucket_bytes", 4096}};
    change(about);
    out.writer.write_message(FrameKind::kAbout, about);
    send_tensors(out.writer, plan, 4096);
    out.writer.write_message(FrameKind::kEnd, Json{{"weights_id", id.empty() ? weights_id(*other) : id}});
    return out;
  }
  void expect_refused(std::span<const std::byte> bytes, const std::string& why, const std::string& what,
                      bool hang_up = false) {
    const int64_t failed = sampler->receive_status().failed;
    {
      LocalSocket socket = LocalSocket::connect(folder / "s");
      try {
        socket.write(bytes);
      } catch (const Error&) {  // refused before it had all
      }
      std::byte replies[4096];
      while (!hang_up && socket.read(replies) > 0) {
      }
    }
    wait_until([&] { return sampler->receive_status().failed == failed + 1; });
    EXPECT_NE(sampler->receive_status().last_error.find(why), std::string::npos)
        << what << ": " << sampler->receive_status().last_error;
  }
  void expect_old_weights() {
    const auto now = sampler->sample(prompts(), kParams);
    for (size_t i = 0; i < now.size(); ++i)
      EXPECT_EQ(now[i].sequences[0].logprobs, before[i].sequences[0].logprobs);
    EXPECT_EQ(now[0].model_version, 0);
    EXPECT_EQ(sampler->receive_status().received, 0);
  }
  TempDir folder;
  std::unique_ptr<vLLMSampler> sampler;
  std::unique_ptr<CausalLM> other;
  std::vector<SampleResponse> before;
};

TEST(HandOver, DamagedAndCutStreamsChangeNothing) {
  Target target;
  const RawStream whole = target.stream();
  CounterRng rng(5);
  for (int i = 0; i < 60; ++i) {
    std::vector<std::byte> damaged = whole.bytes;
    const auto at = static_cast<size_t>(i < 32 ? i : rng.next_below(damaged.size()));
    damaged[at] ^= static_cast<std::byte>(1u << rng.next_below(8));
    target.expect_refused(damaged, "[stream]", "byte " + std::to_string(at));
    const auto cut = static_cast<size_t>(1 + rng.next_below(whole.bytes.size() - 1));
    target.expect_refused(std::span(whole.bytes).first(cut), "the other side is gone",
                          "cut at " + std::to_string(cut), true);
  }
  target.expect_old_weights();
  // The very stream, whole, is taken.
  LocalSocket socket = LocalSocket::connect(target.folder / "s");
  socket.write(whole.bytes);
  FrameReader replies([&](std::span<std::byte> out) { return socket.read(out); });
  EXPECT_EQ(replies.read_message(FrameKind::kReply)["status"], "go");
  const Json done = replies.read_message(FrameKind::kReply);
  EXPECT_EQ(done["status"], "done");
  EXPECT_EQ(done["version"], "model@1");
  EXPECT_EQ(target.sampler->sample(prompts(), kParams)[0].model_version, 1);
}

TEST(HandOver, HostileAnnouncementsAreRefused) {
  Target target;
  const auto refused = [&](const std::string& why, const std::function<void(Json&)>& change) {
    target.expect_refused(target.stream(change).bytes, why, why);
  };
  refused("'protocol'", [](Json& a) { a["protocol"] = 2; });
  refused("unknown option 'whta'", [](Json& a) { a["whta"] = "model"; });
  refused("'what'", [](Json& a) { a["what"] = "code"; });
  refused("another one: 'vocab_size' is 259 here", [](Json& a) { a["facts"]["vocab_size"] = 1 << 30; });
  refused("another one", [](Json& a) { a["facts"] = Json::array({1}); });
  refused("can belong to this model", [](Json& a) { a["file_bytes"] = int64_t{1} << 60; });
  refused("at most 256 MB are taken", [](Json& a) { a["bucket_bytes"] = int64_t{1} << 50; });
  refused("'bucket_bytes'", [](Json& a) { a["bucket_bytes"] = -8; });
  refused("it claims 4096 bytes, at most 9", [](Json& a) { a["file_bytes"] = 9; });
  const auto adapter = [](Json& a, const Json& config, const std::string& name) {
    a["what"] = "adapter";
    a["name"] = name;
    a["adapter_config"] = config;
  };
  refused("'r': must be from 1 to 65536", [&](Json& a) {
    adapter(a, lora_config_to_json({.r = 1'000'000'000, .target_modules = {"q_proj"}}), "x");
  });
  refused("rank 9", [&](Json& a) {
    adapter(a, lora_config_to_json({.r = 2, .target_modules = {"q_proj"}, .rank_pattern = {{"q", 9}}}), "x");
  });
  refused("control characters",
          [&](Json& a) { adapter(a, lora_config_to_json({.r = 2, .target_modules = {"q_proj"}}), "a\nb"); });
  refused("1 to 256 bytes",
          [&](Json& a) { adapter(a, lora_config_to_json({.r = 2, .target_modules = {"q_proj"}}), ""); });
  refused("expected an object", [&](Json& a) { adapter(a, Json(3), "x"); });
  // Tensors that are not the model's, and weights that are not those that were sent.
  const auto tensors_refused = [&](const std::string& why,
                                   const std::function<void(std::vector<TensorToWrite>&)>& change) {
    target.expect_refused(target.stream([](Json&) {}, change).bytes, why, why);
  };
  tensors_refused("12 tensors came", [](auto& t) { t.resize(12); });
  tensors_refused("'x' is none of this model's", [](auto& t) { t[0].name = "x"; });
  tensors_refused("'model.norm.weight' is BF16, expected F32", [](auto& t) {
    std::ranges::find(t, "model.norm.weight", &TensorToWrite::name)->dtype = "BF16";
  });
  tensors_refused("has the shape [32,259], this model's has [259,32]", [](auto& t) {
    std::ranges::find(t, "model.embed_tokens.weight", &TensorToWrite::name)->shape = {32, 259};
  });
  for (const uint32_t bits : {0x7F800000u, 0xFFC00000u}) {
    tensors_refused("'model.norm.weight' holds numbers that are not finite", [&](auto& t) {
      auto& fill = std::ranges::find(t, "model.norm.weight", &TensorToWrite::name)->fill;
      fill = [bits, own = fill](int64_t offset, std::span<std::byte> out) {
        own(offset, out);
        if (offset == 0) std::memcpy(out.data(), &bits, sizeof(bits));
      };
    });
  }
  target.expect_refused(target.stream([](Json&) {}, [](auto&) {}, "0").bytes,
                        "the weights that came are not those that were sent", "another id");
  // A trainer that says nothing is given up.
  {
    const int64_t failed = target.sampler->receive_status().failed;
    const LocalSocket silent = LocalSocket::connect(target.folder / "s");
    wait_until([&] { return target.sampler->receive_status().failed == failed + 1; });
    EXPECT_NE(target.sampler->receive_status().last_error.find("said nothing for 2 s"), std::string::npos);
  }
  target.expect_old_weights();
}

TEST(HandOver, TheTrainerHearsWhy) {
  TempDir folder;
  write_model(folder / "model", 3);
  const auto trainer = make_trainer("adapter", folder / "model");
  CheckpointEngineManager nobody(*trainer, folder / "s");
  expect_error(ErrorKind::kNotFound, "[socket] there is no '" + (folder / "s") + "'",
               [&] { nobody.sync_weights(); });
  vLLMSampler sampler(folder / "model", kEngine);
  CheckpointEngineManager manager(*trainer, folder / "s", {.bucket_bytes = 1 << 16});
  sampler.receive_weights(folder / "s", {.most_bucket_mb = 1, .most_rank = 2});
  expect_error(ErrorKind::kInvalidArgument,
               "[weights] adapter 'default' has the rank 4, at most 2 is taken here",
               [&] { manager.sync_weights(false); });
  expect_error(ErrorKind::kInvalidArgument,
               "[weights] buckets of 67108864 bytes, at most 1 MB are taken here",
               [&] { nobody.sync_weights(true); });
  expect_error(ErrorKind::kConflict, "[sample] weights are received already, at '" + (folder / "s") + "'",
               [&] { sampler.receive_weights(folder / "t"); });
  EXPECT_THROW(CheckpointEngineManager(*trainer, folder / "s", {.bucket_bytes = 12}), Error);
  EXPECT_EQ(manager.sync_weights(true).note, "");
  // Asleep with something under way, weights are not taken; with nothing, they are.
  const auto job =
      sampler.engine().submit(request(random_tokens(5, 1), {.max_tokens = 240, .ignore_eos = true}));
  sampler.sleep();
  expect_error(ErrorKind::kUnavailable,
               "[sample] the sampler sleeps while requests wait for the old weights; wake_up() lets them end",
               [&] { manager.sync_weights(true); });
  sampler.wake_up();
  EXPECT_EQ(job->wait().model_version, 1);
  sampler.sleep();
  EXPECT_EQ(manager.sync_weights(true).version, "model@2");
  sampler.wake_up();
  EXPECT_EQ(sampler.sample(prompts(), kParams)[0].model_version, 2);
  sampler.stop_receiving();
  EXPECT_EQ(sampler.receives_at(), "");
  EXPECT_THROW(manager.sync_weights(true), Error);
  sampler.receive_weights(folder / "s");
  EXPECT_EQ(manager.sync_weights(true).version, "model@3");
}

}  // namespace
}  // namespace twinkle::test
