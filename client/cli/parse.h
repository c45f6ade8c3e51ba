#ifndef GATEHOUSE_CLIENT_CLI_PARSE_H_
#define GATEHOUSE_CLIENT_CLI_PARSE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse::cli {

// The small languages of flag values.  Each fails as InvalidArgument, quoting the part
// that is wrong.  Bounds that depend on the model are the server's to check.

// InvalidArgument: "'TEXT' is not WANTED".
absl::Status NotWanted(std::string_view text, const char* wanted);

// What stands between the separators; one part, perhaps empty, more than there are of them.
std::vector<std::string_view> Split(std::string_view text, char separator);

// "3,5-8": layers and ranges of layers, both ends included.  Ascending, each once.
absl::StatusOr<std::vector<uint32_t>> ParseLayers(const std::string& text);

// "5,3,6": layers in that order.
absl::StatusOr<std::vector<uint32_t>> ParseOrder(const std::string& text);

// "12": decimal, in [0, most].
absl::StatusOr<uint64_t> ParseWholeNumber(const std::string& text, uint64_t most);

// "6,2": whole numbers in that order.
absl::StatusOr<std::vector<uint32_t>> ParseCounts(const std::string& text);

// "128", or "64-256": from one end to the other, in [1, 16777216].
absl::StatusOr<std::pair<uint32_t, uint32_t>> ParseLengths(const std::string& text);

// "0.1,0.5".
absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& text);

// "1%", or "0.01".
absl::StatusOr<double> ParseShare(const std::string& text);

// "5,6,7".
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const std::string& text);

// "5=0.7", or "3,5-8=0.7": one entry a layer.
absl::StatusOr<std::vector<std::pair<uint32_t, float>>> ParseLayerThreshold(const std::string& text);

// "50256=-1.5" or "50256=-inf".
absl::StatusOr<std::pair<int32_t, float>> ParseLogitBias(const std::string& text);

// "routing,nonlinearity", of the words allowed.
absl::StatusOr<std::vector<std::string>> ParseWords(const std::string& text, const std::vector<std::string>& allowed);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_PARSE_H_
