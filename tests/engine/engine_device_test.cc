// The engine as its users see it, on the device that GATEHOUSE_TEST_DEVICE names (default:
// the CPU).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/engine/engine.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string Environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

fs::path Source() { return Environment("GATEHOUSE_SOURCE_DIR", "."); }

json ReadJson(const fs::path& path) { return json::parse(std::ifstream(path)); }

std::unique_ptr<Engine> Load(const fs::path& directory, const std::string& dtype = "float32") {
  EngineOptions options;
  options.device = Environment("GATEHOUSE_TEST_DEVICE", "cpu");
  options.dtype = dtype;
  options.kv_bytes = int64_t{1} << 26;
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine(directory.string(), options);
  EXPECT_TRUE(engine.ok()) << directory << ": " << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

RowResult StepOne(Engine& engine, const Row& row) {
  RowResult result = engine.Step({&row, 1}).value().front();
  EXPECT_TRUE(result.status.ok()) << result.status;
  return result;
}

// Log-probabilities of ids[1..], in pieces of `chunk` positions.
std::vector<float> Score(Engine& engine, SequenceId sequence, const std::vector<int32_t>& ids, size_t chunk) {
  const RoutingPolicy full = RoutingPolicy::Full(engine.info());
  std::vector<int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(-1);
  std::vector<float> logprobs;
  for (size_t first = 0; first < ids.size(); first += chunk) {
    Row row;
    row.sequence = sequence;
    row.tokens = std::span(ids).subspan(first, std::min(chunk, ids.size() - first));
    row.targets = std::span<const int32_t>(targets).subspan(first, row.tokens.size());
    row.policy = &full;
    const RowResult result = StepOne(engine, row);
    logprobs.insert(logprobs.end(), result.target_logprobs.begin(), result.target_logprobs.end());
  }
  logprobs.pop_back();
  return logprobs;
}

std::vector<float> Score(Engine& engine, const std::vector<int32_t>& ids, size_t chunk) {
  const SequenceId sequence = engine.Open(static_cast<int>(ids.size())).value();
  std::vector<float> logprobs = Score(engine, sequence, ids, chunk);
  engine.Close(sequence);
  return logprobs;
}

std::vector<int32_t> Generate(Engine& engine, const std::vector<int32_t>& prompt, int count, float temperature = 0,
                              uint64_t seed = 0) {
  const RoutingPolicy full = RoutingPolicy::Full(engine.info());
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  SamplingState sampling = SamplingState::Create(params, engine.info().vocab_size).value();
  const SequenceId sequence = engine.Open(static_cast<int>(prompt.size()) + count).value();
  std::vector<int32_t> next = prompt, out;
  for (int i = 0; i < count; ++i) {
    Row row;
    row.sequence = sequence;
    row.tokens = next;
    row.policy = &full;
    row.sampling = &sampling;
    out.push_back(StepOne(engine, row).sampled.value().token.id);
    next = {out.back()};
  }
  engine.Close(sequence);
  return out;
}

double Largest(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::isnan(a[i]) ? INFINITY : std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

double Mean(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i]) - b.at(i));
  return sum / static_cast<double>(a.size());
}

TEST(EngineDevice, EqualsTransformersOnTheFixturesOfEveryArchitecture) {
  int models = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(Source() / "tests/data/models")) {
    const std::unique_ptr<Engine> engine = Load(entry.path());
    ASSERT_NE(engine, nullptr);
    for (const json& sequence : ReadJson(entry.path() / "expected.json")["sequences"]) {
      const auto ids = sequence["ids"].get<std::vector<int32_t>>();
      const auto expected = sequence["logprobs"].get<std::vector<float>>();
      for (const size_t chunk : {size_t{1}, size_t{16}, size_t{256}}) {
        EXPECT_LE(Largest(Score(*engine, ids, chunk), expected), 1e-4) << entry.path() << ", chunk " << chunk;
      }
    }
    ++models;
  }
  EXPECT_GE(models, 3);
}

