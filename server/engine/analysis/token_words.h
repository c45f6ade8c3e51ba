#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_WORDS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_WORDS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/experiment.h"

namespace gatehouse {

// Tokens as reports show them to people.

// The text of a token with line ends and tabs written out; its id in brackets where texts are
// not known.
std::string TokenWord(const TokenTextFn& text, int32_t token);

// Made of line ends only.
bool IsNewline(const TokenTextFn& text, int32_t token);

// Tokens with how often each occurs, the commonest first, the smaller id first among equals.
std::vector<std::pair<int32_t, int64_t>> Commonest(std::span<const int32_t> tokens, size_t most);

// "‹ the› 12, ‹,› 3".
std::string ShowCommonest(const TokenTextFn& text, std::span<const int32_t> tokens, size_t most);

// Token `at` of a block, marked, with some of what is before and after it: "came in. ‹The› door".
std::string ShowInContext(const TokenTextFn& text, std::span<const int32_t> block, size_t at);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_WORDS_H_
