// Experiments over the wire: what the request asks for, and how the report comes back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/base/strings.h"
#include "tests/rpc/raw_call.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExperimentsRpcTest : public RpcTest {
 protected:
  std::string Upload(const std::string& text) {
    grpc::ClientContext context;
    v1::UploadCorpusResponse response;
    const auto writer = operation_stub_->UploadCorpus(&context, &response);
    v1::UploadCorpusRequest request;
    request.set_display_name(text);
    request.set_data(text);
    writer->Write(request);
    writer->WritesDone();
    EXPECT_TRUE(writer->Finish().ok());
    return response.corpus();
  }

  grpc::Status Start(const v1::StartOperationRequest& request, v1::Operation& operation) {
    grpc::ClientContext context;
    v1::StartOperationResponse response;
    const grpc::Status status = operation_stub_->StartOperation(&context, request, &response);
    operation = response.operation();
    return status;
  }
  static v1::StartOperationRequest Request(const std::vector<std::string>& corpora) {
    v1::StartOperationRequest request;
    request.set_model("m");
    for (const std::string& corpus : corpora) request.mutable_experiment()->add_corpora(corpus);
    return request;
  }
  // Runs it to its end.
  v1::Operation Run(const v1::StartOperationRequest& request) {
    v1::Operation started;
    const grpc::Status status = Start(request, started);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::WatchOperationRequest watch;
    watch.set_name(started.name());
    grpc::ClientContext context;
    const auto reader = operation_stub_->WatchOperation(&context, watch);
    const auto states = ReadAll(*reader);
    EXPECT_TRUE(reader->Finish().ok());
    return states.empty() ? v1::Operation() : states.back().operation();
  }
  grpc::Status Refused(const v1::StartOperationRequest& request) {
    v1::Operation operation;
    return Start(request, operation);
  }

  std::vector<v1::GetReportResponse> ReportOf(const std::string& name, grpc::Status& status) {
    v1::GetReportRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    const auto reader = operation_stub_->GetReport(&context, request);
    auto parts = ReadAll(*reader);
    status = reader->Finish();
    return parts;
  }
  grpc::Status Fetch(const std::string& name, const std::string& file, std::string& bytes) {
    v1::FetchResultRequest request;
    request.set_name(name);
    request.set_file(file);
    grpc::ClientContext context;
    const auto reader = operation_stub_->FetchResult(&context, request);
    for (const v1::FetchResultResponse& response : ReadAll(*reader)) bytes += response.data();
    return reader->Finish();
  }
};

TEST_F(ExperimentsRpcTest, AnExperimentRunsFromUploadToReport) {
  StartServer();
  v1::StartOperationRequest request = Request({Upload("first"), Upload("the second")});
  request.mutable_experiment()->mutable_no_fly();
  const v1::Operation ended = Run(request);
  ASSERT_EQ(ended.state(), v1::OPERATION_STATE_SUCCEEDED) << ended.error_message();
  EXPECT_EQ(ended.kind(), "no_fly");
  EXPECT_EQ(ended.result(), "report.json");
  EXPECT_THAT(ended.files(), ElementsAre("arrays.npz", "report.json"));

  grpc::Status status;
  const auto parts = ReportOf(ended.name(), status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].report().model(), "m");
  EXPECT_EQ(parts[0].report().corpora(1).label(), "the second");
  EXPECT_EQ(parts[0].report().tables_size(), 0);
  const v1::ReportTable& table = parts[1].table();
  EXPECT_EQ(table.title(), "Corpora");
  EXPECT_THAT(table.columns(0).strings().values(), ElementsAre("first", "the second"));
  EXPECT_THAT(table.columns(1).numbers().values(), ElementsAre(5, 10));

  std::string bytes;
  EXPECT_TRUE(Fetch(ended.name(), "arrays.npz", bytes).ok());
  EXPECT_THAT(bytes, ::testing::StartsWith("PK"));
  bytes.clear();
  EXPECT_TRUE(Fetch(ended.name(), "", bytes).ok());
  EXPECT_EQ(bytes.size(), ended.result_bytes());
  EXPECT_THAT(bytes, HasSubstr("A fake experiment"));
}