TEST(EngineDevice, ReproducesTheEmbeddedModelsReferences) {
  for (const char* name : {"novella-gpt2-7m", "novella-neox-4m"}) {
    const fs::path directory = Source() / "models" / name;
    if (!fs::exists(directory / "expected.json")) GTEST_SKIP() << directory << " is not there";
    const json reference = ReadJson(directory / "expected.json");
    const auto ids = reference["ids"].get<std::vector<int32_t>>();
    const auto expected = reference["logprobs"].get<std::vector<float>>();
    const std::unique_ptr<Engine> engine = Load(directory);
    ASSERT_NE(engine, nullptr);
    EXPECT_LE(Largest(Score(*engine, ids, 256), expected), 1e-4) << name;
    EXPECT_EQ(Generate(*engine, ids, 32), reference["greedy_32"].get<std::vector<int32_t>>()) << name;
    const std::unique_ptr<Engine> bfloat16 = Load(directory, "bfloat16");
    ASSERT_NE(bfloat16, nullptr);
    EXPECT_LT(Mean(Score(*bfloat16, ids, 256), expected), 0.02) << name;
  }
}

// The logits that ONNX Runtime GenAI publishes for a tiny GPT-2.  The engine returns no
// logits: differences of log-probabilities are differences of logits.
TEST(EngineDevice, ReproducesPublishedLogitsAndGreedySequences) {
  const fs::path directory = Source() / "../shared/data/fixtures/tiny-random-gpt2-onnx";
  if (!fs::exists(directory)) GTEST_SKIP() << directory << " is not there";
  const json published = ReadJson(directory / "expected.json");
  const std::unique_ptr<Engine> engine = Load(directory);
  ASSERT_NE(engine, nullptr);
  const RoutingPolicy full = RoutingPolicy::Full(engine->info());
  for (size_t text = 0; text < published["input_ids"].size(); ++text) {
    const auto ids = published["input_ids"][text].get<std::vector<int32_t>>();
    const auto greedy = published["greedy_max_length_10"][text].get<std::vector<int32_t>>();
    EXPECT_EQ(Generate(*engine, ids, static_cast<int>(greedy.size() - ids.size())),
              std::vector<int32_t>(greedy.begin() + static_cast<int64_t>(ids.size()), greedy.end()));

    std::vector<std::vector<float>> logprobs;  // [every 200th id][position]
    for (int32_t target = 0; target < engine->info().vocab_size; target += 200) {
      const SequenceId sequence = engine->Open(static_cast<int>(ids.size())).value();
      const std::vector<int32_t> targets(ids.size(), target);
      Row row;
      row.sequence = sequence;
      row.tokens = ids;
      row.targets = targets;
      row.policy = &full;
      logprobs.push_back(StepOne(*engine, row).target_logprobs);
      engine->Close(sequence);
    }
    const json& logits = published["prompt_logits_every_200th"][text];
    for (size_t position = 0; position < ids.size(); ++position) {
      for (size_t i = 1; i < logprobs.size(); ++i) {
        const double expected = logits[position][i].get<double>() - logits[position][0].get<double>();
        EXPECT_NEAR(logprobs[i][position] - logprobs[0][position], expected, 1e-3);
      }
    }
  }
}

std::vector<int32_t> SomeText(const Engine& engine, int count) {
  std::vector<int32_t> ids(count);
  for (int i = 0; i < count; ++i) ids[i] = (i * 37 + 11) % engine.info().vocab_size;
  return ids;
}

TEST(EngineDevice, ScoresTheSameAfterAnythingElseRan) {
  const std::unique_ptr<Engine> engine = Load(Source() / "tests/data/models/gpt2");
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> text = SomeText(*engine, 40);
  const std::vector<float> cold = Score(*engine, text, 256);
  EXPECT_EQ(Score(*engine, text, 256), cold);
  const std::vector<int32_t> prompt(text.begin(), text.begin() + 20);
  Generate(*engine, prompt, 15);
  EXPECT_EQ(Score(*engine, text, 256), cold);

  // Scoring on from a cached prefix equals a cold run.
  const SequenceId sequence = engine->Open(40).value();
  Score(*engine, sequence, prompt, 256);
  const std::vector<int32_t> rest(text.begin() + 20, text.end());
  const std::vector<float> warm = Score(*engine, sequence, rest, 256);
  EXPECT_LE(Largest(warm, std::vector<float>(cold.begin() + 20, cold.end())), 1e-5);
}

