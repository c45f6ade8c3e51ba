#include "tests/support/fake_engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

namespace gatehouse::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kStart = 0x9E3779B97F4A7C15;

// The caller broke the façade's rules.
[[noreturn]] void Broken(std::string_view rule) {
  std::fprintf(stderr, "FakeEngine: the caller broke a rule: %s\n", std::string(rule).c_str());
  std::abort();
}

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a ^ (b + kStart + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// In [0, 1).
float Uniform(uint64_t a, uint64_t b) { return static_cast<float>(Mix(a, b) >> 40) / static_cast<float>(1 << 24); }

void SizeCounts(int layers, RowResult& result) {
  for (auto* counts : {&result.linear_tokens, &result.ladder_tokens, &result.skip_tokens, &result.gated_tokens,
                       &result.quorum_tokens}) {
    counts->assign(layers, 0);
  }
}

// fired: which consensus neurons do.
MlpPath PathOf(const RoutingPolicy& policy, RoutingPolicy::Rule rule, int layer, float p, uint64_t fired) {
  const OperatingLayer& thresholds = policy.thresholds(layer);
  switch (rule) {
    case RoutingPolicy::Rule::kFull:
      return MlpPath::kFull;
    case RoutingPolicy::Rule::kLinear:
      return MlpPath::kLinear;
    case RoutingPolicy::Rule::kLadder:
      return MlpPath::kLadder;
    case RoutingPolicy::Rule::kQuorum:
      return std::popcount(fired) >= policy.quorum() ? policy.quorum_path() : MlpPath::kFull;
    case RoutingPolicy::Rule::kGated:
      break;
  }
  if (p > thresholds.linear_threshold) return MlpPath::kLinear;
  return p > thresholds.ladder_threshold ? MlpPath::kLadder : MlpPath::kFull;
}

bool Holds(const std::vector<int>& positions, int position) {
  return positions.empty() || std::binary_search(positions.begin(), positions.end(), position);
}

// The path that a row's interventions and captures give one of its positions.
std::optional<MlpPath> ForcedPath(const Row& row, int layer, int position) {
  std::optional<MlpPath> forced;
  for (const CaptureSite& capture : row.captures) {
    if (capture.layer != layer || capture.site != ActivationSite::kNeurons) continue;
    if (Holds(capture.positions, position)) forced = MlpPath::kFull;
  }
  if (row.interventions == nullptr) return forced;
  for (const Intervention* const intervention : row.interventions->at(layer)) {
    if (!Holds(intervention->positions, position)) continue;
    if (const auto* force = std::get_if<ForcePath>(&intervention->change)) forced = force->path;
    if (std::holds_alternative<ZeroMlp>(intervention->change)) forced = MlpPath::kSkip;
    if (std::holds_alternative<NeuronChange>(intervention->change)) forced = MlpPath::kFull;
  }
  return forced;
}

RowResult FailedRow(absl::Status status) {
  RowResult result;
  result.status = std::move(status);
  return result;
}

}  // namespace

std::vector<int32_t> Ids(int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 3);
  return ids;
}

FakeEngine::FakeEngine(FakeEngineOptions options) : options_(std::move(options)) {
  info_.architecture = "gpt2";
  info_.layers = options_.layers;
  info_.d_model = 8;
  info_.d_mlp = 32;
  info_.heads = info_.kv_heads = 2;
  info_.head_dim = 4;
  info_.vocab_size = options_.vocab_size;
  info_.context = options_.context;
  info_.parameters = 1000;
  info_.weight_bytes = 4000;
  info_.eos_token_ids = options_.eos_token_ids;
  info_.fingerprint = options_.fingerprint;
  info_.dtype = "float32";
  info_.device = "cpu";
  info_.kernels = "fake";
}

int64_t FakeEngine::PagesFor(int tokens) const { return (tokens + options_.page_tokens - 1) / options_.page_tokens; }

