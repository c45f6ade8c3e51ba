#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/base/strings.h"
#include "tests/support/fake_engine.h"

namespace gatehouse::testing {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", std::string(value.status().message()).c_str());
  std::abort();
}

// GPT-2's printable stand-in for a byte, in UTF-8.
std::string StandIn(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace

std::unique_ptr<Tokenizer> FakeTokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[StandIn(byte)] = byte;
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       {{{"id", 256},
         {"content", "<|endoftext|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"vocab", vocab},
        {"merges", nlohmann::json::array()}}},
  };
  return OrDie(Tokenizer::Parse(json.dump()));
}

ServedModel MakeFakeModel(const std::string& name, FakeEngineOptions options, FakeEngine** engine,
                          const std::string& calibrations_folder) {
  ServedModel model;
  model.name = name;
  auto fake = std::make_unique<FakeEngine>(std::move(options));
  if (engine != nullptr) *engine = fake.get();
  model.engine = std::move(fake);
  model.tokenizer = FakeTokenizer();
  model.calibrations = OrDie(CalibrationStore::Create(*model.engine, name, {}, calibrations_folder));
  return model;
}

}  // namespace gatehouse::testing
