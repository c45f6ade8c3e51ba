#include "tests/tokenizer/test_tokenizers.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "server/base/files.h"

namespace gatehouse::testing {

std::string ReadRepositoryFile(const std::string& path) {
  const char* root = std::getenv("GATEHOUSE_SOURCE_DIR");
  auto bytes = ReadFile(std::string(root == nullptr ? "." : root) + "/" + path);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *bytes : std::string();
}

Json MakeTokenizerJson(const std::vector<std::string>& tokens,
                       const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  Json file = {{"version", "1.0"},      {"truncation", nullptr},        {"padding", nullptr},
               {"normalizer", nullptr}, {"pre_tokenizer", byte_level},  {"post_processor", nullptr},
               {"decoder", byte_level}, {"added_tokens", Json::array()}};
  file["model"] = {{"type", "BPE"},  {"dropout", nullptr},     {"unk_token", nullptr},  {"fuse_unk", false},
                   {"vocab", vocab}, {"byte_fallback", false}, {"ignore_merges", false}};
  file["model"]["merges"] = Json::array();
  for (const auto& [left, right] : merges) file["model"]["merges"].push_back({left, right});
  return file;
}

Json AddedTokenJson(int id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

std::unique_ptr<Tokenizer> Parse(const Json& file) {
  auto tokenizer = Tokenizer::Parse(file.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text, const Tokenizer::EncodeOptions& options) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : Ids{};
}

}  // namespace gatehouse::testing