absl::StatusOr<SequenceId> FakeEngine::Open(int max_tokens) {
  const std::lock_guard lock(mutex_);
  if (!open_error_.ok()) return open_error_;
  if (max_tokens < 1 || max_tokens > options_.context || PagesFor(max_tokens) > options_.kv_pages) {
    return absl::InvalidArgumentError("the sequence can never fit");
  }
  if (pages_used_ + PagesFor(max_tokens) > options_.kv_pages) return absl::ResourceExhaustedError("no free pages");
  pages_used_ += PagesFor(max_tokens);
  const SequenceId id{next_sequence_++};
  sequences_[id].max_tokens = max_tokens;
  return id;
}

void FakeEngine::Close(SequenceId sequence) {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) Broken("Close of a sequence that is not open");
  pages_used_ -= PagesFor(found->second.max_tokens);
  sequences_.erase(found);
}

absl::Status FakeEngine::Rollback(SequenceId sequence, int length) {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) Broken("Rollback of a sequence that is not open");
  if (length < 0 || length > static_cast<int>(found->second.states.size())) {
    return absl::InvalidArgumentError("rollback to a length the sequence does not have");
  }
  found->second.states.resize(length);
  return absl::OkStatus();
}

int FakeEngine::Length(SequenceId sequence) const {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) Broken("Length of a sequence that is not open");
  return static_cast<int>(found->second.states.size());
}

KvUsage FakeEngine::kv_usage() const {
  const std::lock_guard lock(mutex_);
  return {.pages_total = options_.kv_pages,
          .pages_used = pages_used_,
          .page_tokens = options_.page_tokens,
          .page_bytes = 1024};
}

absl::StatusOr<std::vector<RowResult>> FakeEngine::Step(std::span<const Row> rows) {
  {
    const std::lock_guard lock(mutex_);
    if (rows.empty()) Broken("Step without rows");
    std::set<SequenceId> seen;
    std::vector<SeenRow> step;
    for (const Row& row : rows) {
      const auto found = sequences_.find(row.sequence);
      if (found == sequences_.end()) Broken("a row of a sequence that is not open");
      if (!seen.insert(row.sequence).second) Broken("two rows of one sequence");
      if (row.tokens.empty()) Broken("a row without tokens");
      if (row.policy == nullptr) Broken("a row without a policy");
      if (!row.targets.empty() && row.targets.size() != row.tokens.size()) Broken("targets of another length");
      step.push_back({row.sequence, static_cast<int>(found->second.states.size()),
                      std::vector<int32_t>(row.tokens.begin(), row.tokens.end()), row.sampling != nullptr,
                      row.records});
    }
    steps_.push_back(std::move(step));
  }
  WaitWhileBlocked(rows);
  {
    const std::lock_guard lock(mutex_);
    if (!next_step_error_.ok()) return std::exchange(next_step_error_, absl::OkStatus());
  }
  std::vector<RowResult> results;
  for (const Row& row : rows) results.push_back(RunRow(row));
  return results;
}

void FakeEngine::WaitWhileBlocked(std::span<const Row> rows) {
  std::unique_lock lock(mutex_);
  if (!steps_blocked_) return;
  step_waits_ = true;
  waiting_rows_ = rows;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !steps_blocked_ || steps_to_release_ > 0; });
  if (steps_blocked_) --steps_to_release_;
  step_waits_ = false;
  waiting_rows_ = {};
}

