#include "server/engine/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/model/model_directory.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json Gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_positions", 32},
          {"n_embd", 24},         {"n_layer", 2},      {"n_head", 3}};
}

json NeoX() {
  return {{"model_type", "gpt_neox"}, {"vocab_size", 100},        {"max_position_embeddings", 32}, {"hidden_size", 48},
          {"num_hidden_layers", 2},   {"num_attention_heads", 3}, {"intermediate_size", 64}};
}

json Llama() {
  return {{"model_type", "llama"},  {"vocab_size", 100},        {"max_position_embeddings", 32}, {"hidden_size", 24},
          {"num_hidden_layers", 2}, {"num_attention_heads", 3}, {"intermediate_size", 64}};
}

json With(json config, const json& more) {
  config.update(more);
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config, const std::string& generation = "") {
  return ParseModelConfig(config.dump(), generation);
}

// The configuration; the test fails where it is refused.
ModelConfig Parsed(const json& config, const std::string& generation = "") {
  const absl::StatusOr<ModelConfig> parsed = Parse(config, generation);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ModelConfig();
}

void ExpectRefused(const json& config, const std::string& named) {
  EXPECT_THAT(Parse(config), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(named))) << config;
}

TEST(Config, FillsInTheDefaultsOfGpt2) {
  const ModelConfig config = Parsed(Gpt2());
  EXPECT_EQ(config.architecture, Architecture::kGpt2);
  EXPECT_EQ(config.d_mlp, 96);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.context, 32);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.norm, NormKind::kLayerNorm);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_TRUE(config.tied_output);
  EXPECT_TRUE(config.scale_attention);
  EXPECT_FALSE(config.scale_attention_by_layer);
  EXPECT_FALSE(config.parallel_residual);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_EQ(config.rotary_dims, 0);
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
  EXPECT_FALSE(config.bos_token_id.has_value());
}

TEST(Config, FillsInTheDefaultsOfGptNeoX) {
  const ModelConfig config = Parsed(NeoX());
  EXPECT_EQ(config.architecture, Architecture::kGptNeoX);
  EXPECT_EQ(config.activation, Activation::kGeluErf);
  EXPECT_TRUE(config.parallel_residual);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.tied_output);
  EXPECT_EQ(config.rotary_dims, 4);  // a quarter of 16
  EXPECT_THAT(config.inv_freq, ElementsAre(1.0f, 0.01f));
}

TEST(Config, FillsInTheDefaultsOfLlama) {
  const ModelConfig config = Parsed(Llama());
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.activation, Activation::kSilu);
  EXPECT_EQ(config.norm, NormKind::kRmsNorm);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_TRUE(config.gated_mlp);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_FALSE(config.tied_output);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.rotary_dims, 8);
}

TEST(Config, ReadsTheFlagsThatChangeAttention) {
  EXPECT_DOUBLE_EQ(Parsed(Gpt2()).AttentionScale(3), 1 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(Parsed(With(Gpt2(), {{"scale_attn_weights", false}})).AttentionScale(3), 1.0);
  EXPECT_DOUBLE_EQ(Parsed(With(Gpt2(), {{"scale_attn_by_inverse_layer_idx", true}})).AttentionScale(3),
                   1 / std::sqrt(8.0) / 4);
  EXPECT_FALSE(Parsed(With(NeoX(), {{"use_parallel_residual", false}})).parallel_residual);
}

TEST(Config, KnowsTheActivationsByTheirNames) {
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    EXPECT_EQ(Parsed(With(Gpt2(), {{"activation_function", name}})).activation, Activation::kGeluTanh) << name;
  }
  EXPECT_EQ(Parsed(With(Gpt2(), {{"activation_function", "gelu"}})).activation, Activation::kGeluErf);
  EXPECT_EQ(Parsed(With(Gpt2(), {{"activation_function", "relu"}})).activation, Activation::kRelu);
  EXPECT_EQ(Parsed(With(Llama(), {{"hidden_act", "swish"}})).activation, Activation::kSilu);
  ExpectRefused(With(Llama(), {{"hidden_act", "relu6"}}), "hidden_act \"relu6\"");
  ExpectRefused(With(Gpt2(), {{"activation_function", 1}}), "activation_function");
}

