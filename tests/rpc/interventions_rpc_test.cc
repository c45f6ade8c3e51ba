#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "server/base/strings.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InterventionsRpc : public RpcTest {
 protected:
  grpc::Status StatusOf(const v1::GenerateRequest& request) { return Generate(request).status; }
};

TEST_F(InterventionsRpc, EveryKindReachesTheEngine) {
  StartServer();
  const std::string plain = Generate(Prompt("abcd", 6)).text();
  const auto with = [&](auto change) {
    v1::GenerateRequest request = Prompt("abcd", 6);
    v1::Intervention& intervention = *request.add_interventions();
    intervention.add_layers(1);
    change(intervention);
    const Generated generated = Generate(request);
    EXPECT_TRUE(generated.status.ok()) << generated.status.error_message();
    return generated;
  };
  EXPECT_NE(with([](auto& i) {
              i.mutable_neurons()->add_neurons(3);
              i.mutable_neurons()->set_scale(0);
            }).text(),
            plain);
  EXPECT_NE(with([](auto& i) {
              i.mutable_neurons()->add_neurons(3);
              i.mutable_neurons()->mutable_mean();
            }).text(),
            plain);
  EXPECT_NE(with([](auto& i) {
              i.mutable_patch()->set_site(v1::ACTIVATION_SITE_MLP_OUT);
              for (int k = 0; k < 8; ++k) i.mutable_patch()->add_values(0.5f);
              i.add_positions(2);
            }).text(),
            plain);
  const Generated zeroed = with([](auto& i) { i.mutable_zero_mlp(); });
  EXPECT_EQ(zeroed.summary().routing().skip_decisions(), 9u);
  EXPECT_EQ(zeroed.summary().routing().layers(1).skip_tokens(), 9u);
  EXPECT_EQ(with([](auto& i) { i.set_force_path(v1::MLP_PATH_LADDER); }).summary().routing().ladder_decisions(), 9u);
}

TEST_F(InterventionsRpc, ActivationsArriveInMessagesOfBoundedSize) {
  // 2.5 MB of each layer, from one step.
  engine_options_.context = 32768;
  engine_options_.kv_pages = 32768;
  scheduler_options_.prefill_chunk = 32768;
  StartServer();
  v1::GenerateRequest request = Prompt(std::string(20000, 'a'), 2);
  v1::ActivationCapture& neurons = *request.add_captures();
  neurons.set_site(v1::ACTIVATION_SITE_NEURONS);
  for (const uint32_t layer : {0, 1, 2}) neurons.add_layers(layer);
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  std::map<uint32_t, std::vector<uint32_t>> positions;
  int messages = 0;
  for (const v1::GenerateResponse& response : generated.responses) {
    EXPECT_LE(response.ByteSizeLong(), size_t{1} << 20);
    if (!response.has_activations()) continue;
    ++messages;
    const v1::Activations& activations = response.activations();
    EXPECT_EQ(activations.site(), v1::ACTIVATION_SITE_NEURONS);
    EXPECT_EQ(activations.width(), 32u);
    EXPECT_EQ(activations.values().size(), activations.positions_size() * 32u * 4);
    float first = -1;
    std::memcpy(&first, activations.values().data(), sizeof(first));
    EXPECT_TRUE(first >= 0 && first < 1);
    auto& list = positions[activations.layer()];
    list.insert(list.end(), activations.positions().begin(), activations.positions().end());
  }
  EXPECT_EQ(messages, 3 * (3 + 1));  // the prompt's in three pieces, the generated token's in one
  ASSERT_EQ(positions.size(), 3u);
  for (const auto& [layer, list] : positions) {
    ASSERT_EQ(list.size(), 20001u);
    for (uint32_t i = 0; i < 20001; ++i) ASSERT_EQ(list[i], i);
  }
}

TEST_F(InterventionsRpc, WhatTheWireCannotSayIsRefused) {
  StartServer();
  const auto refuses = [&](auto change, const char* message) {
    v1::GenerateRequest request = Prompt("abcd", 2);
    change(request);
    const grpc::Status status = StatusOf(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  };
  refuses([](auto& r) { r.add_interventions()->add_layers(0); }, "interventions[0] needs one of neurons");
  refuses([](auto& r) { r.add_interventions()->mutable_neurons()->add_neurons(1); },
          "interventions[0].neurons needs one of scale, mean and set");
  refuses([](auto& r) { r.add_interventions()->mutable_zero_mlp(); }, "interventions[0].layers names no layer");
  refuses([](auto& r) { r.add_interventions()->add_layers(4'000'000'000u); },
          "interventions[0].layers names layer 4000000000");
  refuses(
      [](auto& r) {
        r.add_interventions()->mutable_zero_mlp();
        r.mutable_interventions(0)->add_positions(4'000'000'000u);
      },
      "interventions[0].positions names 4000000000");
  refuses([](auto& r) { r.add_interventions()->set_force_path(static_cast<v1::MlpPath>(9)); },
          "interventions[0].force_path has the unknown value 9");
  refuses([](auto& r) { r.add_interventions()->mutable_patch(); }, "interventions[0].patch.site is needed");
  refuses([](auto& r) { r.add_captures(); }, "captures[0].site is needed");
  refuses([](auto& r) { r.add_captures()->set_site(static_cast<v1::ActivationSite>(7)); },
          "captures[0].site has the unknown value 7");
  refuses([](auto& r) { r.mutable_gating()->set_quorum(2); }, "quorum is only for quorum mode");
  refuses([](auto& r) { r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_QUORUM); },
          "quorum is 0, must be in [1, 64]");
  refuses(
      [](auto& r) {
        r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_QUORUM);
        r.mutable_gating()->set_quorum(2);
        r.mutable_gating()->set_quorum_path(v1::MLP_PATH_LADDER);
      },
      "quorum_path must be linear or skip");
}

TEST_F(InterventionsRpc, AReaderThatIsSlowToTakeActivationsCanStillCancel) {
  engine_options_.context = 8192;
  engine_options_.kv_pages = 4096;
  StartServer();
  v1::GenerateRequest request = Prompt(std::string(100, 'a'), 8000);
  request.add_captures()->set_site(v1::ACTIVATION_SITE_NEURONS);
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response) && !response.has_activations()) {
  }
  EXPECT_TRUE(response.has_activations());
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntil([&] { return engine_->open_sequences() == 0; }, "the call's row is free");
}

}  // namespace
}  // namespace gatehouse::testing
