#include "server/engine/model/weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "server/engine/model/checkpoint.h"
#include "server/engine/model/safetensors.h"
#include "tests/engine/model/model_directory.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The tensors under other names: `rename(name)` for each.
template <typename Rename>
Tensors Renamed(const Tensors& tensors, const Rename& rename) {
  Tensors renamed;
  for (const auto& [name, tensor] : tensors) renamed[rename(name)] = tensor;
  return renamed;
}

std::string Without(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

void ExpectRefused(const ModelDirectory& directory, absl::StatusCode code, const std::string& named) {
  EXPECT_THAT(directory.Load(), StatusIs(code, HasSubstr(named)));
}

TEST(Weights, ThatAreTruncatedWhileTheyAreReadAreAnErrorThatNamesTheTensor) {
  const ModelDirectory directory("gpt2");
  auto checkpoint = Checkpoint::Open(directory.path(), "transformer.");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string path = directory.folder().File("model.safetensors");
  const at::Tensor norm = SafetensorsFile::Open(path)->Read("transformer.ln_f.weight").value();
  ASSERT_TRUE(checkpoint->Get("ln_f.weight", norm.sizes()).ok());
  fs::resize_file(path, 16);
  EXPECT_THAT(checkpoint->Get("ln_f.weight", norm.sizes()),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("ln_f.weight"), HasSubstr("became shorter"))));
  EXPECT_THAT(checkpoint->Fingerprint(""), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("became shorter")));
}

// L01
TEST(Weights, TakesNamesWithTheirPrefixOrWithoutOrMixed) {
  const std::pair<std::string, std::string> kModels[] = {
      {"gpt2", "transformer."}, {"neox", "gpt_neox."}, {"llama", "model."}};
  for (const auto& [fixture, prefix] : kModels) {
    SCOPED_TRACE(fixture);
    ModelDirectory directory(fixture);
    const at::Tensor expected = directory.Logits();
    const std::string fingerprint = directory.Load()->fingerprint;
    const Tensors tensors = directory.ReadTensors();
    EXPECT_TRUE(tensors.lower_bound(prefix)->first.starts_with(prefix));

    directory.WriteTensors(Renamed(tensors, [&](const std::string& name) { return Without(name, prefix); }));
    EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);
    EXPECT_EQ(directory.Load()->fingerprint, fingerprint);

    int turn = 0;
    directory.WriteTensors(
        Renamed(tensors, [&](const std::string& name) { return turn++ % 2 == 0 ? Without(name, prefix) : name; }));
    EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);

    Tensors doubled = tensors;
    const auto& [name, tensor] = *tensors.lower_bound(prefix);
    doubled[Without(name, prefix)] = tensor;
    directory.WriteTensors(doubled);
    ExpectRefused(directory, absl::StatusCode::kInvalidArgument, Without(name, prefix));

    directory.WriteTensors(
        Renamed(tensors, [&, first = name](const std::string& each) { return each == first ? prefix + each : each; }));
    EXPECT_FALSE(directory.Load().ok());
  }
}

// L03, and the buffers of older checkpoints.
TEST(Weights, LeavesOutTheBuffersThatOldCheckpointsCarry) {
  {
    ModelDirectory directory("gpt2");
    const at::Tensor expected = directory.Logits();
    Tensors tensors =
        Renamed(directory.ReadTensors(), [](const std::string& name) { return Without(name, "transformer."); });
    for (int layer : {0, 1}) {
      const std::string prefix = "h." + std::to_string(layer) + ".attn.";
      tensors[prefix + "bias"] = at::ones({1, 1, 64, 64}, at::kByte);
      tensors[prefix + "masked_bias"] = at::scalar_tensor(-1e4);
    }
    directory.WriteTensors(tensors);
    EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);
  }
  {
    ModelDirectory directory("neox");
    const at::Tensor expected = directory.Logits();
    Tensors tensors = directory.ReadTensors();
    for (int layer : {0, 1}) {
      const std::string prefix = "gpt_neox.layers." + std::to_string(layer) + ".attention.";
      tensors[prefix + "bias"] = at::ones({1, 1, 64, 64}, at::kByte);
      tensors[prefix + "masked_bias"] = at::scalar_tensor(-1e9);
      tensors[prefix + "rotary_emb.inv_freq"] = at::full({2}, 99.0);  // not what config.json says
    }
    directory.WriteTensors(tensors);
    EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);
  }
  {
    ModelDirectory directory("llama");
    const at::Tensor expected = directory.Logits();
    Tensors tensors = directory.ReadTensors();
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = at::full({4}, 99.0);
    directory.WriteTensors(tensors);
    EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);
  }
}