RowResult FakeEngine::RunRow(const Row& row) {
  RowResult result;
  SizeCounts(options_.layers, result);
  const std::lock_guard lock(mutex_);
  Sequence& sequence = sequences_.at(row.sequence);
  std::vector<uint64_t> states = sequence.states;
  if (states.size() + row.tokens.size() > static_cast<size_t>(sequence.max_tokens)) {
    result.status = absl::OutOfRangeError("the sequence would outgrow its room");
    return result;
  }
  if (row.records.any()) {
    result.records.tokens = static_cast<int>(row.tokens.size());
    result.records.layers = options_.layers;
  }
  if (!row.targets.empty()) result.target_logprobs.assign(row.tokens.size(), kNan);
  if (!row.targets.empty() && row.top_alternatives > 0) result.target_top.resize(row.tokens.size());
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    if (row.tokens[i] < 0 || row.tokens[i] >= options_.vocab_size) Broken("a token outside the vocabulary");
    if (row.cancelled != nullptr && row.cancelled->load()) {
      return FailedRow(absl::CancelledError("stopped"));
    }
    if (nan_token_ == row.tokens[i]) {
      return FailedRow(absl::InternalError("the model produced NaN"));
    }
    const uint64_t before = states.empty() ? kStart : states.back();
    states.push_back(Advance(before, static_cast<int>(states.size()), row.tokens[i], row, result));
    if (row.targets.empty() || row.targets[i] < 0) continue;
    const std::vector<float> logprobs = LogprobsOf(states.back());
    result.target_logprobs[i] = logprobs[row.targets[i]];
    if (row.top_alternatives > 0) result.target_top[i] = Top(logprobs, row.top_alternatives);
  }
  if (row.sampling != nullptr) result.sampled = Sample(row, states.back(), static_cast<int>(states.size()));
  sequence.states = std::move(states);
  return result;
}

uint64_t FakeEngine::Advance(uint64_t state, int position, int32_t token, const Row& row, RowResult& result) const {
  uint64_t next = Mix(state, static_cast<uint64_t>(token));
  const int changed_position = position + row.position_offset;
  for (int layer = 0; layer < options_.layers; ++layer) {
    const RoutingPolicy& policy = *row.policy;
    const float p = gate_.value_or(Uniform(next, 1000 + layer));
    const std::optional<MlpPath> forced = ForcedPath(row, layer, changed_position);
    const RoutingPolicy::Rule rule =
        forced || position < policy.sink_positions() ? RoutingPolicy::Rule::kFull : policy.rule(layer);
    const uint64_t fired = Mix(next, 5000 + layer) & 7;
    const MlpPath path = forced.value_or(PathOf(policy, rule, layer, p, fired));
    const bool gated = rule == RoutingPolicy::Rule::kGated, quorum = rule == RoutingPolicy::Rule::kQuorum;
    result.gated_tokens[layer] += gated ? 1 : 0;
    result.quorum_tokens[layer] += quorum ? 1 : 0;
    next = ChangeAndCapture(next, layer, changed_position, row, result);
    if (path == MlpPath::kLinear) {
      ++result.linear_tokens[layer];
      next = Mix(next, 2000 + layer);
    } else if (path == MlpPath::kLadder) {
      ++result.ladder_tokens[layer];
      next = Mix(next, 7000 + layer);
    } else if (path == MlpPath::kSkip) {
      ++result.skip_tokens[layer];
      next = Mix(next, 8000 + layer);
    }
    const bool full = path == MlpPath::kFull;
    TokenRecords& records = result.records;
    if (row.records.routing) {
      records.path.push_back(path);
      records.gate_margin.push_back(gated ? p - policy.thresholds(layer).linear_threshold : kNan);
    }
    if (row.records.nonlinearity) records.nonlinearity.push_back(full ? 10 * Uniform(next, 3000 + layer) : kNan);
    if (row.records.nonlinearity || row.records.consensus) {
      records.output_norm.push_back(10 * Uniform(next, 4000 + layer));
    }
    if (row.records.gate) records.gate_probability.push_back(p);
    if (row.records.consensus) {
      const bool known = full || quorum;
      records.level.push_back(known ? static_cast<int16_t>(std::popcount(fired)) : -1);
      records.fired.push_back(known ? fired : 0);
      records.exceptions.push_back(full ? Mix(next, 6000 + layer) & 1 : 0);
    }
  }
  return next;
}

uint64_t FakeEngine::ChangeAndCapture(uint64_t state, int layer, int position, const Row& row,
                                      RowResult& result) const {
  if (row.interventions != nullptr) {
    for (const Intervention* const intervention : row.interventions->at(layer)) {
      const bool changes = std::holds_alternative<NeuronChange>(intervention->change) ||
                           std::holds_alternative<Patch>(intervention->change);
      if (changes && Holds(intervention->positions, position)) state = Mix(state, 9000 + layer);
    }
  }
  result.captured.resize(row.captures.size());
  for (size_t i = 0; i < row.captures.size(); ++i) {
    const CaptureSite& capture = row.captures[i];
    if (capture.layer != layer || !Holds(capture.positions, position)) continue;
    result.captured[i].positions.push_back(position);
    for (int k = 0; k < SiteWidth(capture.site, info_); ++k) {
      result.captured[i].values.push_back(Uniform(state, 10000 + 100 * static_cast<int>(capture.site) + k));
    }
  }
  return state;
}

