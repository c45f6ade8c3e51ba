// Lets scripts ask the tokenizer: one JSON value a line in, one a line out.
//
//   tokenizer_probe encode TOKENIZER_JSON   {"text": ..., "plain_text": false, "add_special_tokens": true}
//                                           -> {"ids": [...]} or {"error": "..."}
//   tokenizer_probe nfc                     "text" -> "text"
//   tokenizer_probe classes                 (nothing) -> one string with a hexadecimal digit for each code
//                                           point: CharClass, + 4 for \w, + 8 for what Digits splits
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include "nlohmann/json.hpp"
#include "server/tokenizer/nfc.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

using Json = nlohmann::json;

int ForEachLine(const std::function<Json(const Json&)>& answer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (request.is_discarded()) {
      std::cerr << "not JSON: " << line << "\n";
      return 1;
    }
    std::cout << answer(request).dump() << "\n";
  }
  return 0;
}

int Encode(const std::string& path) {
  const auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  return ForEachLine([&](const Json& request) -> Json {
    Tokenizer::EncodeOptions options;
    options.plain_text = request.value("plain_text", options.plain_text);
    options.add_special_tokens = request.value("add_special_tokens", options.add_special_tokens);
    const auto ids = (*tokenizer)->Encode(request.value("text", std::string()), options);
    if (!ids.ok()) return {{"error", std::string(ids.status().message())}};
    return {{"ids", *ids}};
  });
}

int PrintClasses() {
  std::string digits;
  for (char32_t c = 0; c < 0x110000; ++c) {
    digits += "0123456789ABCDEF"[static_cast<int>(ClassOf(c)) + (IsWordChar(c) ? 4 : 0) + (IsNumeric(c) ? 8 : 0)];
  }
  std::cout << Json(digits).dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "encode" && argc == 3) return gatehouse::Encode(argv[2]);
  if (command == "nfc") {
    return gatehouse::ForEachLine(
        [](const gatehouse::Json& text) { return gatehouse::ToNfc(text.get_ref<const std::string&>()); });
  }
  if (command == "classes") return gatehouse::PrintClasses();
  std::cerr << "usage: tokenizer_probe encode TOKENIZER_JSON | nfc | classes\n";
  return 2;
}