// L04
TEST(Weights, TiesTheOutputOnlyWhereTheConfigurationSaysSo) {
  ModelDirectory tied("llama-tied-wide-heads");
  const Tensors tensors = tied.ReadTensors();
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  const at::Tensor expected = tied.Logits();
  const absl::StatusOr<ModelWeights> model = tied.Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->output.weight.is_same(model->token_embedding));

  // The same matrix written out twice, or under the head's name alone.
  Tensors both = tensors;
  both["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  tied.WriteTensors(both);
  EXPECT_EQ(MaxDifference(tied.Logits(), expected), 0);
  EXPECT_TRUE(tied.Load()->config.tied_output);
  EXPECT_EQ(tied.Load()->fingerprint, model->fingerprint);
  both.erase("model.embed_tokens.weight");
  tied.WriteTensors(both);
  EXPECT_EQ(MaxDifference(tied.Logits(), expected), 0);

  // A head of its own is used, as transformers does.
  both = tensors;
  both["lm_head.weight"] = tensors.at("model.embed_tokens.weight") * 2;
  tied.WriteTensors(both);
  EXPECT_LT(MaxDifference(tied.Logits(), expected * 2), 1e-5);
  EXPECT_FALSE(tied.Load()->config.tied_output);

  tied.WriteTensors(tensors);
  tied.EditConfig({{"tie_word_embeddings", false}});
  ExpectRefused(tied, absl::StatusCode::kNotFound, "lm_head.weight");
}

// L04, L06
TEST(Weights, NamesEveryTensorThatIsMissing) {
  for (const char* fixture : {"gpt2", "neox", "llama-narrow-heads-biased"}) {
    ModelDirectory directory(fixture);
    const Tensors tensors = directory.ReadTensors();
    for (const auto& [name, tensor] : tensors) {
      Tensors fewer = tensors;
      fewer.erase(name);
      directory.WriteTensors(fewer);
      const std::string short_name = Without(Without(Without(name, "transformer."), "gpt_neox."), "model.");
      ExpectRefused(directory, absl::StatusCode::kNotFound, "tensor " + short_name + " is missing");
    }
  }
}

TEST(Weights, NamesEveryTensorOfAWrongShape) {
  for (const char* fixture : {"gpt2", "neox", "llama-narrow-heads-biased"}) {
    ModelDirectory directory(fixture);
    const Tensors tensors = directory.ReadTensors();
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor wrongs[] = {at::cat({tensor, tensor}), tensor.unsqueeze(0), tensor.reshape({-1, 1, 1}),
                                   tensor.narrow(0, 1, tensor.size(0) - 1)};
      for (const at::Tensor& wrong : wrongs) {
        Tensors others = tensors;
        others[name] = wrong;
        directory.WriteTensors(others);
        ExpectRefused(directory, absl::StatusCode::kInvalidArgument, name);
      }
    }
  }
}

TEST(Weights, NamesATensorThatIsNotOfTheModel) {
  ModelDirectory directory("llama");
  Tensors tensors = directory.ReadTensors();
  tensors["model.layers.0.self_attn.q_norm.weight"] = at::ones({8});
  directory.WriteTensors(tensors);
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "model.layers.0.self_attn.q_norm.weight");
  tensors.erase("model.layers.0.self_attn.q_norm.weight");
  tensors["model.layers.0.self_attn.q_proj.bias"] = at::ones({32});  // attention_bias is false
  directory.WriteTensors(tensors);
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "q_proj.bias");
  tensors.erase("model.layers.0.self_attn.q_proj.bias");
  directory.WriteTensors(tensors);
  directory.EditConfig({{"num_hidden_layers", 1}});
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "model.layers.1.");
  directory.EditConfig({{"num_hidden_layers", 3}});
  ExpectRefused(directory, absl::StatusCode::kNotFound, "layers.2.");
}

