#ifndef GATEHOUSE_TESTS_CLIENT_FAKE_OPERATION_H_
#define GATEHOUSE_TESTS_CLIENT_FAKE_OPERATION_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "tests/client/fake_server.h"

namespace gatehouse::cli {

// A fake server's only operation, which runs until it is cancelled, or ends at once.
struct FakeOperation {
  v1::OperationState end = v1::OPERATION_STATE_SUCCEEDED;
  bool runs_until_cancelled = false;
  std::atomic<bool> cancelled = false;
  std::function<void()> running;
  v1::StartOperationRequest started;

  v1::Operation State(v1::OperationState state, double progress) const {
    v1::Operation operation;
    operation.set_name("operations/r1/7");
    operation.set_kind("calibrate");
    operation.set_model("m");
    operation.set_state(state);
    operation.set_progress(progress);
    operation.set_stage("surrogates: layer 1 of 2");
    if (state == v1::OPERATION_STATE_SUCCEEDED) operation.set_result("cal");
    if (state == v1::OPERATION_STATE_FAILED) {
      operation.set_error_code(3);
      operation.set_error_message("the corpus is too short");
    }
    return operation;
  }

  // Beside other handlers.
  testing::FakeHandlers Handlers(testing::FakeHandlers handlers = {}) {
    handlers.upload_corpus = [](const auto& more, v1::UploadCorpusResponse& response) {
      for (v1::UploadCorpusRequest chunk; more(chunk);)
        response.set_size_bytes(response.size_bytes() + chunk.data().size());
      response.set_corpus("corpora/abc");
      return testing::FakeStatus{};
    };
    handlers.start_operation = [this](const auto& request, v1::StartOperationResponse& response) {
      started = request;
      *response.mutable_operation() = State(v1::OPERATION_STATE_WAITING, 0);
      return testing::FakeStatus{};
    };
    handlers.watch_operation = [this](const auto&, const auto& stream) {
      v1::WatchOperationResponse response;
      *response.mutable_operation() = State(v1::OPERATION_STATE_RUNNING, 0.5);
      stream.write(response);
      if (running) running();
      while (runs_until_cancelled && !cancelled && !stream.cancelled()) std::this_thread::yield();
      *response.mutable_operation() = State(cancelled ? v1::OPERATION_STATE_CANCELLED : end, 1);
      stream.write(response);
      return testing::FakeStatus{};
    };
    handlers.cancel_operation = [this](const auto&, v1::CancelOperationResponse& response) {
      cancelled = true;
      *response.mutable_operation() = State(v1::OPERATION_STATE_RUNNING, 0.5);
      return testing::FakeStatus{};
    };
    handlers.list_operations = [this](const auto&, v1::ListOperationsResponse& response) {
      *response.add_operations() = State(end, 1);
      return testing::FakeStatus{};
    };
    handlers.get_operation = [this](const auto&, v1::GetOperationResponse& response) {
      *response.mutable_operation() = State(end, 1);
      return testing::FakeStatus{};
    };
    handlers.fetch_result = [](const auto&, const auto& stream) {
      v1::FetchResultResponse response;
      response.set_data("tensors");
      stream.write(response);
      return testing::FakeStatus{};
    };
    return handlers;
  }
};

inline std::filesystem::path TemporaryFile(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / (std::to_string(getpid()) + "-" + name);
}

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_TESTS_CLIENT_FAKE_OPERATION_H_