TEST(EngineDevice, RepeatsASeededTextAndDiffersForAnotherSeed) {
  const std::unique_ptr<Engine> engine = Load(Source() / "tests/data/models/neox");
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> prompt = SomeText(*engine, 5);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    EXPECT_EQ(Generate(*engine, prompt, 25, 1, seed), Generate(*engine, prompt, 25, 1, seed));
  }
  EXPECT_NE(Generate(*engine, prompt, 25, 1, 0), Generate(*engine, prompt, 25, 1, 1));
}

TEST(EngineDevice, RunsOutOfRoomAndServesAgainWhenSomeIsGivenBack) {
  const std::unique_ptr<Engine> engine = Load(Source() / "tests/data/models/gpt2");
  ASSERT_NE(engine, nullptr);
  const int context = engine->info().context;
  std::vector<SequenceId> sequences;
  absl::StatusOr<SequenceId> next = engine->Open(context);
  for (; next.ok(); next = engine->Open(context)) sequences.push_back(*next);
  EXPECT_THAT(next, testing::StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("pages")));
  const KvUsage full = engine->kv_usage();
  EXPECT_LT((full.pages_total - full.pages_used) * full.page_tokens, context);
  engine->Close(sequences.back());
  sequences.pop_back();
  next = engine->Open(context);
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(Score(*engine, *next, SomeText(*engine, 40), 256).empty());
}

TEST(EngineDevice, DescribesItsModel) {
  const std::unique_ptr<Engine> engine = Load(Source() / "tests/data/models/llama");
  ASSERT_NE(engine, nullptr);
  const ModelInfo& info = engine->info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.dtype, "float32");
  EXPECT_EQ(info.device, Environment("GATEHOUSE_TEST_DEVICE", "cpu"));
  EXPECT_GT(info.parameters, 0);
  EXPECT_EQ(info.weight_bytes, 4 * info.parameters);
  EXPECT_EQ(info.fingerprint.substr(0, 7), "sha256:");
  EXPECT_EQ(engine->kv_usage().pages_used, 0);
}

TEST(LoadEngine, NamesWhatItCannotDo) {
  const std::string directory = (Source() / "tests/data/models/gpt2").string();
  const auto load = [&](auto change) {
    EngineOptions options;
    options.device = "cpu";
    change(options);
    return LoadEngine(directory, options).status();
  };
  using Code = absl::StatusCode;
  using ::testing::HasSubstr;
  using testing::StatusIs;
  EXPECT_TRUE(load([](EngineOptions&) {}).ok());
  EXPECT_THAT(load([](EngineOptions& o) { o.device = "gpu"; }), StatusIs(Code::kInvalidArgument, HasSubstr("device")));
  EXPECT_THAT(load([](EngineOptions& o) { o.dtype = "float16"; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("dtype")));
  EXPECT_THAT(load([](EngineOptions& o) { o.kernels = "abacus"; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("abacus")));
  EXPECT_THAT(load([](EngineOptions& o) { o.kv_bytes = 100; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("kv_bytes")));
  EXPECT_THAT(LoadEngine("no/such/folder", {}).status(), StatusIs(Code::kNotFound, HasSubstr("no/such/folder")));
  if (Environment("GATEHOUSE_TEST_DEVICE", "cpu") == "cpu") {
    EXPECT_THAT(load([](EngineOptions& o) { o.device = "cuda"; }),
                StatusIs(Code::kFailedPrecondition, HasSubstr("cuda")));
  }
}

}  // namespace
}  // namespace gatehouse