TEST(Weights, NamesATensorThatIsNoFloatingPointOne) {
  ModelDirectory directory("gpt2");
  Tensors tensors = directory.ReadTensors();
  tensors["transformer.ln_f.weight"] = at::ones({32}, at::kInt);
  directory.WriteTensors(tensors);
  EXPECT_THAT(directory.Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         AllOf(HasSubstr("transformer.ln_f.weight"), HasSubstr("I32"))));
}

// L16
TEST(Weights, TransposesTheSquareMatricesOfGpt2Too) {
  ModelDirectory directory("gpt2");
  const at::Tensor expected = directory.Logits();
  Tensors tensors = directory.ReadTensors();
  at::Tensor& square = tensors["transformer.h.0.attn.c_proj.weight"];
  EXPECT_TRUE(at::equal(directory.Load()->layers[0].attention_out.weight, square.t()));
  square = square.t();
  directory.WriteTensors(tensors);
  EXPECT_GT(MaxDifference(directory.Logits(), expected), 0.1);
}

// A flag that is read but not used would leave the logits alone.
TEST(Weights, ChangesItsLogitsWithEveryFlag) {
  const std::pair<std::string, json> kChanges[] = {
      {"neox", {{"use_parallel_residual", false}}},
      {"neox", {{"hidden_act", "gelu_new"}}},
      {"neox", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}},
      {"neox", {{"rope_parameters", {{"rope_theta", 50000}}}}},
      {"neox", {{"layer_norm_eps", 0.01}}},
      {"gpt2", {{"scale_attn_weights", false}}},
      {"gpt2", {{"scale_attn_by_inverse_layer_idx", true}}},
      {"gpt2", {{"activation_function", "relu"}}},
      {"gpt2", {{"layer_norm_epsilon", 0.01}}},
      {"llama", {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}}}},
      {"llama", {{"rope_parameters", {{"rope_theta", 50000}}}}},
      {"llama", {{"rms_norm_eps", 0.01}}},
      {"llama", {{"hidden_act", "gelu"}}}};
  for (const auto& [fixture, patch] : kChanges) {
    ModelDirectory directory(fixture);
    const at::Tensor expected = directory.Logits();
    const std::string fingerprint = directory.Load()->fingerprint;
    directory.EditConfig(patch);
    EXPECT_GT(MaxDifference(directory.Logits(), expected), 1e-4) << fixture << patch;
    EXPECT_NE(directory.Load()->fingerprint, fingerprint) << fixture << patch;
  }
  ModelDirectory directory("neox");
  const at::Tensor expected = directory.Logits();
  directory.EditConfig({{"use_parallel_residual", nullptr}});
  EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);
}

TEST(Weights, ConvertsEveryFloatingPointDtypeOnce) {
  for (const char* fixture : {"gpt2", "neox", "llama"}) {
    SCOPED_TRACE(fixture);
    ModelDirectory directory(fixture);
    const Tensors tensors = directory.ReadTensors();
    const at::Tensor expected = directory.Logits();
    for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
      Tensors converted;
      for (const auto& [name, tensor] : tensors) converted[name] = tensor.to(type);
      directory.WriteTensors(converted);
      Tensors rounded;
      for (const auto& [name, tensor] : converted) rounded[name] = tensor.to(at::kFloat);
      const at::Tensor logits = directory.Logits();
      directory.WriteTensors(rounded);
      EXPECT_EQ(MaxDifference(directory.Logits(), logits), 0) << type;
      EXPECT_EQ(MaxDifference(logits, expected) > 0, type != at::kDouble) << type;
    }
  }
}

