#include "client/cli/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace gatehouse::cli {
namespace {

constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};

std::string Bar(double fraction, int width) {
  const int eighths = static_cast<int>(std::lround(fraction * width * 8));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[static_cast<size_t>(eighths % 8)];
  return PadRight(bar, width);
}

}  // namespace

std::string FormatClock(absl::Duration duration) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1))));
  char text[32];
  if (seconds < 3600) {
    std::snprintf(text, sizeof(text), "%d:%02d", static_cast<int>(seconds / 60), static_cast<int>(seconds % 60));
  } else {
    std::snprintf(text, sizeof(text), "%d:%02d:%02d", static_cast<int>(seconds / 3600),
                  static_cast<int>(seconds / 60 % 60), static_cast<int>(seconds % 60));
  }
  return text;
}

std::string ProgressBar::TimeLeft(double fraction, absl::Time now) const {
  const double done = fraction - started_at_;
  const absl::Duration elapsed = now - started_;
  if (!(done > 0.01) || elapsed < absl::Seconds(1)) return "";
  return FormatClock(elapsed * ((1 - fraction) / done)) + " left";
}

void ProgressBar::Update(double fraction, const std::string& stage, absl::Time now) {
  fraction = std::clamp(std::isnan(fraction) ? 0.0 : fraction, 0.0, 1.0);
  if (started_ == absl::InfinitePast()) {
    started_ = now;
    started_at_ = fraction;
  }
  const std::string percent = std::to_string(static_cast<int>(fraction * 100)) + "%";
  if (!terminal_.err_is_terminal) {
    if (stage == last_stage_) return;
    last_stage_ = stage;
    terminal_.err << PadLeft(percent, 4) << "  " << OneLine(stage) << "\n" << std::flush;
    return;
  }
  const std::string left = TimeLeft(fraction, now);
  const int bar_width = std::clamp(terminal_.width / 3, 8, 32);
  const int room = terminal_.width - bar_width - 10 - (left.empty() ? 0 : DisplayWidth(left) + 2);
  terminal_.err << "\r\x1b[K" << terminal_.PaintError({.foreground = 71, .background = 236}, Bar(fraction, bar_width))
                << " " << PadLeft(percent, 4) << "  " << Truncate(OneLine(stage), std::max(room, 8))
                << terminal_.PaintError(kDim, left.empty() ? "" : "  " + left) << std::flush;
  shown_ = true;
}

void ProgressBar::Clear() {
  if (shown_) terminal_.err << "\r\x1b[K" << std::flush;
  shown_ = false;
}

}  // namespace gatehouse::cli
