#ifndef GATEHOUSE_SERVER_RPC_ACTIVATION_BATCHES_H_
#define GATEHOUSE_SERVER_RPC_ACTIVATION_BATCHES_H_

#include <algorithm>
#include <cstddef>

#include "server/rpc/stream_writer.h"
#include "server/rpc/translate.h"
#include "server/rpc/wire.h"

namespace gatehouse {

// Sends captured activations in messages under kMaxMessageBytes.  REQUIRES: one position's
// numbers fit a message, as those of any model do.
template <typename Message>
void SendActivations(StreamWriter& writer, const Activations& activations) {
  constexpr size_t kMessageOverhead = 64;  // what is around the numbers
  constexpr size_t kPositionBytes = 5;     // a varint
  const size_t each = static_cast<size_t>(activations.width) * sizeof(float) + kPositionBytes;
  const size_t most = std::max<size_t>(1, (kMaxMessageBytes - kMessageOverhead) / each);
  for (size_t begin = 0; begin < activations.positions.size(); begin += most) {
    Message message;
    *message.mutable_activations() = ToProto(activations, begin, std::min(most, activations.positions.size() - begin));
    writer.Send(message);
  }
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_ACTIVATION_BATCHES_H_