// The frequencies are those of the turned dimensions, not of the head.
TEST(Config, TakesRotaryFrequenciesOverTheTurnedDimensions) {
  const ModelConfig config = Parsed(With(NeoX(), {{"hidden_size", 96}, {"rotary_pct", 0.3}}));
  EXPECT_EQ(config.rotary_dims, 10);  // int(32 · 0.3) = 9, and the last pair's partner
  ASSERT_EQ(config.inv_freq.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(config.inv_freq[i], std::pow(10000.0, -2.0 * i / 9), 1e-7) << i;
  }
}

TEST(Config, ReadsTheRotaryKeysOfBothGenerations) {
  const std::vector<float> expected = Parsed(With(NeoX(), {{"rotary_emb_base", 50000}})).inv_freq;
  EXPECT_NEAR(expected[1], std::pow(50000.0, -0.5), 1e-7);
  EXPECT_EQ(Parsed(With(NeoX(), {{"rope_parameters", {{"rope_theta", 50000}, {"rope_type", "default"}}}})).inv_freq,
            expected);
  // GPT-NeoX has no top-level rope_theta: transformers ignores it.
  EXPECT_EQ(Parsed(With(NeoX(), {{"rope_theta", 50000}})).inv_freq, Parsed(NeoX()).inv_freq);
  EXPECT_EQ(Parsed(With(NeoX(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})).rotary_dims, 8);
  EXPECT_EQ(Parsed(With(Llama(), {{"rope_theta", 50000}})).inv_freq,
            Parsed(With(Llama(), {{"rope_parameters", {{"rope_theta", 50000}}}})).inv_freq);
  EXPECT_NE(Parsed(With(Llama(), {{"rope_theta", 50000}})).inv_freq, Parsed(Llama()).inv_freq);
}

TEST(Config, ScalesRotaryFrequenciesOrRefusesTo) {
  const std::vector<float> plain = Parsed(Llama()).inv_freq;
  EXPECT_EQ(Parsed(With(Llama(), {{"rope_scaling", nullptr}})).inv_freq, plain);
  EXPECT_EQ(Parsed(With(Llama(), {{"rope_scaling", json::object()}})).inv_freq, plain);

  const std::vector<float> linear =
      Parsed(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})).inv_freq;
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(linear[i], plain[i] / 2);

  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 16}};
  const std::vector<float> scaled = Parsed(With(Llama(), {{"rope_scaling", llama3}})).inv_freq;
  // Wavelengths 6.3, 63, 628, 6283 against 16 / 4 and 16 / 1: the first lies between.
  const double smooth = (16 / (2 * M_PI) - 1) / 3;
  EXPECT_NEAR(scaled[0], (1 - smooth) / 8 + smooth, 1e-6);
  for (int i : {1, 2, 3}) EXPECT_EQ(scaled[i], plain[i] / 8) << i;

  ExpectRefused(With(Llama(), {{"rope_scaling", {{"rope_type", "zzz"}}}}), "\"zzz\"");
  ExpectRefused(With(Llama(), {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}), "\"dynamic\"");
  ExpectRefused(With(NeoX(), {{"rope_scaling", {{"type", "yarn"}, {"factor", 2}}}}), "\"yarn\"");
  ExpectRefused(With(Llama(), {{"rope_scaling", {{"type", "linear"}}}}), "factor");
  for (const json& factor : {json(0), json(-1), json("2"), json(true)}) {
    ExpectRefused(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", factor}}}}), "factor");
  }
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    json broken = llama3;
    broken.erase(key);
    ExpectRefused(With(Llama(), {{"rope_scaling", broken}}), key);
  }
  ExpectRefused(With(Llama(), {{"rope_scaling", With(llama3, {{"high_freq_factor", 1}})}}), "high_freq_factor");
}