TEST_F(ExperimentsRpcTest, AFileIsFetchedOnlyByANameThatIsListed) {
  StartServer();
  v1::StartOperationRequest request = Request({Upload("text")});
  request.mutable_experiment()->mutable_routability();
  const v1::Operation ended = Run(request);
  for (const char* file : {"../report.json", "/etc/passwd", "nothing", "..", "../../../operations/r1/lock"}) {
    std::string bytes;
    const grpc::Status status = Fetch(ended.name(), file, bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << file;
    EXPECT_EQ(ReasonIn(status), "NO_RESULT");
    EXPECT_TRUE(bytes.empty());
  }
}

TEST_F(ExperimentsRpcTest, ALargeReportArrivesWholeInBoundedMessages) {
  StartServer();
  constexpr size_t kRows = 100'000;
  std::vector<double> numbers(kRows);
  std::vector<std::string> words(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    numbers[i] = i % 7 == 0 ? std::nan("") : static_cast<double>(i) / 3;
    words[i] = StrCat("word ", i, std::string(i % 50, 'x'));
  }
  ExperimentResult result;
  result.report.tables = {
      {"empty", "Empty", "", {{"x", "", std::vector<double>()}}},
      {"large", "Large", "about it", {{"number", "a number", numbers}, {"word", "a word", words}}},
      {"small", "Small", "", {{"x", "", std::vector<double>{1}}}},
      {"long", "", "", {{"text", "", std::vector<std::string>(20, std::string(1 << 20, 'y'))}}},
  };
  engine_->SetExperimentResult(result);
  v1::StartOperationRequest start = Request({Upload("text")});
  start.mutable_experiment()->mutable_linearization_cost();
  const v1::Operation ended = Run(start);
  ASSERT_EQ(ended.state(), v1::OPERATION_STATE_SUCCEEDED) << ended.error_message();
  v1::GetReportRequest request;
  request.set_name(ended.name());
  const RawReply reply = RawCall(channel_, "/gatehouse.v1.OperationService/GetReport", {request.SerializeAsString()});
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  std::vector<std::string> order;
  std::vector<double> got_numbers;
  std::vector<std::string> got_words;
  for (size_t i = 0; i < reply.messages.size(); ++i) {
    EXPECT_LE(reply.messages[i].size(), size_t{1} << 20);
    v1::GetReportResponse response;
    ASSERT_TRUE(response.ParseFromString(reply.messages[i]));
    EXPECT_EQ(response.has_report(), i == 0);
    if (i == 0) continue;
    const v1::ReportTable& piece = response.table();
    const bool first = order.empty() || order.back() != piece.name();
    if (first) order.push_back(piece.name());
    if (piece.name() != "large") continue;
    EXPECT_EQ(piece.title(), first ? "Large" : "");
    EXPECT_EQ(piece.columns(0).description(), first ? "a number" : "");
    EXPECT_EQ(piece.columns(0).numbers().values_size(), piece.columns(1).strings().values_size());
    got_numbers.insert(got_numbers.end(), piece.columns(0).numbers().values().begin(),
                       piece.columns(0).numbers().values().end());
    got_words.insert(got_words.end(), piece.columns(1).strings().values().begin(),
                     piece.columns(1).strings().values().end());
  }
  EXPECT_THAT(order, ElementsAre("empty", "large", "small", "long"));
  EXPECT_GT(reply.messages.size(), 8u);
  EXPECT_TRUE(got_words == words);
  ASSERT_EQ(got_numbers.size(), numbers.size());
  for (size_t i = 0; i < kRows; ++i) {
    EXPECT_TRUE(got_numbers[i] == numbers[i] || (std::isnan(got_numbers[i]) && std::isnan(numbers[i]))) << i;
  }
}

TEST_F(ExperimentsRpcTest, EveryFieldOfARequestReachesTheEngine) {
  StartServer();
  v1::StartOperationRequest request = Request({Upload("text")});
  v1::ExperimentSpec& spec = *request.mutable_experiment();
  spec.add_layers(2);
  spec.add_layers(0);
  spec.set_fit_tokens(10);
  spec.set_gate_tokens(11);
  spec.set_select_tokens(12);
  spec.set_report_tokens(13);
  spec.set_window_tokens(14);
  spec.set_ridge(0.5);
  spec.set_sink_positions(0);
  spec.set_bootstrap_resamples(150);
  spec.set_seed(16);
  v1::Training& training = *spec.mutable_training();
  training.set_schedule(v1::Training::SCHEDULE_ROUTING);
  training.add_order(2);
  training.add_order(0);
  training.set_steps_per_layer(20);
  training.set_final_steps(21);
  training.set_batch_sequences(22);
  training.set_learning_rate(0.23);
  training.set_weight_decay(0.24);
  training.set_gradient_clip(0.25);
  training.set_gate_learning_rate(0.26);
  training.set_gate_pressure(0.27);
  training.set_evaluate_every(28);
  training.set_save_model(true);
  const v1::Operation ended = Run(request);
  EXPECT_EQ(ended.kind(), "routing_training");
  EXPECT_THAT(ended.files(), ElementsAre("arrays.npz", "checkpoint", "model/config.json", "report.json"));
  const ExperimentSpec seen = engine_->experiment_spec();
  EXPECT_THAT(seen.options.layers, ElementsAre(2, 0));
  EXPECT_EQ(seen.options.fit_tokens, 10);
  EXPECT_EQ(seen.options.gate_tokens, 11);
  EXPECT_EQ(seen.options.select_tokens, 12);
  EXPECT_EQ(seen.options.report_tokens, 13);
  EXPECT_EQ(seen.options.window_tokens, 14);
  EXPECT_EQ(seen.options.ridge, 0.5);
  EXPECT_EQ(seen.options.sink_positions, 0);
  EXPECT_EQ(seen.options.bootstrap_resamples, 150);
  EXPECT_EQ(seen.options.seed, 16u);
  const auto& method = std::get<TrainingMethod>(seen.method);
  EXPECT_EQ(method.schedule, TrainingSchedule::kRouting);
  EXPECT_THAT(method.order, ElementsAre(2, 0));
  EXPECT_EQ(method.steps_per_layer, 20);
  EXPECT_EQ(method.final_steps, 21);
  EXPECT_EQ(method.batch_sequences, 22);
  EXPECT_EQ(method.learning_rate, 0.23);
  EXPECT_EQ(method.weight_decay, 0.24);
  EXPECT_EQ(method.gradient_clip, 0.25);
  EXPECT_EQ(method.gate_learning_rate, 0.26);
  EXPECT_EQ(method.gate_pressure, 0.27);
  EXPECT_EQ(method.evaluate_every, 28);

  // A training that is continued.
  spec.set_resume(ended.name());
  EXPECT_EQ(Run(request).state(), v1::OPERATION_STATE_SUCCEEDED);
  std::string checkpoint;
  EXPECT_TRUE(Fetch(ended.name(), "checkpoint", checkpoint).ok());
  EXPECT_EQ(checkpoint, "a step\n");
}

TEST_F(ExperimentsRpcTest, MethodsHaveDefaultsAndTheirOwnFields) {
  StartServer();
  v1::StartOperationRequest request = Request({Upload("text"), Upload("other")});
  v1::NoFly& no_fly = *request.mutable_experiment()->mutable_no_fly();
  Run(request);
  NoFlyMethod method = std::get<NoFlyMethod>(engine_->experiment_spec().method);
  EXPECT_EQ(method.least_mean, 0.05);
  EXPECT_EQ(method.least_count, 10);
  EXPECT_EQ(engine_->experiment_spec().options.bootstrap_resamples, 10'000);
  EXPECT_EQ(engine_->experiment_spec().options.sink_positions, 4);
  no_fly.set_least_mean(0);
  no_fly.set_least_count(5);
  no_fly.set_least_positive(0.75);
  no_fly.set_least_count_other(6);
  Run(request);
  method = std::get<NoFlyMethod>(engine_->experiment_spec().method);
  EXPECT_EQ(method.least_mean, 0);
  EXPECT_EQ(method.least_count, 5);
  EXPECT_EQ(method.least_positive, 0.75);
  EXPECT_EQ(method.least_count_other, 6);

  v1::GateSweep& sweep = *request.mutable_experiment()->mutable_gate_sweep();
  sweep.add_bottlenecks(2);
  Run(request);
  auto gates = std::get<GateSweepMethod>(engine_->experiment_spec().method);
  EXPECT_EQ(gates.thresholds.size(), 9u);
  EXPECT_THAT(gates.bottlenecks, ElementsAre(2));
  sweep.add_thresholds(0.25);
  Run(request);
  EXPECT_THAT(std::get<GateSweepMethod>(engine_->experiment_spec().method).thresholds, ElementsAre(0.25));
}

TEST_F(ExperimentsRpcTest, BudgetsReachTheEngine) {
  StartServer();
  v1::StartOperationRequest request;
  request.set_model("m");
  v1::CalibrateSpec& spec = *request.mutable_calibrate();
  spec.set_corpus(Upload("text"));
  EXPECT_EQ(Run(request).state(), v1::OPERATION_STATE_SUCCEEDED);
  BudgetOptions seen = engine_->calibrate_options().budget;
  EXPECT_TRUE(seen.budgets.empty() && seen.sequential && seen.ladders && seen.tune);
  v1::BudgetSpec& budget = *spec.mutable_budget();
  budget.add_budgets(0.01);
  budget.add_budgets(0.05);
  budget.set_sequential(false);
  budget.set_ladders(false);
  budget.set_ladder_share(0.5);
  budget.set_tune(false);
  budget.set_tune_steps(7);
  budget.set_tune_sequences(8);
  budget.set_tune_work_saved(0.4);
  EXPECT_EQ(Run(request).state(), v1::OPERATION_STATE_SUCCEEDED);
  seen = engine_->calibrate_options().budget;
  EXPECT_THAT(seen.budgets, ElementsAre(0.01, 0.05));
  EXPECT_FALSE(seen.sequential || seen.ladders || seen.tune);
  EXPECT_EQ(seen.ladder_share, 0.5);
  EXPECT_EQ(seen.tune_steps, 7);
  EXPECT_EQ(seen.tune_sequences, 8);
  EXPECT_EQ(seen.tune_work_saved, 0.4);
  budget.add_budgets(-1);
  const grpc::Status refused = Refused(request);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("budget.budgets is -1"));
}

TEST_F(ExperimentsRpcTest, CountsThatAreTooLargeAreNamedAsTheyCame) {
  StartServer();
  const std::string corpus = Upload("text");
  constexpr uint32_t kMost = 4'294'967'295;
  const auto refused = [&](const std::string& field, const std::function<void(v1::StartOperationRequest&)>& change) {
    v1::StartOperationRequest request = Request({corpus});
    request.mutable_experiment()->mutable_linearization_cost();
    change(request);
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(field + " is 4294967295, must be"));
  };
  const auto experiment = [&](const std::string& field, const std::function<void(v1::ExperimentSpec&)>& change) {
    refused(field, [&](v1::StartOperationRequest& request) { change(*request.mutable_experiment()); });
  };
  const auto calibrate = [&](const std::string& field, const std::function<void(v1::CalibrateSpec&)>& change) {
    refused(field, [&](v1::StartOperationRequest& request) {
      request.mutable_calibrate()->set_corpus(corpus);
      change(*request.mutable_calibrate());
    });
  };
  experiment("fit_tokens", [](auto& spec) { spec.set_fit_tokens(kMost); });
  experiment("window_tokens", [](auto& spec) { spec.set_window_tokens(kMost); });
  experiment("sink_positions", [](auto& spec) { spec.set_sink_positions(kMost); });
  experiment("bootstrap_resamples", [](auto& spec) { spec.set_bootstrap_resamples(kMost); });
  experiment("gate_sweep.bottlenecks", [](auto& spec) { spec.mutable_gate_sweep()->add_bottlenecks(kMost); });
  experiment("no_fly.least_count", [](auto& spec) { spec.mutable_no_fly()->set_least_count(kMost); });
  experiment("training.steps_per_layer", [](auto& spec) { spec.mutable_training()->set_steps_per_layer(kMost); });
  experiment("training.final_steps", [](auto& spec) { spec.mutable_training()->set_final_steps(kMost); });
  experiment("polynomial_probe.degrees", [](auto& spec) { spec.mutable_polynomial_probe()->add_degrees(kMost); });
  experiment("nonlinearity.clusters", [](auto& spec) { spec.mutable_nonlinearity()->set_clusters(kMost); });
  experiment("consensus.max_consensus", [](auto& spec) { spec.mutable_consensus()->set_max_consensus(kMost); });
  calibrate("sink_positions", [](auto& spec) { spec.set_sink_positions(kMost); });
  calibrate("max_consensus", [](auto& spec) { spec.set_max_consensus(kMost); });
  calibrate("budget.tune_steps", [](auto& spec) { spec.mutable_budget()->set_tune_steps(kMost); });
  calibrate("budget.tune_sequences", [](auto& spec) { spec.mutable_budget()->set_tune_sequences(kMost); });
}

