#ifndef GATEHOUSE_SERVER_TOKENIZER_NFC_H_
#define GATEHOUSE_SERVER_TOKENIZER_NFC_H_

#include <string>
#include <string_view>

namespace gatehouse {

// `text` in Unicode's normalization form C, of Unicode 9.0.0: the reference's NFC has
// that version, so later combining marks are left where they stand.  A system library
// would have another version on each distribution, and with it other tokens.
// REQUIRES: text is well-formed UTF-8.
std::string ToNfc(std::string_view text);

// True if `text` surely equals its NFC, found without building it.
bool IsPlainlyNfc(std::string_view text);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_NFC_H_
