#ifndef GATEHOUSE_TESTS_SUPPORT_PLANTED_TOKENIZER_H_
#define GATEHOUSE_TESTS_SUPPORT_PLANTED_TOKENIZER_H_

#include <cstdint>
#include <string>

namespace gatehouse::testing {

// The tokenizer of the planted model: byte-level BPE of 1,500 tokens in which each word of
// the corpus, a blank and two or three letters, is one token.
//   0            <|endoftext|>
//   1..256       the bytes
//   257..282     a blank and a letter
//   283..1499    the words
inline constexpr int kPlantedVocabulary = 1500;
inline constexpr int32_t kFirstWord = 283;

std::string PlantedTokenizerJson();

// The text of a word's token, such as " qz".  REQUIRES: token in [kFirstWord, 1499].
std::string PlantedWord(int32_t token);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_SUPPORT_PLANTED_TOKENIZER_H_
