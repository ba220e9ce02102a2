#include "twinkle/train/manifest.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/train_testing.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

using testing::message_of;
using testing::TempDir;

TEST(Manifest, RoundTripAndErrors) {
  RunManifest m = RunManifest::of_this_program();
  EXPECT_EQ(m.torch_version.substr(0, 6), "2.11.0");
  EXPECT_FALSE(m.isa.empty());
  m.command = "sft";
  m.config = {{"lr", 1e-3}};
  m.seeds = {{"data", 0xFFFFFFFFFFFFFFFFull}};
  m.data_hashes = {{"rows.jsonl", "ab"}};
  const RunManifest back = RunManifest::from_json(parse_json(m.to_json().dump(), "test"), "m.json");
  EXPECT_EQ(back.to_json(), m.to_json());
  EXPECT_EQ(message_of([] { RunManifest::from_json(Json::object(), "m.json"); }),
            "[manifest] 'm.json' lacks 'manifest_version'");
  Json broken = m.to_json();
  broken["seeds"] = "x";
  EXPECT_EQ(message_of([&] { RunManifest::from_json(broken, "m.json"); }).find("[manifest] 'm.json': "), 0u);
}

TEST(Manifest, RowsToTrainOnAndToEvaluateOnAreKeptApart) {
  RunManifest m = RunManifest::of_this_program();
  EXPECT_EQ(m.training_data_hash(), std::nullopt);
  m.config = {{"options", {{"dataset_id", "rows.jsonl"}, {"eval_dataset_id", "rows.jsonl"}}}};
  m.data_hashes = {{"rows.jsonl", "ab"}};
  m.eval_data_hashes.emplace();
  (*m.eval_data_hashes)["rows.jsonl"] = "cd";
  const auto again = [](const Json& value) { return RunManifest::from_json(value, "m.json"); };
  EXPECT_EQ(again(m.to_json()).to_json(), m.to_json());
  EXPECT_EQ(again(m.to_json()).training_data_hash(), "ab");
  // An older one has one hash for both, and that is the other.
  Json older = m.to_json();
  older.erase("eval_data_hashes");
  EXPECT_EQ(again(older).training_data_hash(), std::nullopt);
  older["config"]["options"]["eval_dataset_id"] = "other.jsonl";
  EXPECT_EQ(again(older).training_data_hash(), "ab");
}

TEST(Manifest, HashesDependOnNamesAndEveryBit) {
  std::vector<TrainedTensor> params = {{.name = "a", .value = at::tensor({1.0f, 2.0f})}};
  const std::string hash = weights_hash(params);
  EXPECT_EQ(hash.size(), 64u);
  params[0].value = at::tensor({1.0f, 2.0f});
  EXPECT_EQ(weights_hash(params), hash);
  params[0].value = at::tensor({1.0f, 2.0000002f});
  EXPECT_NE(weights_hash(params), hash);
  params[0] = {.name = "b", .value = at::tensor({1.0f, 2.0f})};
  EXPECT_NE(weights_hash(params), hash);

  TempDir dir;
  write_file_atomic(dir / "config.json", "{}");
  write_file_atomic(dir / "model.safetensors", "x");
  const std::string model = model_files_hash(dir.path());
  write_file_atomic(dir / "README.md", "not part of it");
  EXPECT_EQ(model_files_hash(dir.path()), model);
  write_file_atomic(dir / "model.safetensors", "y");
  EXPECT_NE(model_files_hash(dir.path()), model);
  EXPECT_EQ(model_files_hash(dir / "config.json"), sha256_hex("{}"));
}

TEST(Digest, ComparesBitForBit) {
  TempDir dir;
  const auto write = [&](const std::string& name, double second_loss, bool finish) {
    DigestWriter digest(dir / name);
    digest.step(1, 0.5, 1.0);
    digest.step(2, second_loss, std::nullopt);
    if (finish) digest.finish(2, "abc");
    return dir / name;
  };
  const std::string a = write("a", 0.25, true), same = write("b", 0.25, true);
  const DigestComparison equal = compare_digests(read_digest(a), read_digest(same));
  EXPECT_TRUE(equal.equal);
  EXPECT_EQ(equal.steps, 2);
  EXPECT_EQ(read_file(a).substr(0, 74),
            "{\"step\":1,\"loss\":\"3fe0000000000000\",\"grad_norm\":\"3ff0000000000000\"}\n{\"step");
  const DigestComparison other =
      compare_digests(read_digest(a), read_digest(write("c", std::nextafter(0.25, 1.0), true)));
  EXPECT_FALSE(other.equal);
  EXPECT_EQ(other.steps, 1);
  EXPECT_EQ(other.difference,
            "recorded {\"step\":2,\"loss\":\"3fd0000000000000\",\"grad_norm\":null}, "
            "repeated {\"step\":2,\"loss\":\"3fd0000000000001\",\"grad_norm\":null}");
  EXPECT_EQ(compare_digests(read_digest(a), read_digest(write("d", 0.25, false)))
                .difference.find("the repeated run ends after 2 lines"),
            0u);
}

TEST(Digest, SaysWhatIsWrongWithARecord) {
  TempDir dir;
  const auto read = [&](const std::string& text) {
    write_file_atomic(dir / "digest.jsonl", text);
    return read_digest(dir / "digest.jsonl");
  };
  const auto error = [&](const std::string& text) {
    std::string message = message_of([&] { read(text); });
    const size_t at = message.find(dir.path());
    return at == std::string::npos ? message : message.erase(at, dir.path().size() + 1);
  };
  EXPECT_TRUE(read("").steps.empty());
  const Digest torn = read("{\"step\":4}\n{\"step\":5}\n{\"steps\":5,\"weig");
  EXPECT_TRUE(torn.torn);
  EXPECT_EQ(torn.first_step(), 4);
  EXPECT_EQ(torn.last_step(), 5);
  EXPECT_TRUE(torn.closing.is_null());
  EXPECT_EQ(
      error("{\"step\":1}\n{\"step\":3}\n"),
      "[digest] 'digest.jsonl' line 2 has step 3 where step 2 belongs: lines are missing or were added");
  EXPECT_EQ(error("{\"step\":1}\nx\n"),
            "[digest] 'digest.jsonl' line 2 is not one of a digest: the file was damaged");
  EXPECT_EQ(error("{\"step\":1}\n{\"steps\":1,\"weights_sha256\":\"a\"}\n{\"step\":2}\n"),
            "[digest] 'digest.jsonl' line 3 follows the line that closes the run");
}

}  // namespace
}  // namespace twinkle