TEST(Config, RefusesRotarySettingsThatItWouldHaveToIgnore) {
  ExpectRefused(With(Llama(), {{"rope_scaling", {{"factor", 8}}}}), "factor");
  ExpectRefused(With(Llama(), {{"rope_parameters", {{"mrope_section", {1, 2}}}}}), "mrope_section");
  ExpectRefused(With(Llama(), {{"rope_scaling", "linear"}}), "rope_scaling");
  ExpectRefused(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                               {"rope_parameters", {{"rope_type", "default"}}}}),
                "rope_scaling");
  ExpectRefused(With(Llama(), {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
  for (const json& part : {json(0), json(1.5), json(-0.25), json("x")}) {
    ExpectRefused(With(NeoX(), {{"rotary_pct", part}}), "rotary_pct");
  }
  for (const json& theta : {json(0), json(-1), json("x")}) {
    ExpectRefused(With(Llama(), {{"rope_theta", theta}}), "rope_theta");
  }
}

TEST(Config, ReadsAHeadDimensionOfItsOwn) {
  EXPECT_EQ(Parsed(With(Llama(), {{"head_dim", 16}})).head_dim, 16);
  EXPECT_EQ(Parsed(With(Llama(), {{"head_dim", 4}})).rotary_dims, 4);
  EXPECT_EQ(Parsed(With(Llama(), {{"head_dim", nullptr}})).head_dim, 8);
  EXPECT_EQ(Parsed(With(Llama(), {{"hidden_size", 28}, {"head_dim", 8}})).head_dim, 8);
  ExpectRefused(With(Llama(), {{"hidden_size", 28}}), "hidden_size");
  ExpectRefused(With(Llama(), {{"head_dim", 7}}), "head_dim");
  ExpectRefused(With(NeoX(), {{"head_dim", 8}}), "head_dim");
}

TEST(Config, ReadsGroupedQueries) {
  EXPECT_EQ(Parsed(With(Llama(), {{"num_key_value_heads", 1}})).kv_heads, 1);
  EXPECT_EQ(Parsed(With(Llama(), {{"num_key_value_heads", nullptr}})).kv_heads, 3);
  ExpectRefused(With(Llama(), {{"num_key_value_heads", 2}}), "num_key_value_heads");
  ExpectRefused(With(Llama(), {{"num_key_value_heads", 6}}), "num_key_value_heads");
  ExpectRefused(With(Llama(), {{"num_key_value_heads", 0}}), "num_key_value_heads");
}

TEST(Config, TakesTheEndOfTextIdsFromTheGenerationConfigFirst) {
  const json config = With(Llama(), {{"eos_token_id", 2}, {"bos_token_id", 1}});
  EXPECT_THAT(Parsed(config).eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parsed(config, R"({"eos_token_id": [2, 7]})").eos_token_ids, ElementsAre(2, 7));
  EXPECT_THAT(Parsed(config, R"({"eos_token_id": 7})").eos_token_ids, ElementsAre(7));
  EXPECT_THAT(Parsed(config, R"({"eos_token_id": null})").eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parsed(config, "{}").eos_token_ids, ElementsAre(2));
  EXPECT_EQ(Parsed(config, R"({"bos_token_id": 5})").bos_token_id, 5);
  EXPECT_EQ(Parsed(config).bos_token_id, 1);
  EXPECT_THAT(Parsed(With(Llama(), {{"eos_token_id", {3, 4}}})).eos_token_ids, ElementsAre(3, 4));
  // Small models often keep the ids of large ones, which cannot occur.
  EXPECT_THAT(Parsed(With(Llama(), {{"eos_token_id", {3, 50256}}})).eos_token_ids, ElementsAre(3));
  for (const json& id : {json(-1), json("x"), json(1.5), json(true), json::array({nullptr})}) {
    ExpectRefused(With(Llama(), {{"eos_token_id", id}}), "eos_token_id");
  }
  EXPECT_THAT(Parse(config, "nonsense"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("generation_config.json")));
}

TEST(Config, NamesAMissingOrWrongSize) {
  for (const auto& [config, other] : {std::pair(Gpt2(), 0), std::pair(NeoX(), 0), std::pair(Llama(), 0)}) {
    for (const auto& [key, value] : config.items()) {
      if (!value.is_number()) continue;
      json missing = config;
      missing.erase(key);
      ExpectRefused(missing, key);
      for (const json& wrong : {json(0), json(-1), json(1.5), json("8"), json(nullptr), json(true), json::array(),
                                json(uint64_t{1} << 63), json(int64_t{1} << 40)}) {
        ExpectRefused(With(config, {{key, wrong}}), key);
      }
    }
  }
  ExpectRefused(With(Gpt2(), {{"n_head", 5}}), "n_embd");
  ExpectRefused(With(Gpt2(), {{"n_inner", 0}}), "n_inner");
  EXPECT_EQ(Parsed(With(Gpt2(), {{"n_inner", nullptr}})).d_mlp, 96);
}

TEST(Config, RefusesAFlagOfAnotherType) {
  for (const auto& [config, key] :
       {std::pair(Gpt2(), "scale_attn_weights"), std::pair(Gpt2(), "tie_word_embeddings"),
        std::pair(Gpt2(), "scale_attn_by_inverse_layer_idx"), std::pair(NeoX(), "use_parallel_residual"),
        std::pair(NeoX(), "attention_bias"), std::pair(Llama(), "mlp_bias"), std::pair(Llama(), "attention_bias")}) {
    for (const json& wrong : {json(1), json("false"), json::array()}) ExpectRefused(With(config, {{key, wrong}}), key);
  }
  ExpectRefused(With(Gpt2(), {{"layer_norm_epsilon", "1e-5"}}), "layer_norm_epsilon");
  ExpectRefused(With(Gpt2(), {{"layer_norm_epsilon", -1}}), "layer_norm_epsilon");
}

TEST(Config, NamesWhatItDoesNotImplement) {
  ExpectRefused(With(Gpt2(), {{"model_type", "gptj"}}), "\"gptj\"");
  // What no key can mend is said first.
  ExpectRefused(With(Llama(), {{"model_type", "mistral"}, {"sliding_window", 4096}}), "\"mistral\"");
  json untyped = Gpt2();
  untyped.erase("model_type");
  ExpectRefused(untyped, "model_type");
  ExpectRefused(With(Llama(), {{"quantization_config", {{"bits", 4}}}}), "quantization_config");
  ExpectRefused(With(Llama(), {{"rope_interleaved", true}}), "rope_interleaved");
  ExpectRefused(With(Llama(), {{"sliding_window", 4096}}), "sliding_window");
  ExpectRefused(With(Gpt2(), {{"add_cross_attention", true}}), "add_cross_attention");
  EXPECT_TRUE(Parse(With(Llama(), {{"rope_interleaved", false}, {"sliding_window", nullptr}})).ok());
  EXPECT_TRUE(Parse(With(Gpt2(), {{"pruned_heads", json::object()}, {"add_cross_attention", false}})).ok());
}

TEST(Config, SurvivesTextThatIsNoConfiguration) {
  const std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"),
        std::string("{\"model_type\": \"gpt2\"}\0", 24), deep, "{\"a\": " + deep,
        std::string("{\"vocab_size\": 1e999}"), std::string("\xff\xfe"), std::string("{\"a\": \"\xff\"}")}) {
    EXPECT_THAT(ParseModelConfig(text, ""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("config.json")));
  }
  // Brackets within strings do not nest.
  EXPECT_TRUE(Parse(With(Gpt2(), {{"note", std::string(1000, '[') + "\"\\"}})).ok());
}

TEST(Config, NamesTheFileThatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(LoadModelConfig(folder.path()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  EXPECT_THAT(LoadModelConfig(folder.File("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  folder.Write("config.json", Gpt2().dump());
  EXPECT_TRUE(LoadModelConfig(folder.path()).ok());
  folder.Write("generation_config.json", "{\"eos_token_id\": [4]}");
  EXPECT_THAT(LoadModelConfig(folder.path())->eos_token_ids, ElementsAre(4));
  folder.Write("config.json", "{}");
  EXPECT_THAT(LoadModelConfig(folder.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(folder.path()), HasSubstr("model_type"))));
}

}  // namespace
}  // namespace gatehouse::testing