TEST(Weights, KeepsNormsAndBiasesInFloat32) {
  for (const char* fixture : {"gpt2", "neox", "llama-narrow-heads-biased"}) {
    SCOPED_TRACE(fixture);
    const absl::StatusOr<ModelWeights> model = ModelDirectory(fixture).Load(at::kBFloat16);
    ASSERT_TRUE(model.ok()) << model.status();
    const LayerWeights& layer = model->layers[1];
    for (const LinearWeights* part : {&layer.qkv, &layer.attention_out, &layer.mlp_in, &layer.mlp_out}) {
      EXPECT_EQ(part->weight.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(part->weight.is_contiguous());
      EXPECT_EQ(part->bias.scalar_type(), at::kFloat);
    }
    EXPECT_EQ(model->token_embedding.scalar_type(), at::kBFloat16);
    EXPECT_EQ(layer.mlp_norm.weight.scalar_type(), at::kFloat);
    EXPECT_EQ(model->final_norm.weight.scalar_type(), at::kFloat);
    EXPECT_EQ(model->fingerprint, ModelDirectory(fixture).Load(at::kFloat)->fingerprint);
    EXPECT_GT(model->parameters, 0);
    EXPECT_LT(model->bytes, 4 * model->parameters);
  }
}

TEST(Weights, CountsParametersAsTransformersDoes) {
  int64_t total = 0;
  for (const auto& [name, tensor] : ModelDirectory("llama-narrow-heads-biased").ReadTensors()) total += tensor.numel();
  EXPECT_EQ(ModelDirectory("llama-narrow-heads-biased").Load()->parameters, total);
  EXPECT_EQ(ModelDirectory("llama-narrow-heads-biased").Load()->bytes, 4 * total);
  total = 0;
  for (const auto& [name, tensor] : ModelDirectory("gpt2").ReadTensors()) total += tensor.numel();
  EXPECT_EQ(ModelDirectory("gpt2").Load()->parameters, total);  // the tied head once
}

TEST(Weights, ReadsShards) {
  ModelDirectory directory("neox");
  const at::Tensor expected = directory.Logits();
  const std::string fingerprint = directory.Load()->fingerprint;
  directory.Shard();
  EXPECT_EQ(MaxDifference(directory.Logits(), expected), 0);
  EXPECT_EQ(directory.Load()->fingerprint, fingerprint);
}

// L06
TEST(Weights, NamesAShardOrAShardsTensorThatIsMissing) {
  ModelDirectory directory("neox");
  directory.Shard();
  const json index = directory.ReadIndex();
  json fewer = index;
  fewer["weight_map"].erase("embed_out.weight");
  directory.WriteIndex(fewer);
  ExpectRefused(directory, absl::StatusCode::kNotFound, "embed_out.weight");

  json moved = index;
  std::string& shard = moved["weight_map"]["embed_out.weight"].get_ref<std::string&>();
  shard = shard == "m-1.safetensors" ? "m-2.safetensors" : "m-1.safetensors";
  directory.WriteIndex(moved);
  EXPECT_THAT(directory.Load(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("embed_out.weight"), HasSubstr(shard))));

  directory.WriteIndex(index);
  fs::remove(directory.folder().File("m-2.safetensors"));
  ExpectRefused(directory, absl::StatusCode::kNotFound, "m-2.safetensors");
}

TEST(Weights, RefusesADamagedIndex) {
  ModelDirectory directory("neox");
  directory.Shard();
  for (const json& index : {json::object(), json({{"weight_map", 1}}), json({{"weight_map", {{"a", 1}}}}),
                            json({{"weight_map", {{"a", nullptr}}}})}) {
    directory.WriteIndex(index);
    EXPECT_FALSE(directory.Load().ok()) << index;
  }
  directory.folder().Write("model.safetensors.index.json", "{\"weight_map\":" + std::string(100000, '['));
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "nested");
}

