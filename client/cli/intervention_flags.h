#ifndef GATEHOUSE_CLIENT_CLI_INTERVENTION_FLAGS_H_
#define GATEHOUSE_CLIENT_CLI_INTERVENTION_FLAGS_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <istream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/json.h"
#include "gatehouse/v1/interventions.pb.h"

namespace gatehouse::cli {

// CHANGE:LAYERS[:NEURONS][@POSITIONS], such as "zero:L3:n12,55", "scale=0.5:L3:n7",
// "set=1.2:L3:n7", "mean:L2-4:n7", "mlp-zero:L3", "path=linear:L2-4@0-9".  InvalidArgument,
// quoting the part that is wrong.
absl::StatusOr<v1::Intervention> ParseIntervention(const std::string& text);

// SITE[:LAYERS][@POSITIONS], such as "mlp-out:L3,5" or "residual-post".
absl::StatusOr<v1::ActivationCapture> ParseCapture(const std::string& text);

// A JSON list of interventions in protobuf's JSON form, as docs/client.md says.
absl::StatusOr<std::vector<v1::Intervention>> ParseInterventions(const std::string& json);

// "mlp-out".
std::string SiteName(v1::ActivationSite site);

// --intervene, --interventions, --capture and --capture-out.
class InterventionFlags {
 public:
  void Add(CLI::App& app);

  // Adds what they say to a request.
  template <typename Request>
  void Build(Request& request, std::istream& in) const {
    for (v1::Intervention& intervention : Interventions(in)) *request.add_interventions() = std::move(intervention);
    for (v1::ActivationCapture& capture : Captures()) *request.add_captures() = std::move(capture);
  }

  bool captures() const { return !captures_.empty(); }
  const std::string& capture_out() const { return capture_out_; }

 private:
  std::vector<v1::Intervention> Interventions(std::istream& in) const;
  std::vector<v1::ActivationCapture> Captures() const;

  std::vector<std::string> interventions_, captures_;
  std::string file_, capture_out_;
};

// Collects the activations that a call sends, and saves them where the flags say, as a .npz
// file: for each site and layer the arrays SITE.LAYER, float32 [positions, width], and
// SITE.LAYER.positions, int64.
class Captured {
 public:
  // `flags` outlives this.
  explicit Captured(const InterventionFlags& flags) : flags_(flags) {}

  // Hears the call's activations; empty where none were asked for.  Valid while this lives.
  std::function<bool(const v1::Activations&)> listener();
  // Writes the file, where the call ended well; how all of it ended.
  absl::Status Finish(absl::Status call) const;
  // The file's path, and of each array site, layer, positions and width.
  Json Describe() const;

 private:
  struct Array {
    int64_t width = 0;
    std::vector<int64_t> positions;
    std::vector<float> values;
  };

  absl::Status Add(const v1::Activations& activations);

  const InterventionFlags& flags_;
  absl::Status status_;
  std::map<std::pair<v1::ActivationSite, uint32_t>, Array> arrays_;
};

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_INTERVENTION_FLAGS_H_
