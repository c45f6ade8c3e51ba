#include "client/cli/intervention_flags.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/client/fake_server.h"
#include "tests/client/run_program.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::gatehouse::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::Intervention Parsed(const std::string& text) {
  const auto intervention = ParseIntervention(text);
  EXPECT_TRUE(intervention.ok()) << text << ": " << intervention.status();
  return intervention.ok() ? *intervention : v1::Intervention();
}

TEST(InterventionSpec, NamesChangeLayersNeuronsAndPositions) {
  const v1::Intervention zero = Parsed("zero:L3,5-6:n12,55-57@0-2,9");
  EXPECT_THAT(zero.layers(), ElementsAre(3, 5, 6));
  EXPECT_THAT(zero.neurons().neurons(), ElementsAre(12, 55, 56, 57));
  EXPECT_THAT(zero.positions(), ElementsAre(0, 1, 2, 9));
  EXPECT_EQ(zero.neurons().value_case(), v1::NeuronChange::kScale);
  EXPECT_EQ(zero.neurons().scale(), 0);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(zero, Parsed("zero:3,5-6:12,55-57@0-2,9")));
  EXPECT_EQ(Parsed("scale=-0.5:L3:n1").neurons().scale(), -0.5f);
  EXPECT_EQ(Parsed("set=1.25:L3:n1").neurons().set(), 1.25f);
  EXPECT_TRUE(Parsed("mean:L3:n1").neurons().has_mean());
  EXPECT_TRUE(Parsed("mlp-zero:L3").has_zero_mlp());
  EXPECT_THAT(Parsed("mlp-zero:L3").positions(), IsEmpty());
  EXPECT_EQ(Parsed("path=skip:L0-2@4").force_path(), v1::MLP_PATH_SKIP);
  EXPECT_EQ(Parsed("path=ladder:L1").force_path(), v1::MLP_PATH_LADDER);
}

