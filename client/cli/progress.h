#ifndef GATEHOUSE_CLIENT_CLI_PROGRESS_H_
#define GATEHOUSE_CLIENT_CLI_PROGRESS_H_

#include <string>

#include "absl/time/time.h"
#include "client/cli/terminal.h"

namespace gatehouse::cli {

// Progress of something long, on standard error: a bar with the stage and the time left
// on a terminal, elsewhere one line a stage.
class ProgressBar {
 public:
  explicit ProgressBar(const Terminal& terminal) : terminal_(terminal) {}
  ~ProgressBar() { Clear(); }

  // `fraction` in [0, 1].
  void Update(double fraction, const std::string& stage, absl::Time now);
  // Removes the bar, so that other text can follow.
  void Clear();

 private:
  std::string TimeLeft(double fraction, absl::Time now) const;

  const Terminal& terminal_;
  bool shown_ = false;
  std::string last_stage_;
  absl::Time started_ = absl::InfinitePast();
  double started_at_ = 0;  // the fraction then
};

// "0:42", "1:03:20".
std::string FormatClock(absl::Duration duration);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_PROGRESS_H_