TEST_F(ExperimentsRpcTest, WrongRequestsAreErrors) {
  StartServer();
  const std::string corpus = Upload("text");
  v1::StartOperationRequest request = Request({corpus});
  EXPECT_THAT(Refused(request).error_message(), HasSubstr("experiment.method is missing"));
  request.mutable_experiment()->mutable_no_fly();
  EXPECT_THAT(Refused(request).error_message(), HasSubstr("no_fly must have 2 to 16"));
  request.mutable_experiment()->mutable_training()->set_schedule(static_cast<v1::Training::Schedule>(9));
  EXPECT_THAT(Refused(request).error_message(), HasSubstr("training.schedule has the unknown value 9"));
  request.mutable_experiment()->mutable_linearization_cost();
  request.mutable_experiment()->add_layers(4'000'000'000);
  EXPECT_EQ(ReasonIn(Refused(request)), "LAYER_OUT_OF_RANGE");
  request.mutable_experiment()->set_layers(0, 3);
  const grpc::Status layer = Refused(request);
  EXPECT_EQ(ReasonIn(layer), "LAYER_OUT_OF_RANGE");
  EXPECT_THAT(layer.error_message(), HasSubstr("layers is 3, must be in [0, 2]"));

  grpc::Status status;
  EXPECT_TRUE(ReportOf("operations/r1/none", status).empty());
  EXPECT_EQ(ReasonIn(status), "OPERATION_NOT_FOUND");
}

}  // namespace
}  // namespace gatehouse::testing
