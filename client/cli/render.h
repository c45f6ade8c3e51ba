#ifndef GATEHOUSE_CLIENT_CLI_RENDER_H_
#define GATEHOUSE_CLIENT_CLI_RENDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/session.h"
#include "client/cli/terminal.h"
#include "gatehouse/v1/analysis.pb.h"
#include "gatehouse/v1/models.pb.h"

namespace gatehouse::cli {

// "1 token", "2 tokens".
std::string Count(uint64_t count, const std::string& noun);
// With that many digits after the point; "–" where it is not finite.
std::string Fixed(double value, int digits);
// 0.375 → "37.5%".
std::string Percent(double share, int digits);
// 7123456 → "7.1M".
std::string HumanCount(uint64_t count);
// 7123456 → "6.8 MiB".
std::string HumanBytes(uint64_t bytes);
// Parts joined by " · ".
std::string Joined(const std::vector<std::string>& parts);

v1::NonlinearityPercentiles PercentilesOf(const v1::LayerCalibration& layer);

// The model's calibration of that name; empty where it is not the active one, which is the
// only one described.
v1::CalibrationDescription FetchCalibration(Session& session, const std::string& model, const std::string& calibration);

// What it knows of its layers.
std::vector<v1::LayerCalibration> FetchLayers(Session& session, const std::string& model,
                                              const std::string& calibration);

// Heat strips of what was recorded, layers × tokens.
void PrintRecords(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens,
                  const std::vector<v1::LayerCalibration>& layers);

// One row a layer; `layer_numbers` names them.
void PrintNonlinearityMap(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens,
                          const std::vector<v1::NonlinearityPercentiles>& layers);

// Layers that have consensus neurons, one row each; `sizes` is how many, by layer.
void PrintConsensusMap(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens,
                       const std::vector<int>& sizes);

// What share of the work went where: "37.5% linear", "10.0% ladder", "31.2% of the MLP work
// saved".
std::vector<std::string> RoutingParts(const v1::RoutingSummary& routing);

// The server's remarks, on standard error.
void PrintNotes(const Terminal& terminal, const v1::RoutingSummary& routing);

// The layers of a calibration, one row each.
void PrintLayerTable(const Terminal& terminal, const std::vector<v1::LayerCalibration>& layers, int indent);

// Its operating points, one row each, below a heading; nothing where it has none.
void PrintOperatingPoints(const Terminal& terminal, const v1::CalibrationDescription& calibration);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_RENDER_H_