TEST(InterventionSpec, SaysWhichPartIsWrong) {
  const auto refuses = [](const std::string& text, const char* message) {
    EXPECT_THAT(ParseIntervention(text).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << text;
  };
  refuses("", "'' is not one of zero, mean");
  refuses("remove:L3:n1", "'remove' is not one of zero, mean");
  refuses("zero=1:L3:n1", "'zero=1' is not one of zero, mean");
  refuses("scale:L3:n1", "'scale' is not one of zero, mean");
  refuses("scale=big:L3:n1", "'big' is not a number");
  refuses("path=sideways:L3", "'sideways' is not one of full, linear, ladder and skip");
  refuses("zero:L3", "is not CHANGE:LAYERS:NEURONS[@POSITIONS]");
  refuses("mlp-zero:L3:n4", "is not CHANGE:LAYERS[@POSITIONS]");
  refuses("zero:Lx:n1", "'x' is not layers");
  refuses("zero:L3:n5-2", "'5-2' is not neurons");
  refuses("zero:L3:n1@", "'' is not positions");
  refuses("zero:L3:n0-4000000000", "is not a list this short");
  refuses("zero:L3:n-1", "is not neurons");
}

TEST(InterventionSpec, CapturesNameASite) {
  const auto capture = ParseCapture("mlp-out:L3,5@0-1");
  ASSERT_TRUE(capture.ok()) << capture.status();
  EXPECT_EQ(capture->site(), v1::ACTIVATION_SITE_MLP_OUT);
  EXPECT_THAT(capture->layers(), ElementsAre(3, 5));
  EXPECT_THAT(capture->positions(), ElementsAre(0, 1));
  for (int site = v1::ACTIVATION_SITE_RESIDUAL_PRE; site <= v1::ACTIVATION_SITE_RESIDUAL_POST; ++site) {
    const auto same = ParseCapture(SiteName(static_cast<v1::ActivationSite>(site)));
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(same->site(), site);
    EXPECT_THAT(same->layers(), IsEmpty());
  }
  EXPECT_THAT(ParseCapture("head:L3").status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'head'")));
  EXPECT_THAT(ParseCapture("mlp-out:L3:n4").status(), StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

TEST(InterventionFile, IsAListOfMessages) {
  const auto parsed = ParseInterventions(R"([
      {"layers": [3], "neurons": {"neurons": [12, 55], "scale": 0}},
      {"layers": [3, 4], "positions": [5], "neurons": {"neurons": [7], "mean": {}}},
      {"layers": [2], "zero_mlp": {}},
      {"layers": [2], "force_path": "MLP_PATH_LINEAR"},
      {"layers": [5], "positions": [9], "patch": {"site": "ACTIVATION_SITE_MLP_OUT", "values": [0.25, -1.5]}}])");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_THAT(*parsed, SizeIs(5));
  EXPECT_EQ((*parsed)[0].neurons().value_case(), v1::NeuronChange::kScale);
  EXPECT_TRUE((*parsed)[1].neurons().has_mean());
  EXPECT_TRUE((*parsed)[2].has_zero_mlp());
  EXPECT_EQ((*parsed)[3].force_path(), v1::MLP_PATH_LINEAR);
  EXPECT_THAT((*parsed)[4].patch().values(), ElementsAre(0.25f, -1.5f));

  const auto refuses = [](const char* json, const char* message) {
    EXPECT_THAT(ParseInterventions(json).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refuses("{}", "no JSON list");
  refuses("[", "no JSON list");
  refuses(R"([{"layers": [1], "zero_mlp": {}}, {"layer": [1]}])", "entry 1 is no intervention");
  refuses("[3]", "entry 0 is no intervention");
}

std::string BytesOf(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

// Two positions of two numbers, in a message each.
template <typename Response>
void SendActivations(const testing::FakeStream<Response>& stream, size_t numbers = 2) {
  for (const uint32_t position : {4, 5}) {
    Response response;
    v1::Activations& activations = *response.mutable_activations();
    activations.set_layer(3);
    activations.set_site(v1::ACTIVATION_SITE_MLP_OUT);
    activations.add_positions(position);
    activations.set_width(2);
    const std::vector<float> values(numbers, static_cast<float>(position) + 0.5f);
    activations.set_values(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
    stream.write(response);
  }
}

TEST(InterventionFlags, ReachTheServerAndSaveWhatItSends) {
  v1::ScoreRequest seen;
  FakeHandlers handlers;
  handlers.score = [&](const v1::ScoreRequest& request, const testing::FakeStream<v1::ScoreResponse>& stream) {
    seen = request;
    SendActivations(stream);
    v1::ScoreResponse response;
    response.mutable_summary()->set_tokens(6);
    stream.write(response);
    return FakeStatus();
  };
  const FakeServer server(handlers);
  const std::string file = ::testing::TempDir() + "/interventions.json", out = ::testing::TempDir() + "/captured.npz";
  std::ofstream(file) << R"([{"layers": [1], "zero_mlp": {}}])";
  const Finished run = Gatehouse({"--server",
                                  server.address(),
                                  "--json",
                                  "score",
                                  "-m",
                                  "m",
                                  "--text",
                                  "x",
                                  "--gating",
                                  "quorum",
                                  "--quorum",
                                  "5",
                                  "--quorum-path",
                                  "skip",
                                  "--record",
                                  "gate",
                                  "--intervene",
                                  "zero:L3:n12",
                                  "--interventions",
                                  file,
                                  "--capture",
                                  "mlp-out:L3",
                                  "--capture-out",
                                  out});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  EXPECT_EQ(seen.gating().mode(), v1::GatingPolicy::MODE_QUORUM);
  EXPECT_EQ(seen.gating().quorum(), 5u);
  EXPECT_EQ(seen.gating().quorum_path(), v1::MLP_PATH_SKIP);
  EXPECT_TRUE(seen.records().gate());
  ASSERT_EQ(seen.interventions_size(), 2);
  EXPECT_TRUE(seen.interventions(0).has_neurons());
  EXPECT_TRUE(seen.interventions(1).has_zero_mlp());
  ASSERT_EQ(seen.captures_size(), 1);
  EXPECT_EQ(run.json()["captured"]["path"], out);
  EXPECT_EQ(run.json()["captured"]["arrays"][0]["site"], "mlp-out");
  EXPECT_EQ(run.json()["captured"]["arrays"][0]["positions"], 2);
  const std::string bytes = BytesOf(out);
  EXPECT_THAT(bytes, HasSubstr("mlp-out.3.npy"));
  EXPECT_THAT(bytes, HasSubstr("mlp-out.3.positions.npy"));
  EXPECT_THAT(bytes, HasSubstr("'shape': (2,2,)"));
  const float values[] = {4.5f, 4.5f, 5.5f, 5.5f};
  EXPECT_THAT(bytes, HasSubstr(std::string(reinterpret_cast<const char*>(values), sizeof(values))));
  std::remove(out.c_str());
}

TEST(InterventionFlags, GenerateSavesToo) {
  FakeHandlers handlers;
  handlers.generate = [&](const v1::GenerateRequest&, const testing::FakeStream<v1::GenerateResponse>& stream) {
    SendActivations(stream);
    v1::GenerateResponse response;
    response.mutable_summary()->set_generated_tokens(1);
    stream.write(response);
    return FakeStatus();
  };
  const FakeServer server(handlers);
  const std::string out = ::testing::TempDir() + "/generated.npz";
  const Finished run = Gatehouse({"--server", server.address(), "generate", "-m", "m", "--prompt", "x", "--capture",
                                  "mlp-out", "--capture-out", out});
  EXPECT_EQ(run.exit_code, kExitOk) << run.err;
  EXPECT_THAT(BytesOf(out), HasSubstr("mlp-out.3.npy"));
  std::remove(out.c_str());
}

TEST(InterventionFlags, LeaveNoFileWhereTheCallFails) {
  const std::string out = ::testing::TempDir() + "/failed.npz";
  const std::vector<std::string> rest = {"score",         "-m", "m", "--text", "x", "--capture", "mlp-out",
                                         "--capture-out", out};
  const auto run_with = [&](FakeStatus status, size_t numbers) {
    FakeHandlers handlers;
    handlers.score = [&](const v1::ScoreRequest&, const testing::FakeStream<v1::ScoreResponse>& stream) {
      SendActivations(stream, numbers);
      return status;
    };
    const FakeServer server(handlers);
    std::vector<std::string> arguments = {"--server", server.address()};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return Gatehouse(arguments);
  };
  EXPECT_EQ(run_with({.code = 3, .message = "no"}, 2).exit_code, kExitFailed);
  EXPECT_THAT(run_with({}, 3).err, HasSubstr("activations of another shape"));
  EXPECT_EQ(BytesOf(out), "");
}

TEST(InterventionFlags, AreCheckedBeforeTheServerIsAsked) {
  const auto usage = [](std::vector<std::string> flags, const char* message) {
    std::vector<std::string> arguments = {"score", "-m", "m", "--text", "x"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished run = Gatehouse(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage);
    EXPECT_THAT(run.err, HasSubstr(message));
  };
  usage({"--intervene", "zero:L3"}, "--intervene");
  usage({"--interventions", "/nowhere.json"}, "cannot read /nowhere.json");
  usage({"--capture", "mlp-out"}, "--capture and --capture-out go together");
  usage({"--capture-out", "x.npz"}, "--capture and --capture-out go together");
  usage({"--capture", "brain", "--capture-out", "x.npz"}, "'brain' is not one of");
  usage({"--gating", "quorum", "--quorum-path", "full"}, "--quorum-path");
}

}  // namespace
}  // namespace gatehouse::cli
