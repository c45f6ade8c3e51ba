#ifndef GATEHOUSE_SERVER_SERVING_CALL_H_
#define GATEHOUSE_SERVER_SERVING_CALL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/serving/requests.h"

namespace gatehouse {

// Where the events of one call go.  One thread at a time calls it; none of these may
// block.  OnEnd is called exactly once, last, whatever happens; the sink is kept alive
// until then.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // False while the reader is too slow for more: the call pauses, and ends with
  // ResourceExhausted when that lasts longer than the scheduler's stall limit.  Call
  // Call::Resume when it turns true again.
  virtual bool CanAccept() const = 0;
  virtual void OnEnd(const absl::Status& status) = 0;
};

class GenerationSink : public CallSink {
 public:
  virtual void OnStart(const GenerationStart& start) = 0;  // admitted
  virtual void OnPrompt(std::vector<TokenInsight> tokens) = 0;
  virtual void OnToken(GeneratedToken token) = 0;
  // Only where the call captures some.
  virtual void OnActivations(Activations) {}
  virtual void OnSummary(GenerationSummary summary) = 0;
};

class ScoreSink : public CallSink {
 public:
  virtual void OnTokens(std::vector<ScoredToken> tokens) = 0;
  // Only where the call captures some.
  virtual void OnActivations(Activations) {}
  virtual void OnSummary(ScoreSummary summary) = 0;
};

class AnalysisSink : public CallSink {
 public:
  // The calibration the records refer to.
  virtual void OnStart(std::shared_ptr<const Calibration> calibration) = 0;
  virtual void OnTokens(InsightTokens tokens) = 0;
  virtual void OnSummary(AnalysisSummary summary) = 0;
};

// A call in flight.  Thread-safe; dropping it does not cancel.
class Call {
 public:
  virtual ~Call() = default;
  // The call ends as Cancelled within one step.  Any number of times, at any time.
  virtual void Cancel() = 0;
  // The sink can accept again.
  virtual void Resume() = 0;
};

struct CallOptions {
  absl::Time deadline = absl::InfiniteFuture();
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_CALL_H_
