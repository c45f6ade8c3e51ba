#ifndef GATEHOUSE_TESTS_CLIENT_CLI_ANSWERS_H_
#define GATEHOUSE_TESTS_CLIENT_CLI_ANSWERS_H_

#include <string>
#include <vector>

#include "gatehouse/v1/analysis.pb.h"
#include "tests/client/fake_server.h"

// What the fake server of the program's tests answers.
namespace gatehouse::cli {

using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;

// The text of the token of that number.
std::string Word(size_t index);

// A model of two layers whose second layer has consensus neurons.
v1::DescribeModelResponse Description();
// Two operating points, and a ladder in layer 1.
v1::DescribeModelResponse WithOperatingPoints();

// One token's records, with a score for each layer; NaN is a layer that went linear.
v1::TokenInsight Insight(uint32_t position, std::vector<float> scores);

// Lists and describes that model, and analyses six tokens.
FakeHandlers Handlers();

// Answers with three tokens: plain, a cut character, and one with control characters.
FakeStatus GenerateThree(const v1::GenerateRequest& request, const testing::FakeStream<v1::GenerateResponse>& stream);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_TESTS_CLIENT_CLI_ANSWERS_H_
