// Damaged files: whatever the bytes, the answer is a Status.  Run it with sanitizers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "server/base/files.h"
#include "server/engine/model/config.h"
#include "server/engine/model/safetensors.h"
#include "server/engine/model/safetensors_header.h"
#include "server/engine/model/weights.h"
#include "tests/engine/model/model_directory.h"

namespace gatehouse::testing {
namespace {

// Changes a few of the first `reach` bytes: flips bits, swaps in signs that JSON cares
// about, drops or doubles stretches.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Mutate(std::string bytes, size_t reach) {
    const size_t changes = 1 + Below(6);
    for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
      const size_t at = Below(std::min(reach, bytes.size()));
      switch (Below(5)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
          break;
        case 1:
          bytes[at] = "{}[]\",:0-9eE.\\ntf\0\xff"[Below(19)];
          break;
        case 2:
          bytes.erase(at, 1 + Below(8));
          break;
        case 3:
          bytes.insert(at, bytes.substr(at, 1 + Below(16)));
          break;
        default:
          bytes[at] = static_cast<char>('0' + Below(10));
      }
    }
    return bytes;
  }

  size_t Below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random_); }

 private:
  std::mt19937_64 random_;
};

TEST(DamagedFiles, SafetensorsNeverCrashTheReader) {
  const std::string whole = ReadFile(FixturePath("gpt2") + "/model.safetensors").value();
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  const TemporaryFolder folder;
  Mutator mutator(1);
  int opened = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = mutator.Mutate(whole, 8 + length);
    if (mutator.Below(8) == 0) bytes.resize(mutator.Below(bytes.size()));
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder.Write("m", bytes));
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
      continue;
    }
    ++opened;
    for (const auto& [name, entry] : file->entries()) {
      const absl::StatusOr<at::Tensor> tensor = file->Read(name);
      EXPECT_TRUE(!tensor.ok() || tensor->nbytes() == entry.bytes) << name;
    }
  }
  EXPECT_GT(opened, 10);  // names and the like may change
}

TEST(DamagedFiles, HeadersNeverCrashTheParser) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  ASSERT_TRUE(ParseSafetensorsHeader(header).ok());
  Mutator mutator(2);
  for (int round = 0; round < 100000; ++round) {
    const absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(mutator.Mutate(header, header.size()));
    EXPECT_TRUE(parsed.ok() || absl::IsInvalidArgument(parsed.status())) << parsed.status();
  }
}

TEST(DamagedFiles, ConfigurationsNeverCrashTheReader) {
  Mutator mutator(3);
  for (const char* fixture : {"gpt2", "neox-old-config", "llama-old-config", "llama-llama3"}) {
    const std::string whole = ReadFile(FixturePath(fixture) + "/config.json").value();
    const std::string generation = R"({"eos_token_id": [2, 7], "bos_token_id": 1})";
    for (int round = 0; round < 3000; ++round) {
      const absl::StatusOr<ModelConfig> config =
          ParseModelConfig(mutator.Mutate(whole, whole.size()), mutator.Mutate(generation, generation.size()));
      if (!config.ok()) {
        EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << config.status();
      } else {
        EXPECT_EQ(config->inv_freq.size() * 2, static_cast<size_t>(config->rotary_dims));
      }
    }
  }
}

TEST(DamagedFiles, DirectoriesNeverCrashTheLoader) {
  Mutator mutator(4);
  for (const char* fixture : {"gpt2", "neox", "llama"}) {
    ModelDirectory directory(fixture);
    directory.Shard();
    const std::string config = ReadFile(directory.folder().File("config.json")).value();
    const std::string index = ReadFile(directory.folder().File("model.safetensors.index.json")).value();
    for (int round = 0; round < 150; ++round) {
      directory.folder().Write("config.json", mutator.Below(2) == 0 ? config : mutator.Mutate(config, config.size()));
      directory.folder().Write("model.safetensors.index.json", mutator.Mutate(index, index.size()));
      const absl::StatusOr<ModelWeights> model = directory.Load();
      EXPECT_TRUE(!model.ok() || model->layers.size() == static_cast<size_t>(model->config.layers));
    }
  }
}

}  // namespace
}  // namespace gatehouse::testing
