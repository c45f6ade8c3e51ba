#ifndef GATEHOUSE_TESTS_TOKENIZER_TEST_TOKENIZERS_H_
#define GATEHOUSE_TESTS_TOKENIZER_TEST_TOKENIZERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse::testing {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// A file of the repository, which must be there.
std::string ReadRepositoryFile(const std::string& path);

// A tokenizer.json whose vocabulary is the tokens given, with ids in their order, and
// whose other fields are those of GPT-2's.
Json MakeTokenizerJson(const std::vector<std::string>& tokens,
                       const std::vector<std::pair<std::string, std::string>>& merges = {});

// An entry of added_tokens, all flags false.
Json AddedTokenJson(int id, const std::string& content, bool special = false);

// Fails the test, and returns null, if the file is refused.
std::unique_ptr<Tokenizer> Parse(const Json& file);

// Fails the test if the text is refused.
Ids Encode(const Tokenizer& tokenizer, std::string_view text, const Tokenizer::EncodeOptions& options = {});

// Text that holds UTF-8, also where the compiler would take char8_t.
inline std::string Utf8(const char8_t* text) { return reinterpret_cast<const char*>(text); }

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_TOKENIZER_TEST_TOKENIZERS_H_