// L08
TEST(Weights, ReadsNoShardOutsideTheModelDirectory) {
  ModelDirectory directory("neox");
  directory.Shard();
  const TemporaryFolder outside;
  const std::string kShard = "m-2.safetensors";
  const std::string inside_path = directory.folder().File(kShard), outside_path = outside.File(kShard);
  fs::rename(inside_path, outside_path);
  const json index = directory.ReadIndex();
  const auto point_to = [&](const std::string& file) {
    json changed = index;
    for (auto& [name, shard] : changed["weight_map"].items()) {
      if (shard == kShard) shard = file;
    }
    directory.WriteIndex(changed);
  };

  point_to("../" + fs::path(outside.path()).filename().string() + "/" + kShard);
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "outside the model directory");
  point_to(outside_path);
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "outside the model directory");
  for (const std::string& name : {std::string(), std::string("."), std::string("m-1.safetensors\0x", 17)}) {
    point_to(name);
    ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "");
  }

  directory.WriteIndex(index);
  fs::create_symlink(outside_path, inside_path);
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "link");
  fs::remove(inside_path);
  fs::create_directory_symlink(outside.path(), directory.folder().File("sub"));
  point_to("sub/" + kShard);
  ExpectRefused(directory, absl::StatusCode::kInvalidArgument, "link");

  // Links that stay inside are fine.
  fs::create_directory(directory.folder().File("real"));
  fs::rename(outside_path, directory.folder().File("real/blob"));
  fs::create_symlink("real/blob", inside_path);
  directory.WriteIndex(index);
  EXPECT_TRUE(directory.Load().ok()) << directory.Load().status();
}

// L08: snapshots/<revision> links to ../../blobs.
TEST(Weights, ReadsASnapshotOfAHubCache) {
  ModelDirectory directory("neox");
  directory.Shard();
  const TemporaryFolder cache;
  const std::string snapshot = cache.File("models--a--b/snapshots/0123");
  fs::create_directories(snapshot);
  fs::create_directories(cache.File("models--a--b/blobs"));
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    const std::string name = entry.path().filename().string();
    fs::copy_file(entry.path(), cache.File("models--a--b/blobs/" + name));
    fs::create_symlink("../../blobs/" + name, snapshot + "/" + name);
  }
  const absl::StatusOr<ModelWeights> model = LoadModelWeights(snapshot, at::kFloat, at::kCPU);
  EXPECT_TRUE(model.ok()) << model.status();
  fs::rename(cache.File("models--a--b/blobs/m-2.safetensors"), cache.File("m-2"));
  fs::remove(snapshot + "/m-2.safetensors");
  fs::create_symlink("../../../m-2", snapshot + "/m-2.safetensors");
  EXPECT_THAT(LoadModelWeights(snapshot, at::kFloat, at::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("m-2.safetensors")));
}

TEST(Weights, SaysWhatADirectoryWithoutWeightsLacks) {
  ModelDirectory directory("gpt2");
  fs::remove(directory.folder().File("model.safetensors"));
  directory.folder().Write("pytorch_model.bin", "pickle");
  ExpectRefused(directory, absl::StatusCode::kNotFound, "model.safetensors");
  EXPECT_THAT(LoadModelWeights(directory.folder().File("none"), at::kFloat, at::kCPU),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(Weights, HasAFingerprintThatFollowsTheWeights) {
  ModelDirectory directory("gpt2");
  const Tensors tensors = directory.ReadTensors();
  const std::string fingerprint = directory.Load()->fingerprint;
  EXPECT_THAT(fingerprint, StartsWith("sha256:"));
  EXPECT_EQ(fingerprint.size(), 7u + 64u);
  for (const auto& [name, tensor] : tensors) {
    Tensors changed = tensors;
    at::Tensor copy = tensor.clone();
    copy.view(-1)[copy.numel() / 3] += 1;  // a single weight
    changed[name] = copy;
    directory.WriteTensors(changed);
    EXPECT_NE(directory.Load()->fingerprint, fingerprint) << name;
  }
  directory.WriteTensors(tensors);
  directory.EditConfig({{"eos_token_id", 5}, {"resid_pdrop", 0.3}});
  EXPECT_EQ(directory.Load()->fingerprint, fingerprint);
  directory.EditConfig({{"layer_norm_epsilon", 1e-6}});
  EXPECT_NE(directory.Load()->fingerprint, fingerprint);
}

}  // namespace
}  // namespace gatehouse::testing
