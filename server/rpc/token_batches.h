#ifndef GATEHOUSE_SERVER_RPC_TOKEN_BATCHES_H_
#define GATEHOUSE_SERVER_RPC_TOKEN_BATCHES_H_

#include <cstddef>

#include "server/rpc/stream_writer.h"
#include "server/rpc/wire.h"

namespace gatehouse {

// Sends `tokens` in order, in as few messages as stay under kMaxMessageBytes.
// `list(message)` returns the repeated field of the batch inside a new Message, with
// whatever else the message is to hold set; `translate` makes an entry of a token.
template <typename Message, typename Tokens, typename List, typename Translate>
void SendTokenBatches(StreamWriter& writer, const Tokens& tokens, List list, Translate translate) {
  constexpr size_t kEntryOverhead = 8;     // tag and length
  constexpr size_t kMessageOverhead = 64;  // what is around the entries
  Message message;
  size_t bytes = kMessageOverhead;
  bool any = false;
  for (const auto& token : tokens) {
    auto entry = translate(token);
    const size_t size = entry.ByteSizeLong() + kEntryOverhead;
    if (any && bytes + size > kMaxMessageBytes) {
      writer.Send(message);
      message.Clear();
      bytes = kMessageOverhead;
    }
    *list(message)->Add() = std::move(entry);
    bytes += size;
    any = true;
  }
  if (any) writer.Send(message);
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_TOKEN_BATCHES_H_
