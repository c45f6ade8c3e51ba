#ifndef GATEHOUSE_SERVER_SERVING_TEXT_ASSEMBLER_H_
#define GATEHOUSE_SERVER_SERVING_TEXT_ASSEMBLER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/serving/utf8_stream.h"

namespace gatehouse {

// Makes the text of a generation from the bytes of its tokens: whole characters, up to
// the first stop string.  Text leaves as soon as it can no longer be part of a stop
// string: what is held back is the longest end of the text that is a proper beginning
// of one.  Linear in the text for each stop string.  Not thread-safe.
//
// The stop string that completes first ends the text, whatever the order they were
// given in; of several that complete with the same byte, the one that began first.
class TextAssembler {
 public:
  // REQUIRES: each stop string is UTF-8 and not empty.
  explicit TextAssembler(const std::vector<std::string>& stops);

  // The text that became certain with `bytes`.  REQUIRES: not stopped().
  std::string Append(std::string_view bytes);
  // What was held back; the last call, also after a stop (then nothing is left).
  std::string Finish();

  bool stopped() const { return matched_ >= 0; }
  // Empty unless stopped().
  std::string_view matched_stop() const;

 private:
  // A Knuth-Morris-Pratt matcher for one stop string.
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // border[i]: longest proper border of text[0, i]
    size_t matched = 0;          // longest beginning of `text` that the text so far ends with
  };

  // Takes up whole characters and returns those that can leave.
  std::string Match(std::string_view characters);

  Utf8Stream characters_;
  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;  // index into stops_
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_TEXT_ASSEMBLER_H_
