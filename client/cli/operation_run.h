#ifndef GATEHOUSE_CLIENT_CLI_OPERATION_RUN_H_
#define GATEHOUSE_CLIENT_CLI_OPERATION_RUN_H_

#include <istream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/session.h"

namespace gatehouse::cli {

// What the commands that start operations have in common.

// Uploads the file, or what `in` holds for "-", with a bar on a terminal.  The session's further
// calls go to the replica that has it.
absl::StatusOr<v1::UploadCorpusResponse> UploadFile(Session& session, const std::string& path, std::istream& in);

// Watches to the end, with a bar.  The first Ctrl-C asks the server to cancel, and goes on
// watching.
struct Watched {
  v1::Operation operation;
  bool interrupted = false;
};
absl::StatusOr<Watched> WatchToEnd(Session& session, const std::string& name);

// Says how to find an operation again that goes on at the server.
void PrintDetached(Session& session, const std::string& name);

// Says that an operation ended otherwise than well; `what` it was.
void PrintFailure(Session& session, const v1::Operation& operation, const std::string& what);

// Whether a file can be written at `path` (see FetchToFile); leaves nothing there.
absl::Status CheckWritable(const std::string& path);

// Fetches one of the operation's files, the result where `file` is empty, to `path`; returns
// its size.  To a file of another name first, so that a broken fetch leaves no half file.
absl::StatusOr<uint64_t> FetchToFile(Session& session, const std::string& name, const std::string& file,
                                     const std::string& path);
// Writes the text to `path` the same way.
absl::Status WriteToFile(const std::string& path, const std::string& text);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_OPERATION_RUN_H_
