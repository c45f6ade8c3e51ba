#include "tests/support/planted_tokenizer.h"

#include <nlohmann/json.hpp>

namespace gatehouse::testing {
namespace {

constexpr int kLetters = 26, kPairs = kLetters * kLetters;

std::string Utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// How byte-level BPE spells a byte: itself where it prints, else the next code point from
// 256 on.
std::string Spelling(int byte) {
  const auto prints = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  if (prints(byte)) return Utf8(byte);
  int code_point = 256;
  for (int b = 0; b < byte; ++b) code_point += prints(b) ? 0 : 1;
  return Utf8(code_point);
}

std::string Letter(int index) { return std::string(1, static_cast<char>('a' + index)); }

// A word's letters.
std::string Letters(int32_t token) {
  const int index = token - kFirstWord;
  const int pair = index % kPairs;
  const std::string two = Letter(pair / kLetters) + Letter(pair % kLetters);
  return index < kPairs ? two : two + Letter(pair % kLetters / 2);
}

}  // namespace

std::string PlantedWord(int32_t token) {
  std::string word(1, ' ');
  word.append(Letters(token));
  return word;
}

std::string PlantedTokenizerJson() {
  const std::string blank = Spelling(' ');
  nlohmann::json vocab, merges = nlohmann::json::array();
  vocab["<|endoftext|>"] = 0;
  for (int byte = 0; byte < 256; ++byte) vocab[Spelling(byte)] = 1 + byte;
  for (int letter = 0; letter < kLetters; ++letter) {
    vocab[blank + Letter(letter)] = 257 + letter;
    merges.push_back({blank, Letter(letter)});
  }
  for (int32_t token = kFirstWord; token < kPlantedVocabulary; ++token) {
    const std::string letters = Letters(token);
    vocab[blank + letters] = token;
    merges.push_back({blank + letters.substr(0, letters.size() - 1), letters.substr(letters.size() - 1)});
  }
  const nlohmann::json end = {
      {"id", 0},         {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json model = {{"type", "BPE"},
                                {"dropout", nullptr},
                                {"unk_token", nullptr},
                                {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr},
                                {"fuse_unk", false},
                                {"byte_fallback", false},
                                {"ignore_merges", false},
                                {"vocab", vocab},
                                {"merges", merges}};
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"truncation", nullptr},
                                    {"padding", nullptr},
                                    {"added_tokens", nlohmann::json::array({end})},
                                    {"normalizer", nullptr},
                                    {"pre_tokenizer", byte_level},
                                    {"post_processor", nullptr},
                                    {"decoder", byte_level},
                                    {"model", model}};
  return tokenizer.dump();
}

}  // namespace gatehouse::testing