std::vector<float> FakeEngine::LogprobsOf(uint64_t state) const {
  std::vector<float> logits(options_.vocab_size);
  for (int id = 0; id < options_.vocab_size; ++id) logits[id] = 6 * Uniform(state, static_cast<uint64_t>(id));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (float& logit : logits) logit -= static_cast<float>(std::log(sum));
  return logits;
}

std::vector<float> FakeEngine::Logprobs(std::span<const int32_t> tokens) const {
  RowResult unused;
  SizeCounts(options_.layers, unused);
  const RoutingPolicy full = RoutingPolicy::Full(info_);
  Row row;
  row.policy = &full;
  uint64_t state = kStart;
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < tokens.size(); ++i) state = Advance(state, static_cast<int>(i), tokens[i], row, unused);
  return LogprobsOf(state);
}

std::vector<TokenLogprob> FakeEngine::Top(const std::vector<float>& logprobs, int count) const {
  std::vector<int32_t> order(logprobs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logprobs[a] > logprobs[b]; });
  std::vector<TokenLogprob> top;
  for (int i = 0; i < count; ++i) top.push_back({order[i], logprobs[order[i]]});
  return top;
}

SampledToken FakeEngine::Sample(const Row& row, uint64_t state, int position) const {
  const std::vector<float> logprobs = LogprobsOf(state);
  int32_t id = Top(logprobs, 1)[0].id;
  if (row.sampling->params().temperature > 0) {
    double left = row.sampling->NextUniform();
    for (id = 0; id + 1 < options_.vocab_size; ++id) {
      left -= std::exp(static_cast<double>(logprobs[id]));
      if (left < 0) break;
    }
  }
  if (const auto set = token_at_.find(position); set != token_at_.end()) id = set->second;
  return {.token = {id, logprobs[id]}, .top = Top(logprobs, row.top_alternatives)};
}

void FakeEngine::BlockSteps() {
  const std::lock_guard lock(mutex_);
  steps_blocked_ = true;
  steps_to_release_ = 0;
}

void FakeEngine::ReleaseSteps() {
  const std::lock_guard lock(mutex_);
  steps_blocked_ = false;
  changed_.notify_all();
}

void FakeEngine::ReleaseOneStep() {
  const std::lock_guard lock(mutex_);
  ++steps_to_release_;
  changed_.notify_all();
}

void FakeEngine::WaitUntilBlocked() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return step_waits_ && steps_to_release_ == 0; });
}

void FakeEngine::WaitUntilARowIsStopped() {
  const auto stopped = [](const Row& row) { return row.cancelled != nullptr && row.cancelled->load(); };
  std::unique_lock lock(mutex_);
  while (std::none_of(waiting_rows_.begin(), waiting_rows_.end(), stopped)) {
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void FakeEngine::FailNextStep(absl::Status status) {
  const std::lock_guard lock(mutex_);
  next_step_error_ = std::move(status);
}

void FakeEngine::FailOpens(absl::Status status) {
  const std::lock_guard lock(mutex_);
  open_error_ = std::move(status);
}

void FakeEngine::ProduceNanAt(int32_t token) {
  const std::lock_guard lock(mutex_);
  nan_token_ = token;
}

void FakeEngine::SetTokenAt(int position, int32_t token) {
  const std::lock_guard lock(mutex_);
  token_at_[position] = token;
}

void FakeEngine::SetGate(float p) {
  const std::lock_guard lock(mutex_);
  gate_ = p;
}

std::vector<std::vector<FakeEngine::SeenRow>> FakeEngine::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

int FakeEngine::open_sequences() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(sequences_.size());
}

}  // namespace gatehouse::testing
